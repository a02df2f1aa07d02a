"""A job's spec as the draft that asks for it: to submit another like it."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gputui.domain.job import DEFAULT_BACKOFF, NORMAL_PRIORITY, ContainerOptions, GpuRequest, JobSpec, LimitWarning
from gputui.request import gpu_specs
from gputui.request.draft import YES
from gputui.request.submitter import HOST_ENV

_UNITS = (("t", 1024**4), ("g", 1024**3), ("m", 1024**2), ("k", 1024))
_PARTS = (("d", 86_400), ("h", 3_600), ("m", 60))


def of_spec(spec: JobSpec, now: datetime) -> dict[str, str]:
    """The draft that asks for the same; a time to begin that is over is left out.

    A host process finds its programs as its submitter does, so those variables are the next submitter's.
    """
    begin = spec.begin_at if spec.begin_at and spec.begin_at > now else None
    texts = {
        "image": spec.image or "",
        "command": shlex.join(spec.command),
        **_resources(spec.gpus),
        "gpu_memory_step": _size(spec.gpu_memory_step),
        "priority": "" if spec.priority == NORMAL_PRIORITY else str(spec.priority),
        "nice": str(spec.nice) if spec.nice else "",
        "time_limit": duration(spec.time_limit),
        "signal": _warning(spec.warning),
        "retries": str(spec.retries) if spec.retries else "",
        "backoff": "" if spec.backoff == DEFAULT_BACKOFF else duration(spec.backoff),
        "retry_on": ",".join(spec.retry_on),
        "after": ",".join(map(str, spec.after)),
        "after_any": ",".join(map(str, spec.after_any)),
        "begin": begin.isoformat() if begin else "",
        "tenant": spec.tenant,
        "preemptible": YES if spec.preemptible else "",
        "name": spec.name,
        **_container(spec.options, is_host=spec.is_host),
    }
    return {name: text for name, text in texts.items() if text}


def _resources(request: GpuRequest) -> dict[str, str]:
    return {
        "gpus": gpu_specs.written(request),
        "gpu_memory": _size(request.memory),
        "gpu_model": request.model or "",
        "share": YES if request.share else "",
    }


def _container(options: ContainerOptions, *, is_host: bool) -> dict[str, str]:
    env = [(name, value) for name, value in options.env if not (is_host and name in HOST_ENV)]
    return {
        "env": _pairs(env),
        "volume": shlex.join(options.volumes),
        "mount": shlex.join(options.mounts),
        "workdir": options.workdir or "",
        "user": options.user or "",
        "entrypoint": options.entrypoint or "",
        "cpus": "" if options.cpus is None else f"{options.cpus:.9f}".rstrip("0").rstrip("."),
        "cpu_shares": "" if options.cpu_shares is None else str(options.cpu_shares),
        "memory": _size(options.memory),
        "shm_size": _size(options.shm_size),
        "ipc": options.ipc or "",
        "network": options.network or "",
        "ulimit": shlex.join(options.ulimits),
        "label": _pairs(options.labels),
        "runtime": options.runtime or "",
    }


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return shlex.join(f"{name}={value}" for name, value in pairs)


def hidden(spec: JobSpec) -> Mapping[str, str]:
    """The values of its environment, by name."""
    return dict(spec.options.env)


def _size(size: int | None) -> str:
    """The size to the byte, in the largest unit that goes into it."""
    if size is None:
        return ""
    letter, unit = next(((letter, unit) for letter, unit in _UNITS if size and size % unit == 0), ("", 1))
    return f"{size // unit}{letter}"


def duration(length: timedelta | None) -> str:
    """The duration to the microsecond."""
    if length is None:
        return ""
    seconds, shown = length.total_seconds(), ""
    if not seconds.is_integer():
        return f"{seconds:.6f}".rstrip("0")
    left = int(seconds)
    for letter, unit in _PARTS:
        count, left = divmod(left, unit)
        shown += f"{count}{letter}" if count else ""
    return shown + (f"{left}s" if left or not shown else "")


def _warning(warning: LimitWarning | None) -> str:
    if warning is None:
        return ""
    try:
        name = signal.Signals(warning.number).name.removeprefix("SIG")
    except ValueError:
        name = str(warning.number)
    return f"{name}@{duration(warning.before)}"
