"""Requests of a program for new jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

Command: TypeAlias = str | Sequence[str]
"""Words of a command; text is split as a shell would, and runs without one."""
Seconds: TypeAlias = float | timedelta


class JobOptions(TypedDict, total=False):
    """Options of a job besides its command; a missing one has its default."""

    image: str
    """Image of its container. Without one it is a process of the host, in this directory and environment."""
    name: str
    tenant: str
    comment: str
    gpus: int | tuple[int, int] | Sequence[str]
    """Number of GPUs, the least and the most, `"all"`, or UUIDs and indices of particular ones."""
    gpu_memory: int
    """Bytes that each GPU must have."""
    gpu_model: str
    share: bool
    """Allows other jobs on its GPUs; `gpu_memory` is then promised to it."""
    priority: int
    """0 to 100, 50 is normal."""
    time_limit: Seconds
    idle_timeout: Seconds
    retries: int
    after: Sequence[int]
    """Jobs that must be COMPLETED before it starts."""
    after_any: Sequence[int]
    begin_at: datetime
    preemptible: bool
    held: bool
    env: Mapping[str, str]
    volumes: Sequence[str]
    """`source:target[:mode]`."""
    workdir: str
    labels: Mapping[str, str]
    options: Mapping[str, Any]
    """Further options of `docker run`, by the names in `ContainerOptions` of openapi.json."""
    anyway: bool
    """Also if this server does not have such GPUs now."""
    key: str
    """Idempotency key: with the same one the same request is one job, however often a program is run."""


_SPEC = ("image", "name", "tenant", "priority", "retries", "after", "after_any", "begin_at", "preemptible", "comment")
_GPUS = {"gpu_memory": "memory", "gpu_model": "model", "share": "share"}
_PAIRS = ("env", "labels")
_ALL = 1024
"""The most GPUs of a job."""


def submission(command: Command, given: dict[str, Any], is_here: bool) -> dict[str, Any]:
    """Return the request for a job, as JSON has it; raises TypeError for an option that does not exist."""
    words = shlex.split(command) if isinstance(command, str) else [str(each) for each in command]
    spec = {name: given.pop(name) for name in _SPEC if name in given}
    spec |= {name: _duration(given.pop(name)) for name in ("time_limit", "idle_timeout") if name in given}
    gpus = _count(given.pop("gpus")) if "gpus" in given else {}
    gpus |= {ours: given.pop(name) for name, ours in _GPUS.items() if name in given}
    options = dict(given.pop("options", {}))
    options |= {name: list(given.pop(name).items()) for name in _PAIRS if name in given}
    options |= {name: given.pop(name) for name in ("volumes", "workdir") if name in given}
    found = {"spec": {**spec, "command": words, "gpus": gpus, "options": options}, "held": given.pop("held", False)}
    if given:
        raise TypeError(f"there is no option {', '.join(sorted(given))}")
    if spec.get("image") is None and is_here:
        found["spec"] |= _taken_over(options)
    named = spec.get("image") or (words[0] if words else "")
    found["spec"].setdefault("name", Path(named.partition("@")[0]).name.partition(":")[0][:100] or "job")
    return found


def _taken_over(options: dict[str, Any]) -> dict[str, Any]:
    """Return what a host job takes over from this process, as that of `gputui submit --host` does."""
    from gputui.request.inherited import inherited, is_taken_over, not_utf8

    odd = not_utf8(os.environ)
    env = {name: value for name, value in os.environ.items() if is_taken_over(name) and name not in odd}
    env |= dict(options.get("env", ()))
    return {"inherited": inherited(), "options": {"workdir": str(Path.cwd()), **options, "env": list(env.items())}}


def _count(wanted: int | tuple[int, int] | Sequence[str]) -> dict[str, Any]:
    if isinstance(wanted, int):
        return {"minimum": wanted, "maximum": wanted}
    if isinstance(wanted, str):
        return {"minimum": 1, "maximum": _ALL, "everything": True} if wanted == "all" else _count([wanted])
    if isinstance(wanted, tuple) and len(wanted) == 2 and all(isinstance(each, int) for each in wanted):
        return {"minimum": wanted[0], "maximum": wanted[1]}
    return {"minimum": len(wanted), "maximum": len(wanted), "devices": [str(each) for each in wanted]}


def _duration(given: Seconds) -> timedelta:
    return given if isinstance(given, timedelta) else timedelta(seconds=given)
