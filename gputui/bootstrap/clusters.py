"""The cluster that the settings name: its backend, duties of processes for it, and jobs on their way to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import Options
from gputui.config.options import user_directory
from gputui.domain.cluster import Engine, asks_for, parse_engine
from gputui.domain.errors import CapabilityError, InputError, StoreAccessError

if TYPE_CHECKING:
    from gputui.domain.job_spec import Submission
    from gputui.domain.node_readings import NodeCheck
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.backend import EngineBackend
    from gputui.engine.cluster.hooks import ClusterHooks
    from gputui.engine.cluster.measurements import ClusterTelemetry, MeasuredJobs
    from gputui.engine.cluster.migration import Migration
    from gputui.engine.cluster.poll import ClusterPoll, Duty, SharedDuty
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.engine.feed import Feed
    from gputui.engine.hooks.announcer import RecordEnds
    from gputui.ports import Cluster, JobStore, Monitor
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
    return state / DIRECTORY / (_directory(engine) if engine is not None else "")


def _directory(engine: Engine) -> str:
    """Return the directory's name for what this machine keeps about a cluster: others have jobs of the same ids."""
    if engine.kind == "kubernetes":
        from gputui.cluster.kubernetes.kubeconfig import context_in, kubeconfig_of

        context, file = engine.context or context_in(os.environ), kubeconfig_of(os.environ)
        named = file if file != kubeconfig_of({**os.environ, "KUBECONFIG": ""}) else ""
        return f"kubernetes-{_short(named + chr(0) + context)}"
    conf = os.environ.get("SLURM_CONF", "") if engine.host is None else ""
    parts = [engine.kind, engine.host or "", str(engine.port or ""), _short(conf) if conf else ""]
    return "-".join(part for part in parts if part)


def _short(text: str) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def open_backend(options: Options) -> EngineBackend:
    """Return the queue of the cluster as a backend. Asks the engine when it is first used."""
    from gputui.engine.cluster.backend import EngineBackend
    from gputui.engine.cluster.queue import EngineQueue

    cluster, directory = open_cluster(options), directory_of(options)

    @cache
    def measured() -> MeasuredJobs:
        from gputui.cluster.records import TelemetryRecords  # not needed to submit
        from gputui.engine.cluster.measurements import MeasuredJobs

        ends_after = options.settings.scheduler.idle_gpus_end
        return MeasuredJobs(TelemetryRecords(directory), ends_after, lambda: cluster.user)

    def with_gpus(snapshot: Snapshot) -> Snapshot:
        from gputui.bootstrap import adapters, nodes

        adapters.silence_probe_log()
        if not snapshot.gpus:  # then those of this machine, if it has some
            here = adapters.measured_snapshot(options, queue)
            snapshot = replace(here, leader=snapshot.leader, notices=snapshot.notices)
        return nodes.read_once(options, snapshot)

    queue = EngineQueue(cluster, directory=directory, measured=measured)
    user = bootstrap.actor().user
    return EngineBackend(queue, options.settings, user=user, command=options.program(), with_gpus=with_gpus)


def make_poll(options: Options, queue: EngineQueue, feed: Feed, duties: Sequence[Duty] = ()) -> ClusterPoll:
    """Return the poll that feeds a console, and does these duties."""
    from gputui.bootstrap import nodes
    from gputui.domain.idle_gpus import IdleTracker
    from gputui.engine.cluster.poll import ClusterPoll

    idle = IdleTracker(options.settings)
    every, reader = options.settings.cluster.poll_interval, nodes.make_reader(options)
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


def hooks_duty(
    options: Options, queue: EngineQueue, monitor: Monitor, waits: Callable[[], object] = lambda: None
) -> SharedDuty:
    """Return the duty of telling hooks; deliveries are reported to `monitor`."""

    def begin(_: Snapshot) -> ClusterHooks:
        from gputui.cluster.records import ToldEnds
        from gputui.engine.cluster.hooks import ClusterHooks
        from gputui.engine.hooks.announcer import Announcer, made_report, weekly_of
        from gputui.engine.hooks.delivery import sinks
        from gputui.engine.process.host import DELIVERY_WORKERS
        from gputui.threads import DaemonExecutor

        settings, there = options.settings.hooks, queue.directory
        targets, workers = tuple(sinks(settings, socket.gethostname())), partial(DaemonExecutor, DELIVERY_WORKERS)
        asked = replace(options, state=there.parents[1])  # a console's own options have another one
        make = partial(made_report, asked.arguments())

        def announcer(record: RecordEnds) -> Announcer:
            weekly = weekly_of(options.settings, there, make, DaemonExecutor(1, "weekly-report"))
            return Announcer(record, settings, targets, workers, monitor=monitor, weekly=weekly)

        worker, ends_after = DaemonExecutor(1, "ends-of-jobs"), options.settings.scheduler.idle_gpus_end
        clock, ledger = bootstrap.clock(), ToldEnds(there)
        return ClusterHooks(queue.cluster, announcer, ledger, settings, clock, worker, ends_idle_after=ends_after)

    return shared_duty(queue, "hooks", "hooks", begin, waits)


def telemetry_duty(options: Options, queue: EngineQueue, waits: Callable[[], object] = lambda: None) -> SharedDuty:
    """Return the duty of measuring what jobs do with their GPUs, where nodes are read."""

    def begin(_: Snapshot) -> ClusterTelemetry:
        from gputui.cluster.records import TelemetryRecords
        from gputui.engine.cluster.measurements import DIRECTORY, ClusterTelemetry, IdleEnds
        from gputui.engine.files.log_retention import LogSweeper
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
    """Run a probe job on these nodes, or on all, and return what they found."""
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
    from gputui.cluster.kubernetes import calls, manifest

    place, _, account = name.partition(":")
    if kind == "ServiceAccount":
        if not (place and account):
            raise InputError("is not NAMESPACE:NAME", where="--service-account")
        subject = calls.RbacSubject(kind, account, place)
    else:
        subject = calls.RbacSubject(kind, name)
    documents = calls.rbac(namespace, subject, is_operator=is_operator, is_wide=is_wide)
    return "---\n".join(map(manifest.as_yaml, documents))


@contextmanager
def migration(options: Options, store: JobStore) -> Iterator[Migration]:
    """Yield the migration from this server's queue to the configured cluster; raises InputError if there is none."""
    from gputui.engine.cluster.migration import Migration

    with closing(open_cluster(options)) as cluster:
        yield Migration(store, cluster, options.settings.cluster.engine, bootstrap.clock(), bootstrap.actor())


def queue_of(backend: DirectBackend) -> EngineQueue:
    """Return the queue of a backend that is a cluster's."""
    return cast("EngineQueue", backend.queue)
