"""Queue and actions of the cluster that the settings name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.config import Options
from gputui.config.options import user_directory
from gputui.domain.cluster import Engine, parse_engine
from gputui.domain.errors import CapabilityError, InputError, StoreAccessError
from gputui.domain.submit_action import SubmitJobs

if TYPE_CHECKING:
    from gputui.domain.cluster import Caps, ClusterFault
    from gputui.domain.job import Job
    from gputui.domain.job_spec import Submission
    from gputui.domain.node_check import NodeCheck
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.telemetry_series import Measured
    from gputui.engine.cluster.actions import ClusterActions
    from gputui.engine.cluster.duties import Duty
    from gputui.engine.cluster.job_access import ClusterJobAccess
    from gputui.engine.cluster.logs import ClusterLogs
    from gputui.engine.cluster.measurements import MeasuredJobs
    from gputui.engine.cluster.poll import ClusterPoll
    from gputui.engine.cluster.store import ClusterStore
    from gputui.engine.feed import Feed
    from gputui.ports import Cluster, JobStore

DIRECTORY = "clusters"
"""Directory within the state directory for what is kept about clusters."""


def open_cluster(options: Options) -> Cluster:
    """Return the cluster that the settings name. Asks the engine nothing yet."""
    engine = parse_engine(options.settings.cluster.engine)
    if engine is None:
        raise InputError("no cluster is named", where="cluster.engine", hint="export GPUTUI_CLUSTER=slurm")
    directory = directory_of(options)
    try:
        make = _kubernetes if engine.kind == "kubernetes" else _slurm
        return make(options, engine, directory)
    except OSError as error:
        raise StoreAccessError(f"{error.strerror}", where=str(directory)) from error


def directory_of(options: Options) -> Path:
    """Return the directory for what this user's processes keep about the cluster that the settings name."""
    engine = parse_engine(options.settings.cluster.engine)
    return _own_state(options) / DIRECTORY / (_directory(engine) if engine is not None else "")


def _slurm(options: Options, engine: Engine, directory: Path) -> Cluster:
    from gputui.cluster.slurm.cluster import SlurmCluster
    from gputui.cluster.slurm.commands import SlurmCommands

    ssh = None
    if engine.host:
        from gputui.cluster.ssh import SshConnection, runtime_directory

        ssh = SshConnection(engine.host, engine.port, runtime_directory(os.environ))
    commands = SlurmCommands(ssh, options.settings.cluster.command_timeout.total_seconds())
    return SlurmCluster(commands, options.settings, directory)


def _kubernetes(options: Options, engine: Engine, directory: Path) -> Cluster:
    from gputui.cluster.kubernetes.cluster import KubernetesCluster
    from gputui.cluster.kubernetes.kubeconfig import connect

    environ, timeout = dict(os.environ), options.settings.cluster.command_timeout.total_seconds()
    return KubernetesCluster(
        lambda: connect(engine.context, environ, timeout),
        options.settings,
        directory,
        user=bootstrap.actor().user,
        name=engine.context or "",
    )


def _directory(engine: Engine) -> str:
    """Return the directory's name for what this machine keeps about a cluster: others have jobs of the same ids."""
    if engine.kind == "kubernetes":
        from gputui.cluster.kubernetes.context import context_in

        context = engine.context or context_in(os.environ)
        return f"kubernetes-{_short(os.environ.get('KUBECONFIG', '') + chr(0) + context)}"
    conf = os.environ.get("SLURM_CONF", "") if engine.host is None else ""
    parts = [engine.kind, engine.host or "", str(engine.port or ""), _short(conf) if conf else ""]
    return "-".join(part for part in parts if part)


def _short(text: str) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _own_state(options: Options) -> Path:
    """Return the state directory, or this user's default one if the named one is shared by another."""
    with contextlib.suppress(OSError):
        if options.state.stat().st_uid != os.geteuid():
            return user_directory("XDG_STATE_HOME", "~/.local/state") / "gputui"
    return options.state


def open_store(options: Options) -> ClusterStore:
    """Return the queue of the cluster. Asks the engine when it is first read."""
    from gputui.engine.cluster.store import ClusterStore

    cluster, directory = open_cluster(options), directory_of(options)

    @cache
    def measured() -> MeasuredJobs:
        from gputui.cluster.telemetry_records import TelemetryRecords  # not needed to submit
        from gputui.engine.cluster.measurements import MeasuredJobs

        ends_after = options.settings.scheduler.idle_gpus_end
        return MeasuredJobs(TelemetryRecords(directory), ends_after, lambda: cluster.user)

    return ClusterStore(cluster, directory=directory, measured=measured)


def actions(store: JobStore) -> ClusterActions:
    """Return the actions of this process's user on the cluster."""
    from gputui.engine.cluster.actions import ClusterActions

    return ClusterActions(cluster_store(store))


def snapshot(store: JobStore) -> Snapshot:
    """Return a snapshot of the cluster."""
    return cluster_store(store).snapshot()


def caps(store: JobStore) -> Caps:
    """Return the capabilities of the cluster."""
    return cluster_store(store).cluster.caps


def first_caps(options: Options) -> Caps:
    """Return the capabilities of the engine that the settings name, as far as they are known before it is asked."""
    engine = parse_engine(options.settings.cluster.engine)
    if engine is not None and engine.kind == "slurm":
        from gputui.cluster.slurm import rights as of_slurm

        return of_slurm.caps_of(None)
    from gputui.cluster.kubernetes import rights as of_kubernetes

    return of_kubernetes.caps_of(None)


def expected_start(store: JobStore, submission: Submission) -> datetime | None:
    """Return when the job would start if it were submitted now; None if the engine cannot tell."""
    [at] = actions(store).foresee(SubmitJobs((submission,))).starts
    return at


def make_poll(options: Options, store: JobStore, feed: Feed, duties: Sequence[Duty] = ()) -> ClusterPoll:
    """Return the poll that feeds a console, and does these duties."""
    from gputui.bootstrap import nodes
    from gputui.domain.idle_gpus import IdleTracker
    from gputui.engine.cluster.poll import ClusterPoll

    idle = IdleTracker(options.settings)
    every, reader = options.settings.cluster.poll_interval, nodes.make_reader(options)
    return ClusterPoll(cluster_store(store), feed, bootstrap.clock(), every, reader, duties, idle)


def measured(store: JobStore, job: Job) -> dict[int, Measured]:
    """Return the telemetry of each attempt of a job, by number. Reads files."""
    from gputui.engine.cluster.measurements import measured as read

    return read(cluster_store(store).directory, job)


def name(store: JobStore) -> str:
    """Return the name of the cluster."""
    return cluster_store(store).cluster.name


def faults(store: JobStore) -> Sequence[ClusterFault]:
    """Return what is in the way of jobs."""
    return cluster_store(store).cluster.faults()


def logs(store: JobStore) -> ClusterLogs:
    """Return the output of all jobs of the cluster."""
    from gputui.engine.cluster.logs import ClusterLogs

    return ClusterLogs(cluster_store(store))


def job_access(options: Options, store: JobStore) -> ClusterJobAccess:
    """Return shells, commands and process lists of the running jobs of the cluster."""
    from gputui.engine.cluster.job_access import ClusterJobAccess

    return ClusterJobAccess(cluster_store(store), (sys.executable, "-P", "-m", "gputui", *options.arguments()))


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

    cluster = open_cluster(options)
    try:
        if not isinstance(cluster, SlurmCluster):
            raise CapabilityError(f"gputui checks the nodes of Slurm, not those of {cluster.caps.engine}")
        chosen = image or options.settings.cluster.check_image
        return cluster.checker().check(nodes, chosen, patience, waits=waits, tell=tell)
    finally:
        cluster.close()


def cluster_store(store: JobStore) -> ClusterStore:
    """Return the store as the queue of a cluster."""
    from gputui.engine.cluster.store import ClusterStore

    if not isinstance(store, ClusterStore):
        raise TypeError(f"{type(store).__name__} is not the queue of a cluster")
    return store
