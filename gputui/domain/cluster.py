"""Capabilities of a cluster: which of gputui's functions its engine has, and why it lacks the others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field

from gputui.domain.errors import CapabilityError, InputError
from gputui.domain.runs import Run
from gputui.domain.units import shown

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
    """Return the id of an element of an array."""
    return LEAST_ELEMENT + (array << INDEX_BITS) + index + 1


def is_element(job_id: int) -> bool:
    """Return whether the id is that of an array's element."""
    return job_id >= LEAST_ELEMENT


def array_of(element: int) -> int:
    """Return the id of the array of an element."""
    return (element - LEAST_ELEMENT) >> INDEX_BITS


def index_of(element: int) -> int:
    """Return the index of an element of an array."""
    return element % (1 << INDEX_BITS) - 1


def element_runs(array: int, indices: Iterable[int]) -> Iterator[Run]:
    """Yield the elements of an array with these indices, neighbours together."""
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


class Caps(Struct, frozen=True):
    """Capabilities of an engine."""

    engine: str
    """Name of the engine as people write it: `Slurm`."""
    lacking: Mapping[Capability, str] = field(default_factory=dict)
    """Sentence for each missing capability, such as `Slurm drains nodes, not single GPUs`."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands of gputui that make no sense with the engine, each with what to do instead."""
    runs_jobs: bool = False
    """True if gputui plans and runs the jobs itself: its policy forecasts, its runtimes keep both outputs apart."""

    def has(self, capability: Capability) -> bool:
        """Return whether the cluster has it."""
        return capability not in self.lacking

    def why_not(self, capability: Capability) -> str:
        """Return why the cluster lacks it; empty if it has it."""
        return self.lacking.get(capability, "")

    def need(self, capability: Capability) -> None:
        """Raise CapabilityError with the engine's sentence if it lacks this."""
        if not self.has(capability):
            raise CapabilityError(self.why_not(capability))

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
