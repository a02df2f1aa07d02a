"""Defines the fields of the job form, and finds errors in their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import InputError
from gputui.domain.job_spec import Inherited, JobSpec, Submission
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.engine.actions.permissions import within_time_limits
from gputui.request import draft as drafts
from gputui.request import further_options
from gputui.request.draft import Draft
from gputui.request.job_options import BY_NAME, KEYS, OptionKind
from gputui.request.submitter import Submitter

START: Draft = {"gpus": "1"}
"""Initial draft of the form."""
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
"""The permanent fields, row by row."""
MORE = (
    ("mount",),
    ("comment",),
    ("entrypoint", "user"),
    ("after_any", "preemptible"),
    ("nice", "backoff"),
    ("retry_on", "gpu_memory_step"),
    ("cpus", "cpu_shares"),
    ("memory", "shm_size"),
    ("ipc", "network"),
    ("env_file", "runtime"),
    ("ulimit", "env_all"),
    ("label", "idle_timeout"),
    ("sweep", "sweep_limit"),
    ("publish",),
    (further_options.FIELD,),
)
"""The less common fields, which are folded."""
ROWS = (*USUAL, *MORE)
FIELDS = tuple(name for row in ROWS for name in row)
FLAGS = frozenset(key.name for key in KEYS if key.kind is OptionKind.FLAG)
HINTS = {
    "image": "python:3.11; empty: a command of this host",
    "command": "python train.py --epochs 3",
    "gpus": "2, 2-4, all, device=0,1",
    "gpu_memory": "any, e.g. 40g per GPU",
    "gpu_model": "any, e.g. h100",
    "share": "allow other jobs",
    "priority": "50 (0 to 100)",
    "retries": "after a failure: 3",
    "time_limit": "1h30m, 2-12:00:00",
    "signal": "before the limit: TERM@60",
    "name": "(image name)",
    "tenant": "(you)",
    "env": "NAME=value NAME2='two words' NAME3",
    "volume": "/data:/data:ro ./out:/out",
    "workdir": "/work",
    "after": "ids that must succeed",
    "begin": "in 2h, tomorrow 09:00",
    "array": "0-9%2",
    "hold": "until released",
    "sweep": "lr=1e-3,1e-4 seed=0-9",
    "sweep_limit": "2 at a time",
    "comment": "a note, such as: ablation without warm-up",
    "mount": "type=bind,source=/data,target=/data",
    "entrypoint": "instead of the image's",
    "user": "name, or uid:gid",
    "after_any": "ids that must end",
    "preemptible": "by higher classes",
    "nice": "behind equal jobs: 100",
    "backoff": "before a retry: 5s",
    "retry_on": "1,75,OOM,TIMEOUT",
    "gpu_memory_step": "added per retry: 8g",
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
    "idle_timeout": "without activity: 30m",
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


class Origin(Struct, frozen=True):
    """The user who submits, with directory, environment and limits."""

    user: str
    directory: str
    """Empty: the present one has been deleted."""
    environ: Mapping[str, str]
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    inherited: Inherited | None = None
    """Umask and limits of the console; None: the job is for another server."""
    runtimes: tuple[str, ...] = ()
    """Names of the node's runtimes, as far as known."""

    def at(self, snapshot: Snapshot) -> Origin:
        """Return the origin with the runtimes of a snapshot."""
        names = tuple(runtime.name for node in snapshot.nodes for runtime in node.runtimes)
        return replace(self, runtimes=names)

    def submitter(self, now: datetime) -> Submitter:
        """Return the submitter for reading requests."""
        directory = Path(self.directory) if self.directory else None
        return Submitter(self.user, now, directory, self.environ, self.inherited)


def draft_submission(draft: Draft, origin: Origin, now: datetime) -> Submission:
    """Return the submission; raises InputError, whose `where` is the field."""
    return within(drafts.asked(draft, origin.submitter(now)), origin)


def within(asked: Submission, origin: Origin) -> Submission:
    """Return the submission; raises InputError, whose `where` is the field, if it cannot run here."""
    _check_runtime(asked, origin)
    try:
        within_time_limits(asked.spec, origin.scheduler)
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
    """Return the error of each invalid field, as far as they can be found at once."""
    found = drafts.faults(draft, origin.submitter(now))
    if not found:
        try:
            draft_submission(draft, origin, now)
        except InputError as error:
            found[field_of(error) or "image"] = error
    return placed_faults(found)


def placed_faults(found: Mapping[str, InputError]) -> dict[str, str]:
    """Return the errors as text by field; an option without a field is named."""
    told: dict[str, str] = {}
    for name, error in found.items():
        option = f"{BY_NAME[name].option}: " if name in further_options.NAMES else ""
        told.setdefault(field_name(name), option + fault_words(error))
    return told


def field_name(name: str) -> str:
    """Return the field of a part of a draft."""
    return further_options.FIELD if name in further_options.NAMES else name


def fault_words(error: InputError) -> str:
    """Return the text of an error: the fault, and the hint."""
    return plain(error.what + (f": {_fields(error.hint)}" if error.hint else ""), 300)


def field_of(error: InputError) -> str:
    """Return the field of an error; empty if there is none."""
    name = (error.where or "").partition(" ")[0].removeprefix("--").replace("-", "_").lower()
    return field_name(name) if field_name(name) in FIELDS else ""


def _fields(hint: str) -> str:
    """Return the hint with options replaced by labels."""
    name = hint.removeprefix("add ").removeprefix("--").replace("-", "_")
    return f"fill in {label(name)}" if hint.startswith("add ") and name in BY_NAME else hint


def label(name: str) -> str:
    """Return the label of a field."""
    return _LABELS.get(name, name.replace("_", " "))


def is_folded(draft: Draft) -> bool:
    """Return whether the folded fields are empty."""
    return not any(
        drafts.text_of(draft, name) for name in (*further_options.NAMES, *(name for row in MORE for name in row))
    )


def gpus_alone(draft: Draft, origin: Origin, now: datetime) -> JobSpec | None:
    """Return a spec with the same GPU request, ignoring other errors; None if that part is invalid."""
    for names in (("gpus", "gpu_memory", "gpu_model", "share"), ("gpus",)):
        try:
            kept = {name: draft.get(name, "") for name in names}
            return drafts.asked({**kept, "image": "any"}, origin.submitter(now)).spec
        except InputError:
            continue
    return None


def left_out(dropped: Iterable[tuple[str, str]]) -> str:
    """Return the options of a line that a job cannot have, each hint once."""
    by_hint: dict[str, list[str]] = {}
    for option, hint in dropped:
        by_hint.setdefault(hint, []).append(option)
    words = "; ".join(f"{', '.join(options)} ({hint})" for hint, options in by_hint.items())
    return f"Left out: {words}" if words else ""
