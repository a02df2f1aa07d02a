"""What the submit form consists of, and what is wrong with what was typed into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from gputui.domain.errors import InputError
from gputui.domain.job import JobSpec, Submission
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.engine.bounds import limited
from gputui.request import draft as drafts
from gputui.request import further
from gputui.request.draft import Draft
from gputui.request.keys import BY_NAME, KEYS, Kind
from gputui.request.submitter import Submitter

START: Draft = {"gpus": "1"}
"""What the form begins with."""
USUAL = (
    ("image",),
    ("command",),
    ("gpus", "gpu_memory"),
    ("gpu_model", "share"),
    ("priority", "retries"),
    ("time_limit", "signal"),
    ("name", "tenant"),
    ("env",),
    ("volume",),
    ("workdir",),
    ("after", "begin"),
    ("array", "hold"),
)
"""The fields that are always there, row by row."""
MORE = (
    ("mount",),
    ("entrypoint", "user"),
    ("after_any", "preemptible"),
    ("nice", "backoff"),
    ("retry_on", "gpu_memory_step"),
    ("cpus", "cpu_shares"),
    ("memory", "shm_size"),
    ("ipc", "network"),
    ("env_file", "runtime"),
    ("ulimit", "env_all"),
    ("label",),
    ("publish",),
    (further.FIELD,),
)
"""Those that are folded away."""
ROWS = (*USUAL, *MORE)
FIELDS = tuple(name for row in ROWS for name in row)
FLAGS = frozenset(key.name for key in KEYS if key.kind is Kind.FLAG)
HINTS = {
    "image": "python:3.11; empty: a command of this host",
    "command": "python train.py --epochs 3",
    "gpus": "2, 2-4, all, device=0,1",
    "gpu_memory": "40g, of each; or any",
    "gpu_model": "h100; or any",
    "share": "GPUs with others",
    "priority": "0 to 100, else 50",
    "retries": "after a failure: 3",
    "time_limit": "1h30m, 2-12:00:00",
    "signal": "before it: TERM@60",
    "name": "the queue's word for it",
    "tenant": "else you",
    "env": "NAME=value NAME2='two words' NAME3",
    "volume": "/data:/data:ro ./out:/out",
    "workdir": "/work",
    "after": "ids that must succeed",
    "begin": "+1h, 2026-03-02T18:00",
    "array": "0-9%2",
    "hold": "until released",
    "mount": "type=bind,source=/data,target=/data",
    "entrypoint": "instead of the image's",
    "user": "name, or uid:gid",
    "after_any": "ids that must end",
    "preemptible": "by higher classes",
    "nice": "lowers its rank: 100",
    "backoff": "before a retry: 5s",
    "retry_on": "1,75,OOM,TIMEOUT",
    "gpu_memory_step": "more of it a retry: 8g",
    "cpus": "4, 1.5",
    "cpu_shares": "2 to 262144",
    "memory": "64g",
    "shm_size": "16g",
    "ipc": "host, private",
    "network": "host, or a name",
    "env_file": "a file's path",
    "runtime": "of the engine",
    "ulimit": "memlock=-1 nofile=1024:4096",
    "label": "NAME=value",
    "publish": "auto:8888 127.0.0.1:80:80",
    "further": "--cap-add SYS_PTRACE --device /dev/infiniband --privileged …",
    "env_all": "host jobs: all of it",
}

_LABELS = {
    "gpus": "GPUs",
    "gpu_memory": "GPU memory",
    "gpu_model": "GPU model",
    "gpu_memory_step": "memory step",
    "cpus": "CPUs",
    "cpu_shares": "CPU shares",
    "ipc": "IPC",
    "further": "docker run",
}


@dataclass(frozen=True)
class Origin:
    """Who submits, from where, to what."""

    user: str
    directory: str
    environ: Mapping[str, str]
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    runtimes: tuple[str, ...] = ()
    """Those of the node, as far as they are known."""

    def at(self, snapshot: Snapshot) -> Origin:
        """The same, to the node of this picture."""
        names = tuple(runtime.name for node in snapshot.nodes for runtime in node.runtimes)
        return replace(self, runtimes=names)

    def submitter(self, now: datetime) -> Submitter:
        """As those who read requests know it."""
        return Submitter(self.user, now, Path(self.directory), self.environ)


def submission(draft: Draft, origin: Origin, now: datetime) -> Submission:
    """The submission meant; raises InputError, whose `where` is the field."""
    return within(drafts.asked(draft, origin.submitter(now)), origin)


def within(asked: Submission, origin: Origin) -> Submission:
    """The same; raises InputError, whose `where` is the field, where it is not to be had here."""
    _check_runtime(asked, origin)
    try:
        limited(asked.spec, origin.scheduler)
    except InputError as error:
        raise InputError(error.what, where=field_of(error), hint=error.hint) from error
    return asked


def _check_runtime(asked: Submission, origin: Origin) -> None:
    is_processes_only = bool(origin.runtimes) and "docker" not in origin.runtimes
    if asked.spec.is_host and not origin.scheduler.host_jobs and not is_processes_only:
        raise InputError("host jobs are switched off here", where="image", hint="name an image")
    if not asked.spec.is_host and is_processes_only:
        hint = "leave it empty: the command is a process of this host"
        raise InputError("there is no engine here to run an image", where="image", hint=hint)


def faults(draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
    """What is wrong with each field, for as many as can be told at once."""
    found = drafts.faults(draft, origin.submitter(now))
    if not found:
        try:
            submission(draft, origin, now)
        except InputError as error:
            found[field_of(error) or "image"] = error
    return placed_faults(found)


def placed_faults(found: Mapping[str, InputError]) -> dict[str, str]:
    """Return what is wrong by field, in words; with an option that has no field of its own its name is told."""
    told: dict[str, str] = {}
    for name, error in found.items():
        option = f"{BY_NAME[name].option}: " if name in further.NAMES else ""
        told.setdefault(place_of(name), option + fault_words(error))
    return told


def place_of(name: str) -> str:
    """Return the field in which that part of a draft is."""
    return further.FIELD if name in further.NAMES else name


def fault_words(error: InputError) -> str:
    """What is wrong, and what to write."""
    return plain(error.what + (f": {_fields(error.hint)}" if error.hint else ""), 300)


def field_of(error: InputError) -> str:
    """The field that the error is about; empty where it is none."""
    name = (error.where or "").partition(" ")[0].removeprefix("--").replace("-", "_").lower()
    return place_of(name) if place_of(name) in FIELDS else ""


def _fields(hint: str) -> str:
    """The hint, which says what to add by its label."""
    name = hint.removeprefix("add ").removeprefix("--").replace("-", "_")
    return f"fill in {label(name)}" if hint.startswith("add ") and name in BY_NAME else hint


def label(name: str) -> str:
    """What a field is called."""
    return _LABELS.get(name, name.replace("_", " "))


def is_folded(draft: Draft) -> bool:
    """Whether nothing of it is in the fields that are folded away."""
    return not any(drafts.text_of(draft, name) for name in (*further.NAMES, *(name for row in MORE for name in row)))


def gpus_alone(draft: Draft, origin: Origin, now: datetime) -> JobSpec | None:
    """A spec that asks for the same GPUs, whatever else is wrong; None where that is wrong too."""
    for names in (("gpus", "gpu_memory", "gpu_model", "share"), ("gpus",)):
        try:
            kept = {name: draft.get(name, "") for name in names}
            return drafts.asked({**kept, "image": "any"}, origin.submitter(now)).spec
        except InputError:
            continue
    return None


def left_out(dropped: Iterable[tuple[str, str]]) -> str:
    """What of a line a job cannot have, with what to do instead, each hint once."""
    by_hint: dict[str, list[str]] = {}
    for option, hint in dropped:
        by_hint.setdefault(hint, []).append(option)
    words = "; ".join(f"{', '.join(options)} ({hint})" for hint, options in by_hint.items())
    return f"Left out: {words}" if words else ""
