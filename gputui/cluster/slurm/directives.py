"""Lines `#SBATCH --OPTION` of a batch script: what Slurm plans with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta

from gputui.cluster.slurm import ids
from gputui.domain.errors import InputError
from gputui.domain.job_spec import NORMAL_PRIORITY, GpuRequest, JobId, JobSpec, LimitWarning, Submission
from gputui.domain.runs import runs_of
from gputui.domain.settings import ClusterSettings

COMMENT = "gputui:"
"""Beginning of the comment of each job that gputui submits; a key follows, then INPUT and TERMINAL if it has them."""
INPUT, TERMINAL = "input", "terminal"
"""Words in the comment by which other machines know that somebody can attach to the job."""
STOP_SIGNALS = (2, 15)
"""SIGINT and SIGTERM, by which Slurm and the batch script end a job."""
WARNING_SIGNAL = 23
"""SIGURG, which stands for a warning by one of STOP_SIGNALS."""
NICE_STEP = 1000
"""Slurm's nice value for each point of priority below 50."""
NO_STREAMS = (
    "in Slurm only a job in a container of Docker has a terminal or input: gputui exec -it opens a shell in others"
)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_MIB = 1024**2


def directives(submission: Submission, key: str, settings: ClusterSettings, output: str) -> Iterator[str]:
    """Yield options of `sbatch`, without quotes; raises InputError for what Slurm has no counterpart of."""
    spec = submission.spec
    check(spec)
    yield f"--job-name={_printable(spec.name) or 'gputui'}"
    yield f"--comment={' '.join((COMMENT + key, *_streams(spec)))}"
    yield from ("--nodes=1", "--ntasks=1", "--export=NIL", "--open-mode=append")
    yield "--requeue" if settings.requeue else "--no-requeue"
    yield from _gpus(spec.gpus)
    yield from _size(spec)
    yield f"--time={clock(spec.time_limit or settings.default_time)}"
    yield from _queue(submission)
    if output:
        yield f"--output={_printable(output)}"
    if spec.is_host and spec.options.workdir:
        yield f"--chdir={_printable(spec.options.workdir)}"
    yield from (f"--{name}={value}" for name in ("partition", "account") if (value := getattr(settings, name)))
    yield from map(_printable, settings.sbatch_options)


def line(option: str) -> str:
    """Return the line of a batch script with that option, quoted for `sbatch`."""
    name, equals, value = option.partition("=")
    if equals and not re.fullmatch(r"[\w./:,%@+-]*", value, re.ASCII):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {name}{equals}{value}"


def check(spec: JobSpec) -> None:
    """Raise InputError for a job that Slurm cannot run as it is asked to."""
    for where, is_asked, reason in _refusals(spec):
        if is_asked:
            raise InputError(reason, where=where)


def clock(length: timedelta) -> str:
    """Return a time limit as Slurm reads it, `1-02:00:00`: in whole minutes, at least one."""
    minutes = max(1, -(-length // timedelta(minutes=1)))
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def warning_number(warning: LimitWarning) -> int:
    """Return the signal that the batch script is sent in place of the warning."""
    return WARNING_SIGNAL if warning.number in STOP_SIGNALS else warning.number


def _refusals(spec: JobSpec) -> Iterator[tuple[str, bool, str]]:
    gpus = spec.gpus
    yield "--gpus", bool(gpus.devices), "Slurm chooses the GPUs of a job: ask for a number"
    yield "--gpus", gpus.minimum != gpus.maximum, "Slurm needs one number of GPUs, not a range"
    yield "--gpu-memory", gpus.memory is not None, "Slurm does not know the memory of GPUs: name their model"
    yield "--gpu-free-memory", gpus.free_memory is not None, "Slurm gives whole GPUs, whatever others left in them"
    yield "--share", gpus.share, "Slurm gives each GPU to one job"
    yield "--retries", spec.retries > 0, "Slurm does not repeat a failed job"
    yield "--interactive", spec.interactive is not None and spec.is_host, NO_STREAMS
    yield "--command", spec.is_host and not (spec.command and spec.command[0]), "a host job needs a command"


def _streams(spec: JobSpec) -> Iterator[str]:
    if spec.interactive is not None:
        yield from ([INPUT] if spec.interactive.stdin else [])
        yield from ([TERMINAL] if spec.interactive.tty else [])


def _gpus(request: GpuRequest) -> Iterator[str]:
    if request.everything:
        yield from ("--gres=gpu:1", "--exclusive")
    elif request.minimum:
        model = f"{request.model.strip().lower()}:" if request.model else ""
        yield f"--gres=gpu:{_printable(model)}{request.minimum}"


def _size(spec: JobSpec) -> Iterator[str]:
    if spec.options.cpus is not None:
        yield f"--cpus-per-task={max(1, math.ceil(spec.options.cpus))}"
    if spec.options.memory is not None:
        yield f"--mem={-(-spec.options.memory // _MIB)}M"


def _queue(submission: Submission) -> Iterator[str]:
    spec = submission.spec
    if submission.held:
        yield "--hold"
    nice = (NORMAL_PRIORITY - spec.priority) * NICE_STEP + spec.nice
    if nice:
        yield f"--nice={nice}"
    if spec.begin_at is not None:
        yield f"--begin=uts{math.ceil(spec.begin_at.timestamp())}"
    if waits := [*_after("afterok", spec.after), *_after("afterany", spec.after_any)]:
        yield f"--dependency={','.join(waits)}"
    if submission.array:
        limit = f"%{submission.array_limit}" if submission.array_limit else ""
        yield f"--array={','.join(map(str, runs_of(0, sorted(submission.array))))}{limit}"
    if spec.warning is not None:
        seconds = -(-spec.warning.before // timedelta(seconds=1))
        yield f"--signal=B:{warning_number(spec.warning)}@{seconds}"


def _after(kind: str, chosen: Iterable[JobId]) -> Iterator[str]:
    if found := [ids.words(each) for each in chosen]:
        yield ":".join((kind, *found))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()
