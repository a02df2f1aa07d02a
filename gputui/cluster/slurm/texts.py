"""Values in the output of Slurm's commands: times, durations, lists of hosts and indices, GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

NOTHING = frozenset({"", "N/A", "n/a", "(null)", "None", "Unknown", "NONE", "(none)"})
_LONGEST_TIME = 253402300799
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_GRES = re.compile(
    r"(?:gres[:/])?gpu(?:[:=/](?P<type>[^:,=()\s]*[^\d:,=()\s][^:,=()\s]*))?(?:[:=](?P<count>\d+))?(?P<rest>\([^)]*\))?"
)
_IDX = re.compile(r"IDX:([\d,-]+)")
_SHARED = re.compile(r"(?:gres[:/])?(?P<kind>shard|mps)[:\w.-]*\((?P<places>[^)]*)\)")
_PART = re.compile(r"(\d{1,9})/(\d{1,9})")
MOST_HOSTS = 100_000


def some(text: str) -> str:
    """Return the text, or nothing for Slurm's words for nothing."""
    return "" if text in NOTHING else text


def moment(text: str) -> datetime | None:
    """Return the time of a count of seconds since 1970; None for Slurm's words for no time."""
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= _LONGEST_TIME:
        return None
    return datetime.fromtimestamp(int(text), UTC)


def span(text: str) -> timedelta | None:
    """Return the duration of `2-03:04:05`, `3:04:05`, `4:05` or minutes; None for UNLIMITED and the like."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, *fields = [None if part is None else int(part) for part in match.groups()]
    known = [part for part in fields if part is not None]
    if days is not None:  # begins with hours
        hours, minutes, seconds = (*known, 0, 0)[:3]
    elif len(known) == 1:
        hours, minutes, seconds = 0, known[0], 0
    else:  # ends with seconds
        hours, minutes, seconds = (0, *known)[-3:]
    return timedelta(days=days or 0, hours=hours, minutes=minutes, seconds=seconds)


def numbers(text: str) -> list[int]:
    """Return the numbers of `0,2,4-10:2`; raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        span_text, _, step = part.partition(":")
        first, dash, last = span_text.partition("-")
        found += range(int(first), int(last if dash else first) + 1, int(step or 1))
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Return the names in a list of hosts: `gpu[1-3,07],login`."""
    found: list[str] = []
    for part in _host_parts(some(text)):
        found += _expanded(part)
        if len(found) > MOST_HOSTS:
            break
    return tuple(found)


def _host_parts(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part:
        yield part


def _expanded(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    ranges, closing, after = rest.partition("]")
    if not bracket or not closing:
        return [part]
    tails = _expanded(after) if after else [""]
    return [f"{before}{number}{tail}" for number in _padded(ranges) for tail in tails]


def _padded(ranges: str) -> Iterator[str]:
    """Yield the numbers of `1-3,07-09` with their leading zeros."""
    for each in ranges.split(","):
        first, dash, last = each.partition("-")
        if not dash or not (first.isdigit() and last.isdigit()):
            yield each
            continue
        for number in range(int(first), min(int(last), int(first) + MOST_HOSTS) + 1):
            yield f"{number:0{len(first)}}"


def gpu_count(text: str) -> int:
    """Return the number of GPUs in a list of resources: `gres:gpu:h200:2`, `gpu:2(S:0)`, `gres/gpu=4`."""
    kinds = gpu_lists(text)
    totals = [count for model, count, _ in kinds if not model]
    return sum(totals if totals and "=" in text else [count for _, count, _ in kinds])  # TRES repeat the total by model


def gpu_lists(text: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return model, number and indices of each kind of GPU in a list of resources.

    The list may be Gres, GresUsed or GRES of a node or job: `gpu:h200:2(IDX:0-1)`. A model is empty where none is
    named, and indices where none are.
    """
    found = []
    for part in re.split(r",(?![^(]*\))", some(text)):
        match = _GRES.fullmatch(part.strip())
        if match is None:
            continue
        places = _IDX.search(match["rest"] or "")
        found.append((match["type"] or "", int(match["count"] or 1), tuple(numbers(places[1])) if places else ()))
    return found


def shared_gpus(text: str) -> dict[int, float]:
    """Return the GPUs of which a list of resources has parts, as shards or by MPS, with the share of each.

    `shard:h200:3(3/4,0/4),mps:a100:0(0/100)` tells of every GPU in turn; before Slurm 23.02 `shard:3(IDX:0)` tells only
    which GPUs, whose share then counts as 1.
    """
    found: dict[int, float] = {}
    seen: dict[str, int] = {}
    for match in _SHARED.finditer(some(text)):
        kind, places = match["kind"], match["places"]
        parts = [(int(used), int(total)) for used, total in _PART.findall(places)]
        first = seen.get(kind, 0)
        seen[kind] = first + len(parts)
        found |= {first + place: used / total for place, (used, total) in enumerate(parts) if used and total}
        if named := _IDX.search(places):
            found |= dict.fromkeys(numbers(named[1]), 1.0)
    return found
