"""Queue and actions of the cluster that the settings name."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.domain.errors import InputError

if TYPE_CHECKING:
    from gputui.domain.cluster import Caps
    from gputui.domain.job_spec import Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.actions import ClusterActions
    from gputui.engine.cluster.logs import ClusterLogs
    from gputui.engine.cluster.store import ClusterStore
    from gputui.ports import Cluster, JobStore


def open_cluster(options: Options) -> Cluster:
    """Return the cluster that the settings name. Asks the engine nothing yet."""
    engine = options.settings.cluster.engine
    raise InputError(f"{engine} cannot be used yet", where="cluster.engine")


def open_store(options: Options) -> ClusterStore:
    """Return the queue of the cluster. Asks the engine when it is first read."""
    from gputui.engine.cluster.store import ClusterStore

    return ClusterStore(open_cluster(options))


def actions(store: JobStore) -> ClusterActions:
    """Return the actions of this process's user on the cluster."""
    from gputui.engine.cluster.actions import ClusterActions

    return ClusterActions(_cluster_store(store))


def snapshot(store: JobStore) -> Snapshot:
    """Return a snapshot of the cluster."""
    return _cluster_store(store).snapshot()


def caps(store: JobStore) -> Caps:
    """Return the capabilities of the cluster."""
    return _cluster_store(store).cluster.caps


def expected_start(store: JobStore, submission: Submission) -> datetime | None:
    """Return when the job would start if it were submitted now; None if the engine cannot tell."""
    return actions(store).expected_start(submission)


def logs(store: JobStore) -> ClusterLogs:
    """Return the output of all jobs of the cluster."""
    from gputui.engine.cluster.logs import ClusterLogs

    return ClusterLogs(_cluster_store(store))


def _cluster_store(store: JobStore) -> ClusterStore:
    from gputui.engine.cluster.store import ClusterStore

    if not isinstance(store, ClusterStore):
        raise TypeError(f"{type(store).__name__} is not the queue of a cluster")
    return store
