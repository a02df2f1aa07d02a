"""What was typed into the submit form, made into a submission; every error names its field."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import PurePosixPath

from gputui.domain.errors import InputError
from gputui.domain.job import ContainerOptions, GpuRequest, JobSpec, Pairs, Submission
from gputui.domain.text import plain
from gputui.domain.units import parse_duration, parse_size

FIELDS = ("image", "command", "name", "gpus", "gpu_memory", "priority", "time_limit", "retries", "env", "volumes")
HOST_ENV = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""What a host process takes over, so that it finds the programs its submitter has."""
MAX_GPUS = 1024
MAX_NAME = 200
_DEVICE = re.compile(r"\d{1,4}|(GPU|MIG)-[0-9a-zA-Z/-]{4,100}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Draft:
    """The fields as they were typed."""

    image: str = ""
    """Empty: a host process."""
    command: str = ""
    name: str = ""
    gpus: str = "1"
    gpu_memory: str = ""
    """`10g`, or `10g share`."""
    priority: str = "50"
    time_limit: str = ""
    retries: str = "0"
    env: str = ""
    """`NAME=value` words, quoted as in a shell."""
    volumes: str = ""
    """`source:target[:mode]` words."""


@dataclass(frozen=True)
class Origin:
    """Who submits, and from where."""

    user: str
    directory: str
    environ: Mapping[str, str]
    host_jobs: bool = True


def submission(draft: Draft, origin: Origin) -> Submission:
    """The submission meant; raises InputError, whose `where` is the field."""
    image = _image(draft.image)
    command = _words(draft.command, "command")
    if image is None:
        _check_host(command, draft, origin)
    spec = JobSpec(
        image=image,
        command=command,
        name=_name(draft.name, image, command),
        tenant=origin.user,
        gpus=_with_memory(gpus(draft.gpus), draft.gpu_memory),
        priority=_whole(draft.priority, "priority", 0, 100),
        time_limit=_time_limit(draft.time_limit),
        retries=_whole(draft.retries, "retries", 0, 1000),
        options=_options(draft, origin, is_host=image is None),
    )
    return Submission(spec)


def errors(draft: Draft, origin: Origin) -> dict[str, str]:
    """What is wrong with each field, for as many as can be told at once."""
    found: dict[str, str] = {}
    checks: tuple[Callable[[], object], ...] = (
        lambda: submission(draft, origin),
        lambda: gpus(draft.gpus),
        lambda: gpu_memory(draft.gpu_memory),
        lambda: _whole(draft.priority, "priority", 0, 100),
        lambda: _time_limit(draft.time_limit),
        lambda: _whole(draft.retries, "retries", 0, 1000),
        lambda: _env(draft.env),
        lambda: _volumes(draft.volumes),
    )
    for check in checks:
        try:
            check()
        except InputError as error:
            found.setdefault(error.where or "", f"{error.what}" + (f": {error.hint}" if error.hint else ""))
    return found


def gpus(text: str) -> GpuRequest:
    """The request meant by nothing, `2`, `2-4`, `all` or `device=0,GPU-…`."""
    text = text.strip()
    if text == "all":
        return GpuRequest(1, MAX_GPUS, everything=True)
    if text.startswith("device="):
        return _devices(text.removeprefix("device="))
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text or "0", re.ASCII)
    if not match:
        raise InputError(f"'{plain(text, 40)}' asks for no GPUs", where="gpus", hint="write 2, 2-4, all or device=0,1")
    low, high = int(match[1]), int(match[2] or match[1])
    if high > MAX_GPUS or high < low or (match[2] and not low):
        raise InputError(f"'{text}' is out of range", where="gpus", hint=f"0 to {MAX_GPUS}, the smaller first")
    return GpuRequest(low, high)


def gpu_memory(text: str) -> tuple[int | None, bool]:
    """Bytes each GPU must have, and whether others may share it, as meant by nothing, `10g` or `10g share`."""
    size, *words = text.split() or [""]
    if words not in ([], ["share"]):
        raise InputError(f"'{plain(text, 40)}' is no size", where="gpu_memory", hint="write 10g, or 10g share")
    memory = parse_size(size, where="gpu_memory") if size else None
    if memory == 0:
        raise InputError("a size is above 0", where="gpu_memory")
    return memory, bool(words)


def _with_memory(request: GpuRequest, text: str) -> GpuRequest:
    memory, share = gpu_memory(text)
    if memory and not request.minimum:
        raise InputError("means nothing without GPUs", where="gpu_memory")
    return replace(request, memory=memory, share=share)


def _devices(text: str) -> GpuRequest:
    names = tuple(text.split(","))
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise InputError(f"'{plain(name, 40)}' names no GPU", where="gpus", hint="an index, or GPU-… or MIG-…")
    if len(set(names)) < len(names):
        raise InputError("a GPU is named twice", where="gpus")
    return GpuRequest(len(names), len(names), devices=names)


def _image(text: str) -> str | None:
    text = text.strip()
    if re.search(r"\s", text) or plain(text) != text or text.startswith("-"):
        raise InputError("an image is one word", where="image", hint="the command goes into the field below")
    return text or None


def _check_host(command: tuple[str, ...], draft: Draft, origin: Origin) -> None:
    if not command:
        raise InputError("name an image, or a command to run on this host", where="command")
    if not origin.host_jobs:
        raise InputError("host jobs are switched off here", where="image", hint="name an image")
    if draft.volumes.strip():
        raise InputError("a host job has no container to give that to", where="volumes")


def _words(text: str, where: str) -> tuple[str, ...]:
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError("a quotation is not closed", where=where) from error


def _name(text: str, image: str | None, command: tuple[str, ...]) -> str:
    text = text.strip()
    if len(text) > MAX_NAME:
        raise InputError(f"is longer than {MAX_NAME} characters", where="name")
    if not text.isprintable():
        raise InputError("has characters that cannot be printed", where="name")
    wished = image.rpartition("/")[2].partition("@")[0].partition(":")[0] if image else ""
    return text or wished or plain(PurePosixPath(command[0]).name if command else "job", MAX_NAME)


def _whole(text: str, where: str, least: int, most: int) -> int:
    text = text.strip()
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise InputError(f"'{plain(text, 40)}' is not {least} to {most}", where=where)
    return int(text)


def _time_limit(text: str) -> timedelta | None:
    if not text.strip():
        return None
    limit = parse_duration(text, where="time_limit")
    if not limit:
        raise InputError("a time limit is above 0", where="time_limit")
    return limit


def _env(text: str) -> Pairs:
    pairs: dict[str, str] = {}
    for word in _words(text, "env"):
        key, equals, value = word.partition("=")
        if not equals or not _VARIABLE.fullmatch(key):
            raise InputError(f"'{plain(key, 40)}' sets nothing", where="env", hint="write NAME=value")
        pairs[key] = value
    return tuple(pairs.items())


def _volumes(text: str) -> tuple[str, ...]:
    volumes = _words(text, "volumes")
    for volume in volumes:
        parts = volume.split(":")
        if not 2 <= len(parts) <= 3 or not all(parts) or not parts[1].startswith("/"):
            raise InputError(f"'{plain(volume, 40)}' is no volume", where="volumes", hint="write /source:/target[:ro]")
    return volumes


def _options(draft: Draft, origin: Origin, *, is_host: bool) -> ContainerOptions:
    env = dict(_env(draft.env))
    if is_host:
        env = {**{key: origin.environ[key] for key in HOST_ENV if key in origin.environ}, **env}
    return ContainerOptions(
        env=tuple(env.items()),
        volumes=_volumes(draft.volumes),
        workdir=origin.directory if is_host else None,
    )
