"""Stored drafts of the job form: earlier submissions and templates."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.text import fit, plain, width
from gputui.request import job_file
from gputui.request.draft import NAMES, Draft, draft_without_secrets, env_names, filled_texts
from gputui.request.submitter import Submitter
from gputui.tui.preferences import Preferences

SECTION = "submissions"
MOST_KEPT = 40
_COLUMN = 40
"""Maximum cells of a column of their list."""
MOST_BYTES = 8192
"""Maximum bytes of one submission, since the file is read completely at every start."""


class RecentSubmission(Struct, frozen=True):
    """A submission, without the values of its environment."""

    draft: Draft
    env: tuple[str, ...] = ()
    """Names of the variables that it set."""


def recent_submissions(preferences: Preferences) -> tuple[RecentSubmission, ...]:
    """Return the last submissions, newest first, without damaged ones."""
    listed = preferences.get(SECTION).get("drafts")
    found = [_past(entry) for entry in listed] if isinstance(listed, list) else []
    return tuple(entry for entry in found if entry is not None)[:MOST_KEPT]


def keep_submission(preferences: Preferences, draft: Draft) -> None:
    """Store the submission as the latest, without duplicates."""
    entry = RecentSubmission(
        {name: text for name, text in filled_texts(draft).items() if name != "env"}, env_names(draft)
    )
    if sum(len(text.encode()) for text in entry.draft.values()) > MOST_BYTES:
        return
    kept = [entry, *(other for other in recent_submissions(preferences) if other != entry)][:MOST_KEPT]
    preferences.put(SECTION, {"drafts": [{**each.draft, "env_names": list(each.env)} for each in kept]})


def _past(entry: object) -> RecentSubmission | None:
    if not isinstance(entry, dict):
        return None
    texts = {name: text for name in NAMES if name != "env" and isinstance(text := entry.get(name), str)}
    template_names = entry.get("env_names")
    env = tuple(str(name) for name in template_names) if isinstance(template_names, list) else ()
    return RecentSubmission(texts, env) if texts.get("image") or texts.get("command") else None


def _gpus(asked: str) -> str:
    if asked in {"", "0"}:
        return ""
    return f"{asked} GPU" if asked == "1" else f"{asked} GPUs"


def describe_drafts(drafts: Sequence[Draft]) -> list[str]:
    """Return a line for each draft: names, GPUs and images in columns, and the command."""
    rows = [[plain(word, 300) for word in _words(draft)] for draft in drafts]
    wide = [min(_COLUMN, max(map(width, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, wide)).rstrip() for row in rows]


def _words(draft: Draft) -> tuple[str, str, str, str]:
    return draft.get("name", ""), _gpus(draft.get("gpus", "")), draft.get("image", ""), draft.get("command", "")


def _padded(row: Sequence[str], wide: Sequence[int]) -> list[str]:
    """Return the words padded to their columns, without empty columns; the last word is not padded."""
    *first, last = row
    return [fit(word, cells) for word, cells in zip(first, wide[:-1], strict=True) if cells] + [last]


MOST_TEMPLATES = 500
_NAME = re.compile(r"\w[\w .+-]{0,79}")


def template_names(directory: Path) -> tuple[str, ...]:
    """Return the sorted names of the templates; empty if the directory does not exist."""
    try:
        found = sorted(path.stem for path in directory.glob("*.toml") if path.stem.isprintable())
    except OSError:
        return ()
    return tuple(found[:MOST_TEMPLATES])


def load_template(directory: Path, name: str, by: Submitter) -> dict[str, str]:
    """Return the draft of a template; raises InputError that describes the error in the file."""
    return job_file.read_draft(directory / f"{name}.toml", by)


def save_template(directory: Path, name: str, draft: Draft) -> Path:
    """Write a template, replacing one of that name; variables that look like secrets are written without values."""
    if not _NAME.fullmatch(name):
        raise InputError("is not a valid name for a template", where=name, hint="letters, digits, blanks, and . + - _")
    path = directory / f"{name}.toml"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, job_file.draft_as_toml(draft_without_secrets(draft)))
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return path


def _write(path: Path, text: str) -> None:
    """Replace the file atomically, or leave it unchanged."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # only readable by its owner
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(partial).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise
