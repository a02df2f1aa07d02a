"""What of a waiting job may be asked for anew, as texts: a form and a command line write them alike."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from gputui.domain.edit import Edit
from gputui.domain.errors import InputError
from gputui.domain.job import Job, JobSpec
from gputui.domain.units import format_duration, format_size
from gputui.request import docker_specs, numbers, specs, texts

Apply = Callable[[JobSpec, str, datetime], JobSpec]
EDITABLE = (
    "name",
    "command",
    "image",
    "gpus",
    "gpu_memory",
    "gpu_model",
    "priority",
    "nice",
    "time_limit",
    "retries",
    "begin",
    "after",
    "after_any",
    "env",
)
HINTS: Mapping[str, str] = MappingProxyType(
    {
        "gpus": "2, 2-4, all, device=0,1; 0: none",
        "gpu_memory": "of each GPU in total: 40g; empty: any",
        "gpu_model": "part of its name: h100; empty: any",
        "priority": "0 to 100",
        "nice": "lowers its rank by so much",
        "time_limit": "1h30m; empty: none",
        "retries": "after a failure",
        "begin": "+1h, or 2026-03-02T18:00; empty: at once",
        "after": "ids that must complete before",
        "after_any": "ids that must end before, however",
        "env": "NAME=value sets one, -NAME removes it; others stay",
        "image": "of its container",
    }
)


def shown(job: Job) -> dict[str, str]:
    """The texts as they are now. The environment is blank: its values may be secret."""
    spec, request = job.spec, job.spec.gpus
    found = {
        "name": spec.name,
        "command": shlex.join(spec.command),
        "image": spec.image or "",
        "gpus": _gpus(job),
        "gpu_memory": format_size(request.memory) if request.memory else "",
        "gpu_model": request.model or "",
        "priority": str(job.priority),
        "nice": str(spec.nice),
        "time_limit": format_duration(spec.time_limit) if spec.time_limit else "",
        "retries": str(spec.retries),
        "begin": spec.begin_at.astimezone().isoformat(timespec="minutes") if spec.begin_at else "",
        "after": ",".join(map(str, spec.after)),
        "after_any": ",".join(map(str, spec.after_any)),
        "env": "",
    }
    return found if spec.image else {name: text for name, text in found.items() if name != "image"}


def _gpus(job: Job) -> str:
    request = job.spec.gpus
    if request.everything:
        return "all"
    if request.devices:
        return f"device={','.join(request.devices)}"
    low, high = request.minimum, request.maximum
    return str(low) if low == high else f"{low}-{high}"


def read(job: Job, before: Mapping[str, str], after: Mapping[str, str], now: datetime) -> Edit:
    """What was changed, of texts that differ; raises InputError, whose `where` is the name."""
    start = replace(job.spec, priority=job.priority)
    spec = start
    for name in EDITABLE:
        text = after.get(name, before.get(name, "")).strip()
        if name in before and text != before[name].strip():
            spec = _APPLY[name](spec, text, now)
    if not spec.gpus.minimum and not spec.gpus.devices and (spec.gpus.memory or spec.gpus.model):
        raise InputError("asks for GPUs of some kind, and for none", where="gpus")
    if spec.gpus.share and not spec.gpus.memory:
        raise InputError("is what a job that shares GPUs is promised of them", where="gpu_memory")
    return Edit.between(start, spec)


def _gpu_count(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    asked = specs.gpus(text or "0", "gpus")
    numbers_of = {name: getattr(asked, name) for name in ("minimum", "maximum", "devices", "everything")}
    return replace(spec, gpus=replace(spec.gpus, **numbers_of))


def _gpu_memory(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    return replace(spec, gpus=replace(spec.gpus, memory=numbers.size(text, "gpu_memory") if text else None))


def _gpu_model(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    return replace(spec, gpus=replace(spec.gpus, model=specs.gpu_model(text, "gpu_model") if text else None))


def _begin(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    return replace(spec, begin_at=specs.begin(text, "begin", now) if text else None)


def _command(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    command = _words(text, "command")
    if spec.is_host and not command:
        raise InputError("a host job needs a command", where="command")
    return replace(spec, command=command)


def _image(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    if spec.is_host or not text:
        raise InputError("a host job stays one, and a container too", where="image")
    return replace(spec, image=docker_specs.image(text, "image"))


def _env(spec: JobSpec, text: str, now: datetime) -> JobSpec:
    del now
    env = dict(spec.options.env)
    for word in _words(text, "env"):
        if word.startswith("-"):
            env.pop(word[1:], None)
            continue
        name, value = docker_specs.pair(word, "env")
        if value is None:
            raise InputError(f"{texts.quoted(name)} has no value", where="env", hint="write NAME=value, or -NAME")
        env[name] = value
    return replace(spec, options=replace(spec.options, env=tuple(env.items())))


def _words(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(texts.any_text(word, where) for word in shlex.split(text))
    except ValueError as error:
        raise InputError("a quotation is not closed", where=where) from error


def _one(field: str, read_text: Callable[[str, str], object], empty: object = None) -> Apply:
    """A field of the spec that is read alone; blank means `empty`, or is refused for `...`."""

    def apply(spec: JobSpec, text: str, now: datetime) -> JobSpec:
        del now
        if not text and empty is ...:
            raise InputError("wants a value", where=field)
        return replace(spec, **{field: read_text(text, field) if text else empty})  # type: ignore[arg-type]

    return apply


_APPLY: Mapping[str, Apply] = MappingProxyType(
    {
        "name": _one("name", texts.job_name, ...),
        "command": _command,
        "image": _image,
        "gpus": _gpu_count,
        "gpu_memory": _gpu_memory,
        "gpu_model": _gpu_model,
        "priority": _one("priority", numbers.priority, ...),
        "nice": _one("nice", numbers.nice, 0),
        "time_limit": _one("time_limit", numbers.time_limit),
        "retries": _one("retries", numbers.retries, 0),
        "begin": _begin,
        "after": _one("after", numbers.job_ids, ()),
        "after_any": _one("after_any", numbers.job_ids, ()),
        "env": _env,
    }
)
