"""Capabilities of a cluster: which of gputui's functions its engine has, and why it lacks the others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gputui.domain.errors import CapabilityError, InputError
from gputui.domain.runs import Run
from gputui.domain.text import shown

if TYPE_CHECKING:
    from gputui.domain.job_spec import Submission

_SLURM = re.compile(
    r"slurm(?:\+ssh://(?P<host>(?:\w[\w.-]{0,31}@)?\w[\w.-]{0,252})(?::(?P<port>\d{1,5}))?)?",
    re.ASCII,
)
_KUBERNETES = re.compile(r"kubernetes(?::(?P<context>[!-~]{1,253}))?", re.ASCII)


class Engine(Struct, frozen=True):
    """An engine, and where it is reached."""

    kind: str
    """`slurm` or `kubernetes`."""
    host: str | None = None
    """Login node on which Slurm's commands run, as `[USER@]HOST` for ssh; None: this machine."""
    port: int | None = None
    context: str | None = None
    """Context of the kubeconfig; None: its current one, or that of the pod in which gputui runs."""


def parse_engine(text: str, where: str = "cluster.engine") -> Engine | None:
    """Return the engine of `slurm`, `slurm+ssh://[USER@]HOST[:PORT]` or `kubernetes[:CONTEXT]`; None for no text."""
    if not text:
        return None
    if (kubernetes := _KUBERNETES.fullmatch(text)) is not None:
        return Engine("kubernetes", context=kubernetes["context"])
    match = _SLURM.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if not match or (port is not None and not 0 < port < 65536):
        hint = "write slurm, slurm+ssh://HOST, kubernetes or kubernetes:CONTEXT"
        raise InputError(f"{shown(text)} is not a cluster", where=where, hint=hint)
    return Engine("slurm", match["host"], port)


NODE = "{node}"
"""Stands for the name of a node in `cluster.probe_command`."""
_NODE_NAME = re.compile(r"\w[\w.-]{0,252}", re.ASCII)


def check_probe_command(template: str, where: str) -> list[str]:
    """Return the words of a command that reads a node; raises InputError if it names none."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise InputError(f"cannot be parsed: {error}", where=where) from error
    if not any(NODE in word for word in words):
        raise InputError(f"does not name the node as {NODE}", where=where, hint="write ssh {node} gputui probe")
    return words


def probe_words(template: str, node: str) -> list[str]:
    """Return the words of the command that reads this node; raises InputError."""
    words = check_probe_command(template, "cluster.probe_command")
    if not _NODE_NAME.fullmatch(node):
        raise InputError(f"{node[:40]!a} is no name of a node that commands take")
    return [word.replace(NODE, node) for word in words]


ENGINES = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
"""Names of the engines as people write them, by `Leader.kind`."""
GPUTUI = "gputui"
"""Name of the engine where gputui schedules by itself."""
FOR_ONE_MACHINE: Mapping[str, str] = {
    "install": "the engine schedules; there is no service of gputui to install",
    "ps": "log in to the job's node: gputui ps shows the processes on its GPUs there, without the cluster",
    "state": "the queue is in the engine's own files",
}
"""Commands that make no sense with any engine, each with what to do instead."""
INDEX_BITS = 24
"""Bits of the id of an array's element that hold its index plus 1; those above hold the id of the array."""
LEAST_ELEMENT = 1 << 50
"""Least id of an array's element; ids of jobs and of arrays are smaller."""


def element_id(array: int, index: int) -> int:
    return LEAST_ELEMENT + (array << INDEX_BITS) + index + 1


def is_element(job_id: int) -> bool:
    return job_id >= LEAST_ELEMENT


def array_of(element: int) -> int:
    return (element - LEAST_ELEMENT) >> INDEX_BITS


def index_of(element: int) -> int:
    return element % (1 << INDEX_BITS) - 1


def element_runs(array: int, indices: Iterable[int]) -> Iterator[Run]:
    start = count = 0
    for index in indices:
        if count and index == start + count:
            count += 1
            continue
        if count:
            yield Run(element_id(array, start), start, count)
        start, count = index, 1
    if count:
        yield Run(element_id(array, start), start, count)


class Capability(StrEnum):
    """Functions that a cluster may have or lack."""

    HOLD = "hold"
    REQUEUE = "requeue"
    RAISE_PRIORITY = "raise_priority"
    LOWER_PRIORITY = "lower_priority"
    TOP = "top"
    MOVE = "move"
    """Put a job directly before or behind another."""
    EDIT = "edit"
    """Change a waiting job."""
    EXTEND = "extend"
    """Change the time limit of a waiting or running job."""
    SIGNAL = "signal"
    SUSPEND = "suspend"
    PAUSE = "pause"
    """Start no job anywhere until further notice."""
    DRAIN_NODE = "drain_node"
    DRAIN_GPU = "drain_gpu"
    RESERVE = "reserve"
    RECURRING = "recurring"
    ARRAYS = "arrays"
    DEPENDENCIES = "dependencies"
    TEST_ONLY = "test_only"
    """Forecast of a job's start before it is submitted."""
    WHAT_IF = "what_if"
    """Forecast of all starts after a change."""
    GPU_IDS = "gpu_ids"
    """Tells which GPUs a job has."""
    LIVE_LOG = "live_log"
    """Output of running jobs."""
    INSIDE = "inside"
    """Shells in running jobs, and their processes."""
    STREAMS = "streams"
    """Jobs with a terminal or standard input, to which users attach."""
    USERS = "users"
    """Tells apart the users of jobs, and limits each to her own."""
    HISTORY = "history"
    """Jobs that ended long ago."""


NEEDED_FOR: Mapping[str, Capability] = {
    **dict.fromkeys(("array", "sweep", "sweep_limit"), Capability.ARRAYS),
    **dict.fromkeys(("after", "after_any"), Capability.DEPENDENCIES),
    "hold": Capability.HOLD,
    "interactive": Capability.STREAMS,
}
"""Capability that an option of jobs needs, by its name in job files."""
_ASKED: Mapping[str, Callable[[Submission], object]] = {
    "array": lambda asked: asked.array,
    "after": lambda asked: asked.spec.after,
    "after_any": lambda asked: asked.spec.after_any,
    "hold": lambda asked: asked.held,
    "interactive": lambda asked: asked.spec.interactive is not None,
    "host": lambda asked: asked.spec.is_host,
    "gpu_memory": lambda asked: asked.spec.gpus.memory is not None,
    "gpu_model": lambda asked: asked.spec.gpus.model is not None,
    "gpu_free_memory": lambda asked: asked.spec.gpus.free_memory is not None,
    "share": lambda asked: asked.spec.gpus.share,
    "retries": lambda asked: asked.spec.retries,
    "nice": lambda asked: asked.spec.nice,
    "begin": lambda asked: asked.spec.begin_at is not None,
    "signal": lambda asked: asked.spec.warning is not None,
    "idle_timeout": lambda asked: asked.spec.idle_timeout is not None,
    "preemptible": lambda asked: asked.spec.preemptible,
    "volume": lambda asked: asked.spec.options.volumes,
    "mount": lambda asked: asked.spec.options.mounts,
    "ulimit": lambda asked: asked.spec.options.ulimits,
    "label": lambda asked: asked.spec.options.labels,
}
"""Whether a submission asks for an option; the others are fields of `ContainerOptions` of the same name."""


def asks_for(submission: Submission, option: str) -> bool:
    if (is_asked := _ASKED.get(option)) is not None:
        return bool(is_asked(submission))
    value = getattr(submission.spec.options, option, None)
    return value not in (None, ()) and value is not False


_WITH = {"retries": ("backoff", "retry_on", "gpu_memory_step"), "host": ("env_all",)}
"""Options that do nothing without another one."""


class Caps(Struct, frozen=True):
    """Capabilities of an engine."""

    engine: str
    """Name of the engine as people write it: `Slurm`."""
    lacking: Mapping[Capability, str] = field(default_factory=dict)
    """Sentence for each missing capability, such as `Slurm drains nodes, not single GPUs`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Sentence for each option of jobs that it lacks whatever its value, by the name in job files: `retries`."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands of gputui that make no sense with the engine, each with what to do instead."""
    runs_jobs: bool = False
    """True if gputui plans and runs the jobs itself: its policy forecasts, its runtimes keep both outputs apart."""

    def has(self, capability: Capability) -> bool:
        return capability not in self.lacking

    def why_not(self, capability: Capability) -> str:
        return self.lacking.get(capability, "")

    def need(self, capability: Capability) -> None:
        """Raise CapabilityError with the engine's sentence if it lacks this."""
        if not self.has(capability):
            raise CapabilityError(self.why_not(capability))

    @property
    def lacking_options(self) -> Mapping[str, str]:
        """Sentence for each option of jobs that it lacks, also for want of a capability."""
        needed = {name: why for name, each in NEEDED_FOR.items() if (why := self.why_not(each))}
        idle = {name: self.options[first] for first, names in _WITH.items() if first in self.options for name in names}
        return {**idle, **self.options, **needed}

    def check_submission(self, submission: Submission) -> None:
        """Raise CapabilityError or InputError for a job with an option that it lacks."""
        for name, capability in NEEDED_FOR.items():
            if not self.has(capability) and asks_for(submission, name):
                self.need(capability)
        for name, why in self.options.items():
            if asks_for(submission, name):
                raise InputError(why, where="--" + name.replace("_", "-"))

    def need_command(self, name: str) -> None:
        """Raise CapabilityError if this command of gputui makes no sense with the engine."""
        if name in self.commands:
            words = f"gputui {name} is for the queue of one machine, not for {self.engine}"
            raise CapabilityError(words, hint=self.commands[name])


class ClusterFault(Struct, frozen=True):
    """Something in the way of jobs in a cluster, as `gputui doctor` reports it."""

    name: str
    """Subject, in one word."""
    text: str
    """Sentence that says what was found."""
    why: str
    """Sentence that says why it matters."""
    hint: str
    """Commands or lines of files that mend it, a line each."""
    stops_jobs: bool = False
    """True if no job, or no job with GPUs, can start."""
    is_grave: bool = False
    """True if jobs start, but harm others: then `gputui doctor` fails too."""
