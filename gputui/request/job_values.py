"""Values of options and job files as people write them: texts, numbers, durations, sizes and what jobs ask for."""

from __future__ import annotations

import re
import signal
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import InputError
from gputui.domain.job_spec import (
    MAX_BYTES,
    MAX_ELEMENTS,
    MAX_NAME,
    MAX_NUMBER,
    MAX_PRIORITY,
    MAX_TENANT,
    GpuRequest,
    LimitWarning,
    Pairs,
)
from gputui.domain.text import csv_field, parse_duration, parse_size, parse_time_span, quoted

_JOINERS = "\u200c\u200d"
"""Format characters needed by emoji and several scripts; the others can reorder displayed text."""


def any_text(text: str, where: str) -> str:
    """Return a text that can be passed to a program and stored in a file."""
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError("is not UTF-8 text", where=where) from error
    if size > MAX_BYTES:
        raise InputError(f"is {size} bytes long", where=where, hint=f"at most {MAX_BYTES}")
    return text


def one_line(text: str, where: str, limit: int = 512) -> str:
    """Return a text that is not blank, at most `limit` long, and cannot move a cursor or reverse text."""
    if not text.strip():
        raise InputError("is blank", where=where)
    if len(text) > limit:
        raise InputError(f"is {len(text)} characters long", where=where, hint=f"at most {limit}")
    if not (text.isascii() and text.isprintable()):
        import unicodedata

        for character in text:
            category = unicodedata.category(character)
            if category == "Cs":
                raise InputError("is not UTF-8 text", where=where)
            if category in {"Cc", "Zl", "Zp"} or (category == "Cf" and character not in _JOINERS):
                raise InputError(f"has the control character U+{ord(character):04X}", where=where)
    return text


job_name = partial(one_line, limit=MAX_NAME)
tenant_name = partial(one_line, limit=MAX_TENANT)
gpu_model = partial(one_line, limit=80)


def token(text: str, where: str) -> str:
    """Return one word without blanks, such as a user, a network or a runtime."""
    if re.search(r"\s", one_line(text, where, 256)):
        raise InputError(f"{quoted(text)} has a blank in it", where=where)
    return text


_UNITS = (("t", 1024**4), ("g", 1024**3), ("m", 1024**2), ("k", 1024))
_PARTS = (("d", 86_400), ("h", 3_600), ("m", 60))


def whole(low: int, high: int, text: str, where: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise InputError(f"{quoted(text)} is not a whole number", where=where, hint=f"{low} to {high}")
    if not low <= int(text) <= high:
        raise InputError(f"{text} is out of range", where=where, hint=f"{low} to {high}")
    return int(text)


priority = partial(whole, 0, MAX_PRIORITY)
nice = partial(whole, -10_000, 10_000)
retries = partial(whole, 0, 1000)
cpu_shares = partial(whole, 2, 262_144)
job_id = partial(whole, 1, MAX_NUMBER)
tail = partial(whole, 0, 10**9)
attempt = partial(whole, 1, 10**6)
size, duration, time_span = parse_size, parse_duration, parse_time_span


def cpus(text: str, where: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?|\.\d{1,9}", text, re.ASCII):
        raise InputError(f"{quoted(text)} is not a number of CPUs", where=where, hint="write 2 or 1.5")
    if not 0.01 <= float(text) <= 8192:
        raise InputError(f"{text} is out of range", where=where, hint="0.01 to 8192")
    return float(text)


def memory(text: str, where: str) -> int:
    """Return a memory limit; engines refuse less than 6 MiB."""
    value = parse_size(text, where=where)
    if value < 6 * 1024**2:
        raise InputError(f"{quoted(text)} is too little to start a container", where=where, hint="at least 6m")
    return value


def job_ids(text: str, where: str) -> tuple[int, ...]:
    """Return the ids of `7`, `7,9` or `7-9`, each once, in the order given."""
    ids: dict[int, None] = {}
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isascii() and low.isdigit()):
            raise InputError(f"{quoted(text)} is not a job id", where=where, hint="write 7, 7,9 or 7-9")
        first = job_id(low, where)
        last = job_id(high, where) if dash else first
        if not first <= last < first + 100_000 or len(ids) > 100_000:
            raise InputError(f"{quoted(part)} is not a range of job ids", where=where)
        ids.update(dict.fromkeys(range(first, last + 1)))
    return tuple(ids)


def size_text(size: int | None) -> str:
    if size is None:
        return ""
    letter, unit = next(((letter, unit) for letter, unit in _UNITS if size and size % unit == 0), ("", 1))
    return f"{size // unit}{letter}"


def duration_text(length: timedelta | None) -> str:
    """Return the duration, exact to the microsecond."""
    if length is None:
        return ""
    seconds, shown = length.total_seconds(), ""
    if not seconds.is_integer():
        return f"{seconds:.6f}".rstrip("0") + "s"
    left = int(seconds)
    for letter, unit in _PARTS:
        count, left = divmod(left, unit)
        shown += f"{count}{letter}" if count else ""
    return shown + (f"{left}s" if left or not shown else "")


class Array(Struct, frozen=True):
    indices: tuple[int, ...]
    limit: int | None = None
    """Maximum number of elements that run at a time."""


_PART = r"(?a)(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?"


def array(text: str, where: str) -> Array:
    """Return the elements of `0-9`, `1,3,5-9`, `0-20:5`; `%2` behind: at most two at a time (Slurm's notation)."""
    listed, percent, limit = text.strip().partition("%")
    indices: dict[int, None] = {}
    for part in map(str.strip, listed.split(",")):
        match = re.fullmatch(_PART, part)
        if not match:
            raise InputError(f"{quoted(part)} is not an array", where=where, hint="write 0-9, 1,3,5-9 or 0-9%2")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            hint = "write the smaller first" if step else "write a step from 1 on"
            raise InputError(f"{quoted(part)} is not a range", where=where, hint=hint)
        chosen = range(first, last + 1, step)
        if len(chosen) <= MAX_ELEMENTS:
            indices.update(dict.fromkeys(chosen))
        if max(len(chosen), len(indices)) > MAX_ELEMENTS:
            raise InputError("has too many elements", where=where, hint=f"at most {MAX_ELEMENTS}")
    at_once = whole(1, MAX_ELEMENTS, limit, where) if percent else None
    return Array(tuple(indices), at_once)


def sweep(text: str, where: str) -> tuple[str, str]:
    """Return name and values of `lr=1e-3,1e-4`, `seed=0-9`, `width=0-10:2` or `text="a,b",c`."""
    name, equals, values = any_text(text, where).partition("=")
    if not equals:
        raise InputError(f"{quoted(text)} has no values", where=where, hint="write lr=1e-3,1e-4 or seed=0-9")
    check_sweep(((name.strip(), values.strip()),), where)
    return name.strip(), values.strip()


def check_sweep(pairs: Pairs, where: str) -> int:
    """Return the number of elements of a sweep; raise InputError."""
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    try:
        return sweeps.check(pairs, MAX_ELEMENTS)
    except InputError as error:
        raise InputError(error.what, where=where, hint=error.hint) from error


def begin(text: str, where: str, now: datetime, after: datetime | None = None) -> datetime:
    """Return the time for `in 2h`, `18:00`, `tomorrow 09:00` or an ISO time; one without a zone is local.

    A time of day is the next one, after `after` if given.
    """
    from gputui.request import times  # few jobs have a time

    return times.moment(text, where, now, after)


class PriorityChange(Struct, frozen=True):
    value: int = 0
    relative: bool = False
    top: bool = False


def priority_change(text: str, where: str) -> PriorityChange:
    """Return the change for `70`, `+10`, `-10` or `top`."""
    if text == "top":
        return PriorityChange(top=True)
    if text[:1] in {"+", "-"}:
        return PriorityChange(whole(-100, 100, text, where), relative=True)
    return PriorityChange(priority(text, where))


MAX_GPUS = 1024
CAPABILITIES = ("compute", "compat32", "graphics", "utility", "video", "display", "gpu", "nvidia")
"""Capabilities that an engine knows; `all` is not among them."""
_KEYS = ("count", "device", "capabilities", "driver", "options")
_LISTS = frozenset({"device", "capabilities", "options"})
_gpu_count = partial(whole, 0, MAX_GPUS)


def gpus(text: str, where: str) -> GpuRequest:
    """Return the request for `2`, `2-4`, `all`, `device=0,GPU-…` or `"device=0,1","capabilities=video"`."""
    found: dict[str, list[str]] = {}
    last = ""
    for field in _split(any_text(text, where), where):
        key, equals, value = field.partition("=")
        # shells remove the quotes that docker requires around a list
        if not equals and (last == "device" or (last == "capabilities" and key in CAPABILITIES)):
            found[last].append(key)
            continue
        last = key if equals else "count"
        if last not in _KEYS:
            raise InputError(f"{quoted(last)} is not a key", where=where, hint=", ".join(_KEYS))
        if last in found:
            raise InputError(f"{last} is given twice", where=where)
        values = (value if equals else key).split(",") if last in _LISTS else [value if equals else key]
        found[last] = values
    if "driver" in found and found["driver"] not in (["nvidia"], [""]):
        hint = "leave it out, or write driver=nvidia"
        raise InputError(f"{quoted(','.join(found['driver']))} is not a GPU driver here", where=where, hint=hint)
    request = _chosen(found, where)
    pairs = tuple((name, value) for name, _, value in (word.partition("=") for word in found.get("options", ())))
    if not all(name for name, _ in pairs):
        raise InputError("an option of the driver has no name", where=where, hint="write options=NAME=VALUE")
    listed = tuple(found.get("capabilities") or ())
    for name in listed:
        if name not in CAPABILITIES:
            hint = "known: " + ", ".join(CAPABILITIES) + "; -e NVIDIA_DRIVER_CAPABILITIES=all asks for every one"
            raise InputError(f"{quoted(name)} is not a driver capability", where=where, hint=hint)
    driver = "".join(found.get("driver", ())) or None
    return replace(request, capabilities=listed, driver=driver, driver_options=pairs)


def _split(text: str, where: str) -> list[str]:
    """Return the comma-separated fields, each of which may be quoted as in CSV."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    if not any(mark in text for mark in '"\r\n'):
        return text.split(",")
    import csv  # few values have quotes

    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InputError(f"{quoted(text)} is not a list of fields: {error}", where=where) from error
    return rows[0] if rows and rows[0] else [""]


def _chosen(fields: dict[str, list[str]], where: str) -> GpuRequest:
    if "device" in fields and "count" in fields:
        raise InputError("names devices and a count", where=where, hint="write one of them")
    if "device" in fields and fields["device"] != ["all"]:
        names = tuple(str(int(name)) if re.fullmatch(r"\d{1,4}", name, re.ASCII) else name for name in fields["device"])
        for name in names:
            if not re.fullmatch(r"\d{1,4}|(GPU|MIG)-[0-9a-zA-Z/-]{4,100}", name, re.ASCII):
                hint = "an index, or a UUID that begins with GPU- or MIG-"
                raise InputError(f"{quoted(name)} names no GPU", where=where, hint=hint)
        if len(set(names)) < len(names):
            raise InputError("names a GPU twice", where=where)
        if len(names) > MAX_GPUS:
            raise InputError(f"names {len(names)} GPUs", where=where, hint=f"at most {MAX_GPUS}")
        return GpuRequest(len(names), len(names), devices=names)
    count = "all" if "device" in fields else "".join(fields.get("count", ["1"]))
    if count == "all" or ("count" in fields and len(fields) > 1 and count == "-1"):
        return GpuRequest(1, MAX_GPUS, everything=True)
    low, dash, high = count.partition("-")
    if not re.fullmatch(r"\d+", low, re.ASCII):
        hint = "write 2, 2-4, all or device=0,1"
        raise InputError(f"{quoted(count)} is not a number of GPUs", where=where, hint=hint)
    minimum = _gpu_count(low, where)
    maximum = _gpu_count(high, where) if dash else minimum
    if dash and not 1 <= minimum <= maximum:
        raise InputError(f"{quoted(count)} is not a range", where=where, hint="write the smaller first, from 1 on")
    return GpuRequest(minimum, maximum)


def gpus_text(request: GpuRequest) -> str:
    """Return the text of a request: `2`, `2-4`, `all`, `device=…`, with docker's further fields if any."""
    if request.everything:
        count = "all"
    elif request.devices:
        count = "device=" + ",".join(request.devices)
    else:
        count = str(request.minimum) + (f"-{request.maximum}" if request.minimum != request.maximum else "")
    fields = [count]
    fields += [f"capabilities={','.join(request.capabilities)}"] if request.capabilities else []
    fields += [f"driver={request.driver}"] if request.driver else []
    fields += (
        [f"options={','.join('='.join(pair) for pair in request.driver_options)}"] if request.driver_options else []
    )
    return fields[0] if len(fields) == 1 else ",".join(map(csv_field, fields))


_STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
_UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}


def warning(text: str, where: str) -> LimitWarning:
    """Return the warning for `SIGUSR1@2m`, `10@30s`, or sbatch's own notation `TERM@60`, whose unit is the second."""
    name, at, before = text.strip().partition("@")
    if not at:
        raise InputError(f"{quoted(text)} does not say when", where=where, hint="write TERM@60 or USR1@2m")
    wait = parse_duration(f"{before}s" if before.strip().isdecimal() else before, where=where)
    if wait < timedelta(seconds=1):
        hint = "at least 1 second before the limit: write TERM@60 or USR1@2m"
        raise InputError(f"{quoted(text)} is too close to the limit", where=where, hint=hint)
    number = _known_signal(name.strip(), where)
    if number in _UNCATCHABLE:
        hint = "TERM, INT or USR1"
        raise InputError(f"{quoted(name.strip())} ends a job, and warns of nothing", where=where, hint=hint)
    return LimitWarning(number, wait)


def signal_number(text: str, where: str) -> int:
    """Return the signal for `USR1`, `SIGINT` or `10`."""
    number = _known_signal(text.strip(), where)
    if number in _STOPPING:
        hint = "gputui suspend stops a job, and gputui unsuspend lets it continue"
        raise InputError(f"{quoted(text)} would stop or continue the job unseen", where=where, hint=hint)
    if not 1 <= number < signal.NSIG:
        raise InputError(f"{quoted(text)} is not a signal", where=where, hint="write TERM, USR1 or a number")
    return number


def _known_signal(name: str, where: str) -> int:
    if re.fullmatch(r"\d+", name, re.ASCII):
        return whole(1, 64, name, where)
    known = signal.Signals.__members__.get("SIG" + name.upper().removeprefix("SIG"))
    if known is None:
        raise InputError(f"{quoted(name)} is not a signal", where=where, hint="write TERM, USR1 or a number")
    return int(known)


def retry_on(text: str, where: str) -> tuple[str, ...]:
    """Return the exit codes and words of `1,75,OOM`, each once."""
    from gputui.domain.policy.retry import RETRY_WORDS  # the policy is not needed to submit

    wanted: dict[str, None] = {}
    for part in text.split(","):
        word = part.strip().upper().replace("-", "_")
        if re.fullmatch(r"\d+", word, re.ASCII):
            word = str(whole(1, 255, word, where))
        elif word not in RETRY_WORDS:
            hint = "exit codes, and " + ", ".join(RETRY_WORDS)
            raise InputError(f"{quoted(part)} is nothing to retry on", where=where, hint=hint)
        wanted[word] = None
    return tuple(wanted)
