"""Answers of the tools: what a program that trains models needs to know, in few words, bounded and without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gputui.domain.job_spec import Pairs
from gputui.domain.log_errors import error_in
from gputui.domain.redaction import without_secrets
from gputui.domain.text import plain, plain_bytes

Json = dict[str, Any]

MOST_CHARACTERS = 24_000
"""Characters of an answer: some six thousand tokens."""
LONGEST_TEXT = 1000
"""Characters of a text in it, such as an argument of a command."""
LONGEST_LINE = 400
"""Characters of a line of a log."""
_ATTEMPTS, _AUDIT, _IDS = 5, 10, 20
"""Latest attempts and entries of the audit log, and first ids, that are shown."""
_ROW = (
    *("id", "name", "state", "submitted_by", "tenant", "priority", "image", "held", "submitted_at", "started_at"),
    *("ended_at", "expected_start_at", "exit_code", "cause", "error", "progress", "suspended", "cancel_requested"),
)
_DETAIL = (
    *("command", "comment", "labels", "time_limit", "limit_at", "held_by", "hold_reason", "not_before", "sweep"),
    *("requeue_requested", "recurring_id"),
)
_ATTEMPT = (
    *("number", "node", "gpu_count", "started_at", "ended_at", "exit_code", "cause", "error", "efficiency", "notes"),
    "ports",
)


def told(values: Mapping[str, Any], names: Iterable[str]) -> Json:
    """Return the values with these names that say something."""
    return {name: value for name in names if (value := values.get(name)) or (value == 0 and value is not False)}


def row(job: Mapping[str, Any]) -> Json:
    """Return a job as it is listed."""
    low, high = job["gpus_min"], job["gpus_max"]
    gpus = "all" if high is None else low if low == high else f"{low}-{high}"
    found = told(job, _ROW) | {"gpus": gpus}
    if reason := job["reason"]:
        found["waits_because"] = reason["text"]
    if array := job["array"]:
        found["array"] = told(array, ("id", "limit", "count")) | {"index": array["index"]}
    return found


def detail(job: Mapping[str, Any]) -> Json:
    """Return a job with its specification, its attempts and who did what to it."""
    spec = {name: value for name, value in job["spec"].items() if value}
    attempts = [told(attempt, _ATTEMPT) for attempt in job["attempts"][-_ATTEMPTS:]]
    audit = [told(entry, ("at", "user", "via", "verb", "before", "after")) for entry in job["audit"][-_AUDIT:]]
    found = row(job) | told(job, _DETAIL) | {"spec": spec, "attempts": attempts, "audit": audit}
    left_out = [
        f"{what}: the latest {len(shown)} of {len(job[name])}"
        for name, shown, what in (("attempts", attempts, "attempts"), ("audit", audit, "audit entries"))
        if len(shown) < len(job[name])
    ]
    return found | ({"cut": "; ".join(left_out)} if left_out else {})


def gpu_row(gpu: Mapping[str, Any]) -> Json:
    """Return a GPU as it is listed: of processes that are not gputui's only whose they are."""
    found = told(gpu, ("node", "why", "job_ids", "closed")) | {
        name: gpu[name]
        for name in ("index", "model", "state", "memory_used", "memory_total", "utilization", "temperature")
    }
    if gpu["health"]["text"]:
        found["health"] = gpu["health"]["text"]
    if gpu["drain"]:
        found["drained"] = gpu["drain"]["reason"] or "by an operator"
    if gpu["holders"]:
        found["foreign_users"] = sorted({holder["user"] or "unknown" for holder in gpu["holders"]})
    return found


def ids_told(ids: list[int]) -> Json:
    """Return ids of jobs, of many the first and how many they are."""
    if len(ids) <= _IDS:
        return {"ids": ids}
    return {"ids": ids[:_IDS], "count": len(ids), "last": ids[-1], "cut": f"the first {_IDS} ids are shown"}


def log_told(data: bytes, tail: int) -> Json:
    """Return the end of a log, and the first line in all of `data` that reports an error."""
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    shown = [plain(plain_bytes(line[-8 * LONGEST_LINE :]), LONGEST_LINE) for line in lines[-tail:]] if tail else []
    found: Json = {"lines": shown}
    for place, line in enumerate(lines):
        text = plain(plain_bytes(line[: 8 * LONGEST_LINE]), LONGEST_LINE)
        if (kind := error_in(text)) is not None:
            found["first_error"] = {"line": text, "kind": kind, "lines_before_end": len(lines) - place}
            break
    return found


def encoded(answer: Json, env: Pairs = ()) -> str:
    """Return an answer as text: without secrets, and not too long; what is left out of its lists it says.

    `env` is the environment of the job that it is about.
    """
    cleaned: Json = _clean(answer, env)
    while len(text := json.dumps(cleaned, ensure_ascii=False)) > MOST_CHARACTERS:
        name = max(cleaned, key=lambda each: len(json.dumps(cleaned[each], ensure_ascii=False)))
        longest = cleaned[name]
        if not isinstance(longest, list) or len(longest) < 2:
            return json.dumps({"cut": "the answer is too long to be shown"} | told(cleaned, ("id", "state", "ids")))
        is_of_end = name in {"lines", "attempts", "audit"}  # whose latest ones matter
        kept = len(longest) * 3 // 4
        cleaned[name] = longest[-kept:] if is_of_end else longest[:kept]
        cleaned["cut"] = f"{name}: only the {'last' if is_of_end else 'first'} {kept} are shown"
    return text


def _clean(value: Any, env: Pairs) -> Any:
    """Return a value without secrets, control characters and overlong texts."""
    if isinstance(value, str):
        lines = without_secrets(value, env).split("\n")
        text = "\n".join(map(plain, lines))
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
    if isinstance(value, Mapping):
        return {plain(str(name)): _clean(each, env) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each, env) for each in value]
    return value
