"""Backends under test: a queue of this machine with its scheduler, a fake cluster, and the former from far away."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.api.backend import ApiBackend
from gputui.api.rights import Visibility
from gputui.bootstrap import clusters, hosting
from gputui.bootstrap.backend import LocalBackend, Owned
from gputui.bootstrap.owner import open_api
from gputui.bootstrap.servers import open_servers
from gputui.config import Options, parse_probe
from gputui.domain.action import Cancel
from gputui.domain.cluster import Capability
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.settings import ClusterSettings, ServerSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.feed import Feed
from gputui.ports import Cluster
from gputui.ports.backend import DirectBackend
from tests.backend.contract import LINES
from tests.cluster.fake import FakeCluster
from tests.factories import ACTOR, FakeClock
from tests.factories import spec as make_spec
from tests.kubernetes import harness as kubernetes
from tests.kubernetes.fake.server import FakeKubernetes
from tests.servers.connections import local_ssh
from tests.waiting import until

PATIENCE = 60.0
"""Seconds to wait for a scheduler."""
_WRITE = "; ".join(f"echo {line.decode()}" for line in LINES)


class LocalHarness:
    """Queue of a state directory whose scheduler, in this process, runs host jobs on simulated GPUs."""

    missing = 10**6
    has_processes = True
    has_drafts = False
    entering = Capability.INSIDE

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.options = Options(directory / "state", probe=parse_probe("sim:2:A100"), runtime="process")
        self._store, feed, has_gpus = bootstrap.open_store(self.options), Feed(), threading.Event()
        feed.subscribe(lambda snapshot: has_gpus.set() if snapshot.gpus else None)
        visibility = Visibility(self.options.settings.access)
        self._owned = Owned(self._store, lambda: feed.latest, visibility)
        self._host = hosting.make_host(self.options, self._store, feed, "serve")
        self._scheduler = threading.Thread(target=lambda: asyncio.run(self._host.lead(PATIENCE)))
        self._scheduler.start()
        assert has_gpus.wait(PATIENCE)
        self.backend = self.open()
        self.drainable = tuple(gpu.uuid for gpu in self.backend.known_gpus())

    def open(self) -> DirectBackend:
        return LocalBackend(self.options, owned=self._owned)

    def spec(self) -> JobSpec:
        gate = self._directory / secrets.token_hex(8)
        script = f"{_WRITE}; while [ ! -e {gate} ]; do sleep 0.05; done"
        return make_spec(image=None, command=("sh", "-c", script), name=gate.name)

    def impossible(self) -> Submission:
        return Submission(replace(self.spec(), after=(self.missing,)))

    def end(self, job: Job) -> None:
        (self._directory / (job.spec.name or "")).touch()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def past(self, *ended_at: datetime) -> tuple[JobId, ...]:
        store = self._store
        made = store.submit([Job(0, self.spec(), at, held=True) for at in ended_at], actor=ACTOR)
        with store.transaction() as transaction:
            for job_id, at in zip(made, ended_at, strict=True):
                job = transaction.get(job_id)
                transaction.put(job.evolve(state=JobState.COMPLETED, held=False, exit_code=0, ended_at=at))
        store.maintain(self.now())
        return made

    def close(self) -> None:
        self.backend.close()
        backend = self.open()
        backend.act(Cancel(tuple(job.id for job in backend.snapshots().read().jobs)))
        deadline = time.monotonic() + PATIENCE
        while any(job.state.is_active for job in backend.snapshots().read().jobs) and time.monotonic() < deadline:
            time.sleep(0.05)
        backend.close()
        self._host.stop()
        self._scheduler.join(PATIENCE)
        self._store.close()


class OwnerHarness(LocalHarness):
    """The same queue, as its owner serves it to a command."""

    def open(self) -> ApiBackend:
        return until(lambda: open_api(self.options))


class ClusterHarness:
    """Queue of a fake cluster, as bootstrap makes it for the engine of the settings."""

    missing = 10**6
    entering = Capability.INSIDE
    has_drafts = False
    drainable = ("gpu1",)

    def __init__(self, directory: Path, lacking: Mapping[Capability, str]) -> None:
        self.has_processes = Capability.INSIDE not in lacking
        self._clock = FakeClock()
        nodes = dict.fromkeys(("gpu1", "gpu2", "gpu3"), 8)
        self._cluster = FakeCluster(self._clock, nodes, lacking=lacking, output=tuple(LINES))
        self._use(directory, self._cluster)

    def _use(self, directory: Path, cluster: Cluster) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(clusters, "open_cluster", lambda options: cluster)
        self._patch.setattr(bootstrap, "actor", lambda: ACTOR)
        options = Options(directory, runtime="process", settings=Settings(cluster=ClusterSettings(engine="slurm")))
        self.backend = clusters.open_backend(options)

    def spec(self) -> JobSpec:
        return make_spec(command=("sh", "-c", "exit 0"))

    def impossible(self) -> Submission:
        return Submission(make_spec(gpus=99))

    def end(self, job: Job) -> None:
        self._cluster.end(job.id)
        self.backend.queue.refresh()

    def now(self) -> datetime:
        return self._clock.now()

    def past(self, *ended_at: datetime) -> tuple[JobId, ...]:
        made, now = [], self._clock.now()
        for at in ended_at:
            self._clock.time = at
            [job_id] = self._cluster.submit_as(ACTOR.user, Submission(self.spec()))
            self._cluster.end(job_id)
            self._cluster.forget(job_id)
            made.append(job_id)
        self._clock.time = now
        return tuple(made)

    def close(self) -> None:
        self.backend.close()
        self._patch.undo()


NO_ENGINE_HAS = (
    Capability.WHAT_IF,
    Capability.MOVE,
    Capability.EDIT,
    Capability.PAUSE,
    Capability.DRAIN_GPU,
    Capability.RESERVE,
    Capability.RECURRING,
)
ALL_BUT = {each: f"no engine has {each.value}" for each in NO_ENGINE_HAS}
"""Sentences of a cluster that has what an engine can have."""
NOTHING = {each: f"the site does not want {each.value}" for each in Capability}
"""Sentences of a cluster that lacks all."""


class KubernetesHarness(ClusterHarness):
    """The adapter for Kubernetes, over a fake API server."""

    missing = 10**6
    drainable = ("gpu1",)
    has_processes = True
    has_drafts = True

    def __init__(self, directory: Path) -> None:
        self._fake = FakeKubernetes()
        self._fake.controller.first_lines = tuple(line.decode() for line in LINES)
        self._there = kubernetes.KubernetesHarness(self._fake, directory)
        self._use(directory, self._there.cluster)

    def spec(self) -> JobSpec:
        return make_spec(command=("sh", "-c", "exit 0"))

    def impossible(self) -> Submission:
        return Submission(make_spec(after=(self.missing,)))

    def end(self, job: Job) -> None:
        self._there.finish(job)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def past(self, *ended_at: datetime) -> tuple[JobId, ...]:
        pytest.skip("this engine forgets no job")

    def close(self) -> None:
        super().close()
        self._there.close()
        self._fake.close()


class RemoteHarness:
    """The queue of another harness, through a connection of a console."""

    has_processes = True
    has_drafts = False
    entering = Capability.INSIDE

    def __init__(self, directory: Path) -> None:
        self._there = LocalHarness(directory)
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("PATH", f"{local_ssh(directory)}:{os.environ['PATH']}")
        command = shlex.join((sys.executable, "-P", "-m", "gputui", *self._there.options.arguments()))
        self.backend = open_servers([ServerSettings("a", "ssh://a", command)])
        self.backend.start()
        [server] = self.backend.servers
        until(lambda: not server.view().problem)
        self._mapper = server.mapper
        self.missing = self._mapper.shared(self._there.missing)
        self.drainable = self._there.drainable
        self.spec, self.end, self.now = self._there.spec, self._there.end, self._there.now

    def impossible(self) -> Submission:
        return Submission(replace(self.spec(), after=(self.missing,)))

    def past(self, *ended_at: datetime) -> tuple[JobId, ...]:
        return tuple(map(self._mapper.shared, self._there.past(*ended_at)))

    def close(self) -> None:
        self.backend.close()
        self._patch.undo()
        self._there.close()
