"""Defines the fields of the job form, finds errors in their texts, and keeps drafts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.cluster import GPUTUI, Caps
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job_spec import Inherited, JobSpec, Submission, runtime_in
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain, width
from gputui.engine.actions.permissions import within_time_limits
from gputui.request import draft as drafts
from gputui.request import job_file
from gputui.request.draft import NAMES, Draft, draft_without_secrets, env_names, filled_texts
from gputui.request.job_options import BY_NAME, KEYS, OptionKind
from gputui.request.submitter import Submitter
from gputui.tui.preferences import Preferences, replace_text

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
    (drafts.FURTHER,),
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


def hints(caps: Caps) -> Mapping[str, str]:
    """Return the hint of each field; those on hosts and GPUs differ where an engine chooses node and GPUs."""
    if caps.engine == GPUTUI:
        return HINTS
    image = "python:3.11" if "host" in caps.options else "python:3.11; empty: a command of a node"
    return {**HINTS, "image": image, "gpus": "2"}


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
    lacking: Mapping[str, str] = {}
    """Sentence for each option that the cluster lacks."""

    def at(self, snapshot: Snapshot) -> Origin:
        """Return the origin with the runtimes of a snapshot."""
        names = tuple(runtime.name for node in snapshot.nodes for runtime in node.runtimes)
        return replace(self, runtimes=names)

    def submitter(self, now: datetime) -> Submitter:
        directory = Path(self.directory) if self.directory else None
        return Submitter(self.user, now, directory, self.environ, self.inherited)


def draft_submission(draft: Draft, origin: Origin, now: datetime) -> Submission:
    """Return the submission; raises InputError, whose `where` is the field."""
    return within(drafts.asked(draft, origin.submitter(now)), origin)


def within(asked: Submission, origin: Origin) -> Submission:
    """Return the submission; raises InputError, whose `where` is the field, if it cannot run here."""
    is_processes_only = bool(origin.runtimes) and not runtime_in(origin.runtimes, is_host=False)
    if asked.spec.is_host and "host" in origin.lacking:
        raise InputError(origin.lacking["host"], where="image")
    if asked.spec.is_host and not origin.scheduler.host_jobs and not is_processes_only:
        raise InputError("host jobs are switched off here", where="image", hint="name an image")
    if not asked.spec.is_host and is_processes_only:
        hint = "leave it empty: the command is a process of this host"
        raise InputError("there is no engine here to run an image", where="image", hint=hint)
    try:
        within_time_limits(asked.spec, origin.scheduler)
    except InputError as error:
        raise InputError(error.what, where=field_of(error), hint=error.hint) from error
    return asked


def faults(draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
    """Return the error of each invalid field, as far as they can be found at once."""
    found = drafts.faults(draft, origin.submitter(now))
    found |= {name: InputError(why) for name, why in origin.lacking.items() if drafts.text_of(draft, name)}
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
        option = f"{BY_NAME[name].option}: " if name in drafts.FURTHER_NAMES else ""
        told.setdefault(field_name(name), option + fault_words(error))
    return told


def field_name(name: str) -> str:
    return drafts.FURTHER if name in drafts.FURTHER_NAMES else name


def fault_words(error: InputError) -> str:
    name = error.hint.removeprefix("add ").removeprefix("--").replace("-", "_") if error.hint else ""
    is_field = error.hint is not None and error.hint.startswith("add ") and name in BY_NAME
    hint = f"fill in {label(name)}" if is_field else error.hint
    return plain(error.what + (f": {hint}" if hint else ""), 300)


def field_of(error: InputError) -> str:
    """Return the field of an error; empty if there is none."""
    name = (error.where or "").partition(" ")[0].removeprefix("--").replace("-", "_").lower()
    return field_name(name) if field_name(name) in FIELDS else ""


def label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def is_folded(draft: Draft) -> bool:
    """Return whether the folded fields are empty."""
    names = (*drafts.FURTHER_NAMES, *(name for row in MORE for name in row))
    return not any(drafts.text_of(draft, name) for name in names)


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


SECTION = "submissions"
MOST_KEPT = 40
_COLUMN = 40
"""Maximum cells of a column of their list."""
MOST_BYTES = 8192
"""Maximum bytes of one submission, since the file is read completely at every start."""


class RecentSubmission(Struct, frozen=True):
    """A submission, without the values of its environment."""

    draft: Draft
    env: tuple[str, ...] = ()
    """Names of the variables that it set."""


def recent_submissions(preferences: Preferences) -> tuple[RecentSubmission, ...]:
    """Return the last submissions, newest first, without damaged ones."""
    listed = preferences.get(SECTION).get("drafts")
    found = [_past(entry) for entry in listed] if isinstance(listed, list) else []
    return tuple(entry for entry in found if entry is not None)[:MOST_KEPT]


def keep_submission(preferences: Preferences, draft: Draft) -> None:
    """Store the submission as the latest, without duplicates."""
    texts = {name: text for name, text in filled_texts(draft).items() if name != "env"}
    entry = RecentSubmission(texts, env_names(draft))
    if sum(len(text.encode()) for text in entry.draft.values()) > MOST_BYTES:
        return
    kept = [entry, *(other for other in recent_submissions(preferences) if other != entry)][:MOST_KEPT]
    preferences.put(SECTION, {"drafts": [{**each.draft, "env_names": list(each.env)} for each in kept]})


def _past(entry: object) -> RecentSubmission | None:
    if not isinstance(entry, dict):
        return None
    texts = {name: text for name in NAMES if name != "env" and isinstance(text := entry.get(name), str)}
    template_names = entry.get("env_names")
    env = tuple(str(name) for name in template_names) if isinstance(template_names, list) else ()
    return RecentSubmission(texts, env) if texts.get("image") or texts.get("command") else None


def describe_drafts(drafts: Sequence[Draft]) -> list[str]:
    """Return a line for each draft: names, GPUs and images in columns, and the command."""
    rows = []
    for draft in drafts:
        name, gpus, image, command = (draft.get(key, "") for key in ("name", "gpus", "image", "command"))
        gpus = "" if gpus in {"", "0"} else f"{gpus} GPU" if gpus == "1" else f"{gpus} GPUs"
        rows.append([plain(word, 300) for word in (name, gpus, image, command)])
    wide = [min(_COLUMN, max(map(width, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, wide)).rstrip() for row in rows]


def _padded(row: Sequence[str], wide: Sequence[int]) -> list[str]:
    """Return the words padded to their columns, without empty columns; the last word is not padded."""
    *first, last = row
    return [fit(word, cells) for word, cells in zip(first, wide[:-1], strict=True) if cells] + [last]


MOST_TEMPLATES = 500
_NAME = re.compile(r"\w[\w .+-]{0,79}")


def template_names(directory: Path) -> tuple[str, ...]:
    """Return the sorted names of the templates; empty if the directory does not exist."""
    try:
        found = sorted(path.stem for path in directory.glob("*.toml") if path.stem.isprintable())
    except OSError:
        return ()
    return tuple(found[:MOST_TEMPLATES])


def save_template(directory: Path, name: str, draft: Draft) -> Path:
    """Write a template, replacing one of that name; variables that look like secrets are written without values."""
    if not _NAME.fullmatch(name):
        raise InputError("is not a valid name for a template", where=name, hint="letters, digits, blanks, and . + - _")
    path = directory / f"{name}.toml"
    try:
        replace_text(path, job_file.draft_as_toml(draft_without_secrets(draft)))
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return path
