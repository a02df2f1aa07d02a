"""The job form without its widgets: fields, errors in their texts, drafts, and its purposes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.action import Edit, differs
from gputui.domain.cluster import GPUTUI, Caps
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job, element_spec
from gputui.domain.job_spec import Inherited, JobSpec, Submission, runtime_in
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.text import fit, format_duration, listed, plain, width
from gputui.engine.actions.permissions import within_time_limits
from gputui.request import draft as drafts
from gputui.request import edits, job_file
from gputui.request.draft import NAMES, Draft, draft_without_secrets, env_names, filled_texts
from gputui.request.job_options import BY_NAME, KEYS, OptionKind
from gputui.request.submitter import Submitter
from gputui.tui.commands import MORE_FIELDS, SUBMIT_COMMANDS, Command
from gputui.tui.preferences import Preferences, replace_text
from gputui.tui.present.cells import BLUE, DIM, PLAIN, RED, Cell, clock
from gputui.tui.present.job import job_title
from gputui.tui.proposals import EditProposal, edit_refusal

START: Draft = {"gpus": "1"}
"""Initial draft of the form."""
USUAL, MORE = (
    tuple(tuple(row.split()) for row in rows.split(";"))
    for rows in (
        (
            "image; command; gpus gpu_memory; gpu_model share; priority retries; time_limit signal; name tenant; env; "
            "volume; workdir; after begin; array hold"
        ),
        (
            "mount; comment; entrypoint user; after_any preemptible; nice backoff; retry_on gpu_memory_step; "
            "cpus cpu_shares; memory shm_size; ipc network; env_file runtime; ulimit env_all; label idle_timeout; "
            f"sweep sweep_limit; publish; {drafts.FURTHER}"
        ),
    )
)
"""The fields, row by row: the permanent ones, and the less common ones, which are folded."""
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
    name = (error.where or "").partition(" ")[0].removeprefix("--").replace("-", "_").lower()
    return field_name(name) if field_name(name) in FIELDS else ""


def label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


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
    draft: Draft
    env: tuple[str, ...] = ()
    """Names of the variables that it set."""


def recent_submissions(preferences: Preferences) -> tuple[RecentSubmission, ...]:
    stored = preferences.get(SECTION).get("drafts")
    found = []
    for entry in stored if isinstance(stored, list) else []:
        if isinstance(entry, dict):
            texts = {name: text for name in NAMES if name != "env" and isinstance(text := entry.get(name), str)}
            env = entry.get("env_names")
            if texts.get("image") or texts.get("command"):
                found.append(RecentSubmission(texts, tuple(map(str, env)) if isinstance(env, list) else ()))
    return tuple(found[:MOST_KEPT])


def keep_submission(preferences: Preferences, draft: Draft) -> None:
    """Store the submission as the latest, without duplicates."""
    texts = {name: text for name, text in filled_texts(draft).items() if name != "env"}
    entry = RecentSubmission(texts, env_names(draft))
    if sum(len(text.encode()) for text in entry.draft.values()) > MOST_BYTES:
        return
    kept = [entry, *(other for other in recent_submissions(preferences) if other != entry)][:MOST_KEPT]
    preferences.put(SECTION, {"drafts": [{**each.draft, "env_names": list(each.env)} for each in kept]})


def describe_drafts(drafts: Sequence[Draft]) -> list[str]:
    """Return a line for each draft: names, GPUs and images in columns, and the command."""
    rows = []
    for draft in drafts:
        name, gpus, image, command = (draft.get(key, "") for key in ("name", "gpus", "image", "command"))
        gpus = "" if gpus in {"", "0"} else f"{gpus} GPU" if gpus == "1" else f"{gpus} GPUs"
        rows.append([plain(word, 300) for word in (name, gpus, image, command)])
    wide = [min(_COLUMN, max(map(width, column))) for column in zip(*rows, strict=True)]
    lines = []
    for *first, command in rows:
        padded = [fit(word, cells) for word, cells in zip(first, wide[:-1], strict=True) if cells]
        lines.append("  ".join([*padded, command]).rstrip())
    return lines


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


EMPTY: Draft = MappingProxyType({})
_ELSEWHERE = frozenset({"recent", "older", "templates"})
"""Actions that fill a form with another job."""
_IN_CLUSTER = frozenset({"time_limit", "priority", "hold"})
"""Fields of a waiting job that a cluster changes."""
_MOST_WORDS = 40
_WELCOME = "Enter shows the effects before the change is made."
_WELCOME_RUNNING = (
    f"The job runs: only its time limit (4h in all, or by +2h or -30m) and its comment can be changed. {_WELCOME}"
)


def end_line(job: Job, limit: timedelta | None, now: datetime) -> Cell:
    """Return when a running job ends by its present limit, and by this one; None: it would have no limit."""
    began = job.attempt.started_at if job.attempt else None
    then = began + limit if began is not None and limit is not None else None
    parts = [clock(at, now) if at is not None else "no limit" for at in (job.limit_at, then)]
    if limit == job.spec.time_limit:
        return (("Ends  ", DIM), (f"{parts[0]} by its time limit" if job.limit_at else parts[0], PLAIN))
    left = f", in {format_duration(then - now)}" if then is not None and then > now else ""
    style = RED if then is not None and then <= now else BLUE
    return (("Ends  ", DIM), (parts[1], style), (f"{left} · before: {parts[0]}", PLAIN))


class Purpose:
    """The purpose of a form: what differs between a new job, which this is, and an edit."""

    first = "image"
    """The field that has the initial focus."""
    welcome = "Paste a whole docker run line anywhere to fill in the form."
    instead: Job | None = None
    """The job that is edited; None: the job is new."""
    is_remembered = True
    """True if the draft is stored among the last submissions."""

    def __init__(self, start: Draft = START, hidden: Mapping[str, str] = EMPTY, title: str = "Submit a job") -> None:
        self.start = start
        """Initial values of the fields."""
        self.hidden = hidden
        """Values of environment variables that are not shown."""
        self.title = title

    @classmethod
    def like(cls, job: Job, now: datetime) -> Purpose:
        """Return the purpose of a clone; values of the job's environment are copied without being shown."""
        spec = element_spec(job)
        draft = drafts.masked(drafts.draft_of_spec(spec, now))
        if spec.sweep and job.array and job.array.limit:
            draft |= {"sweep_limit": str(job.array.limit)}
        return Purpose(draft, dict(spec.options.env), f"Submit a job like #{job.shown_id}")

    def commands(self) -> tuple[Command, ...]:
        return SUBMIT_COMMANDS

    def locked(self) -> Mapping[str, str]:
        """Return the fields that cannot be changed, each with the reason."""
        return EMPTY

    def changeable(self) -> tuple[str, ...]:
        """Return the names of the only fields to show; empty: all."""
        return ()

    def adjust(self, draft: Draft, said: str) -> tuple[Draft, str]:
        """Return a draft adjusted to the form, and the words to show with it."""
        return draft, said

    def beneath(self, draft: Draft) -> Draft:
        """Return the fields that a pasted command line leaves unchanged; of a new job not even hidden values."""
        self.hidden = EMPTY
        return EMPTY

    def faults(self, draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
        return faults(drafts.revealed(draft, self.hidden), origin, now)

    def changed(self, draft: Draft) -> tuple[str, ...]:
        return ()

    def outlook(self, draft: Draft, now: datetime) -> Cell | None:
        """Return the end of a running job; None for one that has not started."""
        return None

    def asked(self, draft: Draft, origin: Origin, now: datetime) -> Submission:
        return draft_submission(drafts.revealed(draft, self.hidden), origin, now)

    def follow(self, snapshot: Snapshot, now: datetime, *, is_touched: bool) -> tuple[Draft | None, str]:
        """Return a new draft if the form must follow the job, and words; without a draft they are a warning."""
        return None, ""

    def action(
        self, asked: Submission, draft: Draft, origin: Origin, now: datetime
    ) -> SubmitJobs | EditProposal | None:
        """Return the action or the proposal that the form sends; None if nothing would change."""
        return SubmitJobs((asked,))


class JobEdit(Purpose):
    """The purpose of a form for a waiting or running job: only changes are sent, and only if the job is unchanged."""

    first = "time_limit"
    is_remembered = False

    def __init__(self, job: Job, now: datetime, why_few: str = "") -> None:
        """`why_few` is a cluster's reason why only few fields can be changed; empty: it has none."""
        self._why_few = why_few
        self.welcome = _WELCOME if job.state is JobState.PENDING else _WELCOME_RUNNING
        self.title = f"Edit job {job_title(job)}"
        self.instead = job
        self._take(job, now)
        if why_few:
            self.welcome = f"Only {listed(map(label, self.changeable()))} can be changed: {why_few}."

    def _take(self, job: Job, now: datetime) -> None:
        self._job = job
        self.start = drafts.masked(edits.draft_of(job, now))
        self.hidden = dict(job.spec.options.env)

    def commands(self) -> tuple[Command, ...]:
        others = _ELSEWHERE | {MORE_FIELDS.action_name} if self._has_few else _ELSEWHERE
        kept = (command for command in SUBMIT_COMMANDS if command.action_name not in others)
        return tuple(replace(command, title="save") if command.action_name == "send" else command for command in kept)

    def locked(self) -> Mapping[str, str]:
        locked = self._reasons()
        return dict.fromkeys(locked, "") if self._has_few else locked  # the form says it once, not at every field

    def _reasons(self) -> dict[str, str]:
        if not self._why_few:
            return edits.locked(self._job)
        few = _IN_CLUSTER if self._waits else {"time_limit"}
        return {name: self._why_few for name in drafts.NAMES if name not in few}

    @property
    def _has_few(self) -> bool:
        return bool(self._why_few) or not self._waits

    def changeable(self) -> tuple[str, ...]:
        locked = self._reasons()
        return tuple(name for name in FIELDS if name in BY_NAME and name not in locked) if self._has_few else ()

    def adjust(self, draft: Draft, said: str) -> tuple[Draft, str]:
        """Return the draft with locked fields reset, and words on those that it would have changed."""
        why = self._reasons()
        reset = [f"{label(name)}: {why[name]}" for name in edits.changed(self.start, draft) if name in why]
        return {**draft, **{name: self.start.get(name, "") for name in why}}, "; ".join(reset) or said

    def beneath(self, draft: Draft) -> Draft:
        return draft

    def faults(self, draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
        """Return the error of each invalid field; a form without changes has none."""
        was, after = (drafts.revealed(each, self.hidden) for each in (self.start, draft))
        found = edits.faults(self._job, was, after, origin.submitter(now))
        if found or not self.changed(draft) or not self._waits:
            return placed_faults(found)
        return faults(edits.settled(self._job, after), origin, now)

    def changed(self, draft: Draft) -> tuple[str, ...]:
        return edits.changed(self.start, draft)

    def outlook(self, draft: Draft, now: datetime) -> Cell | None:
        if self._waits:
            return None
        try:
            text = drafts.value_of(edits.settled(self._job, draft), "time_limit")
        except InputError:
            return end_line(self._job, None, now)
        return end_line(self._job, text if isinstance(text, timedelta) else None, now)

    @property
    def _waits(self) -> bool:
        return self._job.state is JobState.PENDING

    def _edit(self, draft: Draft, origin: Origin, now: datetime) -> Edit:
        was, after = (drafts.revealed(each, self.hidden) for each in (self.start, draft))
        return edits.read(self._job, was, after, origin.submitter(now))

    def asked(self, draft: Draft, origin: Origin, now: datetime) -> Submission:
        after = self._edit(draft, origin, now).on(self._job, now)
        asked = Submission(replace(after.spec, priority=after.priority), after.held)
        return within(asked, origin) if self._waits else asked

    def follow(self, snapshot: Snapshot, now: datetime, *, is_touched: bool) -> tuple[Draft | None, str]:
        """Return the job's new draft while there is no input; else why it can no longer be edited."""
        found = snapshot.job(self._job.id)
        if found and found.state is self._job.state and differs(self._job, found) and not is_touched:
            self._take(found, now)
            return self.start, "It was changed meanwhile; the form shows the job as it is now."
        return None, edit_refusal(self._job, snapshot)

    def action(self, asked: Submission, draft: Draft, origin: Origin, now: datetime) -> EditProposal | None:
        edit = self._edit(draft, origin, now)
        if not edit:
            return None
        changes = []  # `time limit 1h -> 2h`
        after = edits.settled(self._job, draft)
        for name in self.changed(after):
            was, then = (plain(drafts.text_of(each, name), _MOST_WORDS) or "none" for each in (self.start, after))
            changes.append(label(name) if name == "env" else f"{label(name)} {was} -> {then}")
        return EditProposal(self._job, edit, ", ".join(changes))
