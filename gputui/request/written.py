"""A job's spec as the draft that asks for it: to submit another like it."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable, Mapping
from datetime import datetime

from gputui.domain.job import DEFAULT_BACKOFF, NORMAL_PRIORITY, ContainerOptions, GpuRequest, JobSpec, LimitWarning
from gputui.request import gpu_specs
from gputui.request.docker_keys import DOCKER_KEYS
from gputui.request.key import YES
from gputui.request.numbers import duration_text, size_text
from gputui.request.submitter import is_taken_over


def of_spec(spec: JobSpec, now: datetime) -> dict[str, str]:
    """The draft that asks for the same; a time to begin that is over is left out.

    A host process finds its programs as its submitter does, so those variables are the next submitter's.
    """
    begin = spec.begin_at if spec.begin_at and spec.begin_at > now else None
    texts = {
        "image": spec.image or "",
        "command": shlex.join(spec.command),
        **_resources(spec.gpus),
        "gpu_memory_step": size_text(spec.gpu_memory_step),
        "priority": "" if spec.priority == NORMAL_PRIORITY else str(spec.priority),
        "nice": str(spec.nice) if spec.nice else "",
        "time_limit": duration_text(spec.time_limit),
        "signal": _warning(spec.warning),
        "retries": str(spec.retries) if spec.retries else "",
        "backoff": "" if spec.backoff == DEFAULT_BACKOFF else duration_text(spec.backoff),
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
        "gpu_memory": size_text(request.memory),
        "gpu_model": request.model or "",
        "share": YES if request.share else "",
    }


def _container(options: ContainerOptions, *, is_host: bool) -> dict[str, str]:
    env = [(name, value) for name, value in options.env if not (is_host and is_taken_over(name))]
    texts = {key.name: key.written(getattr(options, key.field)) for key in DOCKER_KEYS if key.field}
    return {**texts, "env": _pairs(env), "label": _pairs(options.labels)}


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return shlex.join(f"{name}={value}" for name, value in pairs)


def hidden(spec: JobSpec) -> Mapping[str, str]:
    """The values of its environment, by name."""
    return dict(spec.options.env)


def _warning(warning: LimitWarning | None) -> str:
    if warning is None:
        return ""
    try:
        name = signal.Signals(warning.number).name.removeprefix("SIG")
    except ValueError:
        name = str(warning.number)
    return f"{name}@{duration_text(warning.before)}"
