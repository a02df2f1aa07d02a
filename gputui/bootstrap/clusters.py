"""The cluster that the settings name: its backend, duties of processes for it, and jobs on their way to it."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from msgspec import Struct, field
from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import Options, user_directory
from gputui.domain.cluster import NODE, asks_for, parse_engine, probe_words
from gputui.domain.errors import CapabilityError, ClusterUnavailableError, InputError, StoreAccessError

if TYPE_CHECKING:
    from gputui.cluster.ssh import SshConnection
    from gputui.domain.gpu import ProbeReading
    from gputui.domain.job_spec import Submission
    from gputui.domain.node_readings import NodeCheck
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.backend import EngineBackend
    from gputui.engine.cluster.hooks import ClusterHooks
    from gputui.engine.cluster.measurements import ClusterTelemetry, MeasuredJobs
    from gputui.engine.cluster.migration import Migration
    from gputui.engine.cluster.poll import ClusterPoll, Duty, NodeReader, SharedDuty
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.engine.feed import Feed
    from gputui.engine.hooks import RecordEnds
    from gputui.gpus.node_probes import NodeCommand
    from gputui.ports import Cluster, JobStore, Monitor, NodeProbes
    from gputui.ports.backend import DirectBackend

DIRECTORY = "clusters"
"""Directory within the state directory for what is kept about clusters."""


def open_cluster(options: Options) -> Cluster:
    """Return the cluster that the settings name. Asks the engine nothing yet."""
    engine = parse_engine(options.settings.cluster.engine)
    if engine is None:
        raise InputError("no cluster is named", where="cluster.engine", hint="export GPUTUI_CLUSTER=slurm")
    directory, timeout = directory_of(options), options.settings.cluster.command_timeout.total_seconds()
    try:
        if engine.kind == "kubernetes":
            from gputui.cluster.kubernetes.api_server import connect
            from gputui.cluster.kubernetes.cluster import KubernetesCluster

            way, user = partial(connect, engine.context, dict(os.environ), timeout), bootstrap.actor().user
            return KubernetesCluster(way, options.settings, directory, user=user, name=engine.context or "")
        from gputui.cluster.slurm.cluster import SlurmCluster
        from gputui.cluster.slurm.commands import SlurmCommands

        ssh = None
        if engine.host:
            from gputui.cluster.ssh import SshConnection, runtime_directory

            ssh = SshConnection(engine.host, engine.port, runtime_directory(os.environ))
        return SlurmCluster(SlurmCommands(ssh, timeout), options.settings, directory)
    except OSError as error:
        raise StoreAccessError(f"{error.strerror}", where=str(directory)) from error


def directory_of(options: Options) -> Path:
    """Return the directory for what this user's processes keep about the cluster that the settings name."""
    engine, state = parse_engine(options.settings.cluster.engine), options.state
    with suppress(OSError):
        if state.stat().st_uid != os.geteuid():  # this user's own is the default one then
            state = user_directory("XDG_STATE_HOME", "~/.local/state") / "gputui"
    if engine is None:
        return state / DIRECTORY
    # one for each cluster: others have jobs of the same ids
    if engine.kind == "kubernetes":
        from gputui.cluster.kubernetes.kubeconfig import context_in, kubeconfig_of

        context, file = engine.context or context_in(os.environ), kubeconfig_of(os.environ)
        named = file if file != kubeconfig_of({**os.environ, "KUBECONFIG": ""}) else ""
        return state / DIRECTORY / f"kubernetes-{_short(named + chr(0) + context)}"
    conf = os.environ.get("SLURM_CONF", "") if engine.host is None else ""
    parts = [engine.kind, engine.host or "", str(engine.port or ""), _short(conf) if conf else ""]
    return state / DIRECTORY / "-".join(part for part in parts if part)


def _short(text: str, length: int = 8) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(text.encode()).hexdigest()[:length]


def open_backend(options: Options) -> EngineBackend:
    """Return the queue of the cluster as a backend. Asks the engine when it is first used."""
    from gputui.engine.cluster.backend import EngineBackend
    from gputui.engine.cluster.queue import EngineQueue

    cluster, directory = open_cluster(options), directory_of(options)

    @cache
    def measured() -> MeasuredJobs:
        from gputui.cluster.journal import TelemetryRecords  # not needed to submit
        from gputui.engine.cluster.measurements import MeasuredJobs

        ends_after = options.settings.scheduler.idle_gpus_end
        return MeasuredJobs(TelemetryRecords(directory), ends_after, lambda: cluster.user)

    def with_gpus(snapshot: Snapshot) -> Snapshot:
        from gputui.bootstrap import adapters

        adapters.silence_probe_log()
        if not snapshot.gpus:  # then those of this machine, if it has some
            here = adapters.measured_snapshot(options, queue)
            snapshot = replace(here, leader=snapshot.leader, notices=snapshot.notices)
        return read_once(options, snapshot)

    queue = EngineQueue(cluster, directory=directory, measured=measured)
    user = bootstrap.actor().user
    return EngineBackend(queue, options.settings, user=user, command=options.program(), with_gpus=with_gpus)


def make_poll(options: Options, queue: EngineQueue, feed: Feed, duties: Sequence[Duty] = ()) -> ClusterPoll:
    from gputui.domain.idle_gpus import IdleTracker
    from gputui.engine.cluster.poll import ClusterPoll

    idle = IdleTracker(options.settings)
    every, reader = options.settings.cluster.poll_interval, make_reader(options)
    return ClusterPoll(queue, feed, bootstrap.clock(), every, reader, duties, idle)


def shared_duty(
    queue: EngineQueue,
    name: str,
    key: str,
    begin: Callable[[Snapshot], Duty],
    waits: Callable[[], object] = lambda: None,
) -> SharedDuty:
    """Return a duty that one process has for all with the same key; see SharedDuty."""
    from gputui.engine.cluster.poll import SharedDuty, Turn

    directory = queue.directory
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    turn = Turn(directory / f"{key}.duty")  # no `.lock`: journals beside it have locks of that name
    return SharedDuty(name, turn, begin, waits)


def hooks_duty(options: Options, queue: EngineQueue, monitor: Monitor, waits: Callable[[], object]) -> SharedDuty:
    """Return the duty of telling hooks; deliveries are reported to `monitor`."""

    def begin(_: Snapshot) -> ClusterHooks:
        from gputui.cluster.journal import AnnouncedEnds
        from gputui.engine.cluster.hooks import ClusterHooks
        from gputui.engine.hooks import Announcer, made_report, sinks, weekly_of
        from gputui.engine.host import DELIVERY_WORKERS
        from gputui.threads import DaemonExecutor

        settings, there = options.settings.hooks, queue.directory
        targets, workers = tuple(sinks(settings, socket.gethostname())), partial(DaemonExecutor, DELIVERY_WORKERS)
        asked = replace(options, state=there.parents[1])  # a console's own options have another one
        make = partial(made_report, asked.arguments())

        def announcer(record: RecordEnds) -> Announcer:
            weekly = weekly_of(options.settings, there, make, DaemonExecutor(1, "weekly-report"))
            return Announcer(record, settings, targets, workers, monitor=monitor, weekly=weekly)

        worker, ends_after = DaemonExecutor(1, "ends-of-jobs"), options.settings.scheduler.idle_gpus_end
        clock, ledger = bootstrap.clock(), AnnouncedEnds(there)
        return ClusterHooks(queue.cluster, announcer, ledger, settings, clock, worker, ends_idle_after=ends_after)

    return shared_duty(queue, "hooks", "hooks", begin, waits)


def telemetry_duty(options: Options, queue: EngineQueue, waits: Callable[[], object] = lambda: None) -> SharedDuty:
    def begin(_: Snapshot) -> ClusterTelemetry:
        from gputui.cluster.journal import TelemetryRecords
        from gputui.engine.cluster.measurements import DIRECTORY, ClusterTelemetry, IdleEnds
        from gputui.engine.saved_logs import LogSweeper
        from gputui.threads import DaemonExecutor

        worker, settings, directory = DaemonExecutor(1, "telemetry"), options.settings, queue.directory
        records, clock, ends = TelemetryRecords(directory), bootstrap.clock(), None
        sweep = LogSweeper(directory / DIRECTORY, settings.store, queue).step
        if (after := settings.scheduler.idle_gpus_end) is not None:
            ends = IdleEnds(queue.cluster, records, after, clock, DaemonExecutor(1, "idle-jobs"))
        return ClusterTelemetry(records, directory, settings.scheduler, clock, worker, sweep, ends)

    return shared_duty(queue, "telemetry", "telemetry", begin, waits)


def check_nodes(
    options: Options,
    nodes: Sequence[str],
    patience: timedelta,
    *,
    image: str | None,
    waits: bool,
    tell: Callable[[str], None],
) -> tuple[NodeCheck, ...]:
    from gputui.cluster.slurm.cluster import SlurmCluster

    with closing(open_cluster(options)) as cluster:
        if not isinstance(cluster, SlurmCluster):
            raise CapabilityError(f"gputui checks the nodes of Slurm, not those of {cluster.caps.engine}")
        chosen = image or options.settings.cluster.check_image
        return cluster.checker().check(nodes, chosen, patience, waits=waits, tell=tell)


def checked_draft(options: Options, nodes: Sequence[str], image: str | None) -> str:
    """Return what an engine without jobs for single nodes would be given for a job with a GPU, once it agrees."""
    from gputui.domain.job_spec import GpuRequest, JobSpec, Submission

    asked = JobSpec(image or options.settings.cluster.check_image, ("true",), name="check", gpus=GpuRequest(1, 1))
    with closing(open_cluster(options)) as cluster:
        draft = cluster.draft(Submission(asked))
        if draft and nodes:
            raise CapabilityError(f"{cluster.caps.engine} gives no job to a node by its name: name none")
        return draft


def exported(options: Options, target: str, submission: Submission, key: str) -> tuple[str, tuple[str, ...]]:
    """Return a job or an array as `slurm` or `k8s` takes it, and a sentence for each request that this lacks.

    Raises InputError. A batch script is held if the job waits for others.
    """
    if target == "k8s":
        from gputui.cluster.kubernetes import manifest

        documents = manifest.manifests(submission, key, options.settings)
        return "---\n".join(map(manifest.as_yaml, documents)), tuple(manifest.left_out(submission, options.settings))
    from gputui.cluster.slurm.batch_script import IGNORED, batch_script

    spec = submission.spec
    asked = ((name.replace("_", "-"), why) for name, why in IGNORED.items() if asks_for(submission, name))
    notes = [f"--{option}: {why}" for option, why in asked]
    if spec.after or spec.after_any:
        notes.append("--after: the job is held; release it, or submit it with sbatch --dependency=afterok:ID")
        submission = replace(submission, held=True, spec=replace(spec, after=(), after_any=()))
    return batch_script(submission, key, options.settings), tuple(notes)


def kubernetes_rbac(namespace: str, kind: str, name: str, *, is_operator: bool, is_wide: bool) -> str:
    """Return the manifest of roles and bindings for a `User`, a `Group`, or a `ServiceAccount` `NAMESPACE:NAME`."""
    from gputui.cluster.kubernetes import manifest, site

    place, _, account = name.partition(":")
    if kind == "ServiceAccount":
        if not (place and account):
            raise InputError("is not NAMESPACE:NAME", where="--service-account")
        subject = site.RbacSubject(kind, account, place)
    else:
        subject = site.RbacSubject(kind, name)
    documents = site.rbac(namespace, subject, is_operator=is_operator, is_wide=is_wide)
    return "---\n".join(map(manifest.as_yaml, documents))


@contextmanager
def migration(options: Options, store: JobStore) -> Iterator[Migration]:
    """Yield the migration from this server's queue to the configured cluster; raises InputError if there is none."""
    from gputui.engine.cluster.migration import Migration

    with closing(open_cluster(options)) as cluster:
        yield Migration(store, cluster, options.settings.cluster.engine, bootstrap.clock(), bootstrap.actor())


def queue_of(backend: DirectBackend) -> EngineQueue:
    return cast("EngineQueue", backend.queue)


SSH = (
    "ssh -T -oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=10 -oServerAliveCountMax=3 "
    f"-oControlMaster=no -oControlPath=none -oForwardX11=no -oForwardAgent=no -- {NODE} gputui probe"
)
"""Command for a node unless the site has its own: a connection of its own, which asks nothing and notices cuts."""
PATIENCE = 10.0
"""Seconds in which a command waits for readings."""
_LOOK_EVERY = 0.2
"""Seconds between two looks at readings that another process has made."""
_A_CONNECTION = 8
"""Sessions of each connection to a login node: sshd allows ten by default."""
_NOT_AGAIN = 10.0
"""Seconds after which a login node that refused is tried again."""
_SILENT = 90
"""Seconds without a word from its reader after which a probe ends."""


def become_probe(interval: timedelta) -> NoReturn:
    """Replace this process with a probe that writes readings to stdout until stdin ends."""
    seconds = interval.total_seconds()
    times = (seconds, 2 * seconds, max(15.0, 2 * seconds))
    words = [sys.executable, "-P", "-m", "gputui.bootstrap.node_probe", *map(str, times), "", str(_SILENT)]
    os.execv(sys.executable, words)  # noqa: S606 - this Python, and our own module


def is_wanted(options: Options) -> bool:
    return options.in_cluster and options.settings.cluster.probe != "off"


def make_reader(options: Options, changed: Callable[[], object] = lambda: None) -> NodeReader | None:
    """Return a reader of the nodes, which starts with its first snapshot; None if the settings want none."""
    if not is_wanted(options):
        return None
    from gputui.engine.cluster.poll import NodeReader

    probes = _shared_probes(options, changed) or _own_probes(options, changed)
    engine = parse_engine(options.settings.cluster.engine)
    return NodeReader(probes, options.settings, has_gpu_ids=engine is None or engine.kind == "slurm")


def _own_probes(options: Options, changed: Callable[[], object]) -> NodeProbes:
    from gputui.gpus.node_probes import SshNodeProbes

    settings = options.settings.cluster
    template, engine = settings.probe_command or SSH, parse_engine(settings.engine)

    def here(node: str, interval: timedelta) -> Sequence[str]:
        return [*probe_words(template, node), "--every", f"{interval.total_seconds():g}"]

    command: NodeCommand = here
    if engine is not None and engine.host is not None:
        connections = LoginConnections(engine.host, engine.port)
        command = lambda node, interval: connections.argv(node, f"exec {shlex.join(here(node, interval))}")  # noqa: E731
    return SshNodeProbes(command, bootstrap.clock(), settings.probe_interval, changed=changed)


def _shared_probes(options: Options, changed: Callable[[], object]) -> NodeProbes | None:
    from gputui.engine.cluster.poll import Turn
    from gputui.gpus.node_probes import SharedNodeProbes, private_directory

    settings, memory = options.settings.cluster, Path("/dev/shm")  # noqa: S108 - made private, and lost with the machine
    if named := os.environ.get("XDG_RUNTIME_DIR"):
        base = Path(named, "gputui")
    elif memory.is_dir():
        base = memory / f"gputui-{os.geteuid()}"
    else:
        return None
    if not private_directory(base):
        return None
    words = (settings.engine, os.environ.get("SLURM_CONF", ""), settings.probe_command or SSH, settings.probe_interval)
    directory = base / f"probes-{_short(repr(words), 16)}"
    if not private_directory(directory):
        return None
    make, turn = partial(_own_probes, options), Turn(directory / "duty")
    return SharedNodeProbes(directory, turn, make, bootstrap.clock(), settings.probe_interval, changed)


class NodeWatch:
    """Readings of nodes for a command, which waits for the first ones; none if the settings want none."""

    def __init__(self, options: Options) -> None:
        self._came = threading.Event()
        self._reader = make_reader(options, self._came.set)
        self._has_waited = False

    def joined(self, snapshot: Snapshot, patience: float = PATIENCE) -> Snapshot:
        """Return the snapshot with readings of its nodes, as far as they answer in time."""
        reader = self._reader
        if reader is None:
            return snapshot
        joined = reader.joined(snapshot, bootstrap.clock().now())
        if self._has_waited:
            return joined
        self._has_waited, deadline = True, time.monotonic() + patience
        from gputui.domain.gpu import ProbeCode  # not needed to submit

        def is_whole(reading: ProbeReading) -> bool:
            """Return whether a node was read with all that matters, or is known not to answer."""
            if reading.status.code is not ProbeCode.OK:
                return reading.status.code is not ProbeCode.STARTING
            return all(sample.processes_at is not None for sample in reading.samples.values())

        while not all(map(is_whole, reader.readings().values())) and (left := deadline - time.monotonic()) > 0:
            self._came.wait(min(left, _LOOK_EVERY))
            self._came.clear()
        return reader.joined(snapshot, bootstrap.clock().now())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def read_once(options: Options, snapshot: Snapshot, patience: float = PATIENCE) -> Snapshot:
    """Return the snapshot with one reading of its nodes, as far as they answer in time; unchanged if none is wanted."""
    with closing(NodeWatch(options)) as watch:
        return watch.joined(snapshot, patience)


class LoginConnections(Struct, eq=False):
    """Connections to a login node for probes: commands have another, and each takes only so many sessions."""

    _host: str
    _port: int | None
    _places: dict[str, int] = field(default_factory=dict)
    _connections: list[SshConnection] = field(default_factory=list)
    _fault: str = ""
    _failed_at: float = 0.0

    def argv(self, node: str, script: str) -> Sequence[str]:
        """Return the command that runs lines of sh for a node; raises ClusterUnavailableError. May block for seconds.

        A node always has the same connection.
        """
        if self._fault and time.monotonic() - self._failed_at < _NOT_AGAIN:
            raise ClusterUnavailableError(self._fault)
        place = self._places.setdefault(node, len(self._places)) // _A_CONNECTION
        from gputui.cluster.ssh import SshConnection, runtime_directory

        while len(self._connections) <= place:
            name = f"-{os.getpid()}-{len(self._connections)}"
            self._connections.append(SshConnection(self._host, self._port, runtime_directory(os.environ), name))
        connection = self._connections[place]
        self._fault, self._failed_at = connection.opened(), time.monotonic()
        if self._fault:
            raise ClusterUnavailableError(self._fault)
        return connection.argv(script)
