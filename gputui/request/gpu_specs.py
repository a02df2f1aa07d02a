"""The value of `--gpus`: a number, a range, or the comma-separated fields that `docker run --gpus` takes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable

from gputui.domain.errors import InputError
from gputui.domain.job import GpuRequest, Pairs
from gputui.request import numbers
from gputui.request.texts import any_text, quoted

MAX_GPUS = 1024
CAPABILITIES = ("compute", "compat32", "graphics", "utility", "video", "display", "gpu", "nvidia")
"""Names an engine knows; `all` is not among them."""
_KEYS = ("count", "device", "capabilities", "driver", "options")
_LISTS = frozenset({"device", "capabilities", "options"})
_gpu_count = numbers.whole(0, MAX_GPUS)


def gpus(text: str, where: str) -> GpuRequest:
    """Return the request meant by `2`, `2-4`, `all`, `device=0,GPU-…` or `"device=0,1","capabilities=video"`."""
    fields = _fields(any_text(text, where), where)
    if "driver" in fields and fields["driver"] not in (["nvidia"], [""]):
        hint = "leave it out, or write driver=nvidia"
        raise InputError(f"{quoted(','.join(fields['driver']))} is not a GPU driver here", where=where, hint=hint)
    request = _chosen(fields, where)
    return GpuRequest(
        request.minimum,
        request.maximum,
        request.devices,
        request.everything,
        capabilities=_capabilities(fields.get("capabilities"), where),
        driver="".join(fields.get("driver", ())) or None,
        driver_options=_options(fields.get("options", ()), where),
    )


def _fields(text: str, where: str) -> dict[str, list[str]]:
    """Return the fields by key. A bare word is a count, or goes on with the list before it where it fits there."""
    found: dict[str, list[str]] = {}
    last = ""
    for field in _split(text, where):
        key, equals, value = field.partition("=")
        if not equals and _continues(last, key):
            found[last].append(key)
            continue
        last = key if equals else "count"
        if last not in _KEYS:
            raise InputError(f"{quoted(last)} is not a key", where=where, hint=", ".join(_KEYS))
        if last in found:
            raise InputError(f"{last} is given twice", where=where)
        values = (value if equals else key).split(",") if last in _LISTS else [value if equals else key]
        found[last] = values
    return found


def _split(text: str, where: str) -> list[str]:
    """Return the comma-separated fields, each of which may be quoted as in CSV."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InputError(f"{quoted(text)} is not a list of fields: {error}", where=where) from error
    return rows[0] if rows and rows[0] else [""]


def _continues(last: str, word: str) -> bool:
    """Whether a bare word belongs to the list of `last`: shells take away the quotes docker wants around it."""
    if last == "device":
        return True
    return last == "capabilities" and word in CAPABILITIES


def _chosen(fields: dict[str, list[str]], where: str) -> GpuRequest:
    if "device" in fields and "count" in fields:
        raise InputError("names devices and a count", where=where, hint="write one of them")
    if "device" in fields and fields["device"] != ["all"]:
        return _devices(fields["device"], where)
    count = "all" if "device" in fields else "".join(fields.get("count", ["1"]))
    if count == "all" or ("count" in fields and len(fields) > 1 and count == "-1"):
        return GpuRequest(1, MAX_GPUS, everything=True)
    return _counted(count, where)


def _counted(text: str, where: str) -> GpuRequest:
    low, dash, high = text.partition("-")
    if not re.fullmatch(r"\d+", low, re.ASCII):
        raise InputError(f"{quoted(text)} asks for no GPUs", where=where, hint="write 2, 2-4, all or device=0,1")
    minimum = _gpu_count(low, where)
    maximum = _gpu_count(high, where) if dash else minimum
    if dash and not 1 <= minimum <= maximum:
        raise InputError(f"{quoted(text)} is not a range", where=where, hint="write the smaller first, from 1 on")
    return GpuRequest(minimum, maximum)


def _devices(given: list[str], where: str) -> GpuRequest:
    names = tuple(str(int(name)) if re.fullmatch(r"\d{1,4}", name, re.ASCII) else name for name in given)
    for name in names:
        if not re.fullmatch(r"\d{1,4}|(GPU|MIG)-[0-9a-zA-Z/-]{4,100}", name, re.ASCII):
            hint = "an index, or a UUID that begins with GPU- or MIG-"
            raise InputError(f"{quoted(name)} names no GPU", where=where, hint=hint)
    if len(set(names)) < len(names):
        raise InputError("names a GPU twice", where=where)
    if len(names) > MAX_GPUS:
        raise InputError(f"names {len(names)} GPUs", where=where, hint=f"at most {MAX_GPUS}")
    return GpuRequest(len(names), len(names), devices=names)


def _capabilities(names: Iterable[str] | None, where: str) -> tuple[str, ...]:
    listed = tuple(names or ())
    for name in listed:
        if name not in CAPABILITIES:
            hint = "known: " + ", ".join(CAPABILITIES) + "; -e NVIDIA_DRIVER_CAPABILITIES=all asks for every one"
            raise InputError(f"{quoted(name)} is not a driver capability", where=where, hint=hint)
    return listed


def _options(words: Iterable[str], where: str) -> Pairs:
    pairs = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
    if not all(name for name, _ in pairs):
        raise InputError("an option of the driver has no name", where=where, hint="write options=NAME=VALUE")
    return pairs


def written(request: GpuRequest) -> str:
    """Return the value that asks for the same: `2`, `2-4`, `all`, `device=…`, with docker's further fields if any."""
    fields = [_count_written(request)]
    fields += [f"capabilities={','.join(request.capabilities)}"] if request.capabilities else []
    fields += [f"driver={request.driver}"] if request.driver else []
    fields += (
        [f"options={','.join('='.join(pair) for pair in request.driver_options)}"] if request.driver_options else []
    )
    return fields[0] if len(fields) == 1 else ",".join(map(_quoted_field, fields))


def _count_written(request: GpuRequest) -> str:
    if request.everything:
        return "all"
    if request.devices:
        return "device=" + ",".join(request.devices)
    if request.minimum == request.maximum:
        return str(request.minimum)
    return f"{request.minimum}-{request.maximum}"


def _quoted_field(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field
