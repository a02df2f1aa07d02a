"""Foreign containers on a real engine: described, read and stopped; those of jobs are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.settings import RuntimeSettings
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.runtime.docker.create import ATTEMPT, JOB, STORE
from gputui.runtime.docker.runtime import DockerContainers, detail_of
from gputui.runtime.host_processes import LocalProcesses
from tests.factories import ACTOR, FakeClock
from tests.memory_store import MemoryJobStore
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = pytest.mark.docker
_TRAP = "trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 1 & wait; done"


@pytest.fixture
def containers(engine: Dockerd) -> Iterator[DockerContainers]:
    made = DockerContainers(RuntimeSettings(docker_host=engine.host))
    yield made
    made.close()


@pytest.fixture
def use(containers: DockerContainers) -> ForeignUse:
    return ForeignUse(MemoryJobStore, FakeClock(), ACTOR, LocalProcesses, lambda: containers)


@pytest.fixture
def started(engine: Dockerd) -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    if names:
        engine.docker("rm", "-f", *names)


def test_a_foreign_container_is_described_read_and_stopped(
    use: ForeignUse, engine: Dockerd, started: list[str]
) -> None:
    options = ["--label", "user=carol", "--restart", "unless-stopped", "--stop-timeout", "5", "--gpus", "all"]
    mounts = ["-v", "/tmp:/data:ro", "-p", "127.0.0.1:18888:8888", "--name", "jupyter-carol"]
    started.append(engine.docker("run", "-d", *options, *mounts, IMAGE, "sh", "-c", _TRAP))
    detail = use.container("jupyter-carol")
    assert (detail.name, detail.user, detail.image, detail.state) == ("jupyter-carol", "carol", IMAGE, "running")
    assert (detail.mounts, detail.ports) == (("/tmp → /data (read-only)",), ("8888/tcp on 127.0.0.1:18888",))
    assert (detail.restart, detail.stop_timeout, detail.devices) == ("unless-stopped", 5, ("all",))
    assert detail.started_at is not None
    with_logs = use.logs(detail.id, tail=None, follow=True)
    assert next(iter(with_logs)) == b"hello"
    with_logs.close()
    assert "stopped after" in (said := use.stop(detail.id))
    assert said.endswith("with exit code 3")
    assert list(use.logs(detail.id, tail=1, follow=False)) == [b"bye"]
    with pytest.raises(GputuiError, match="does not run"):
        use.stop(detail.id)


def test_a_container_of_a_job_is_not_stopped(use: ForeignUse, engine: Dockerd, started: list[str]) -> None:
    labels = ["--label", f"{STORE}=s", "--label", f"{JOB}=7", "--label", f"{ATTEMPT}=1"]
    started.append(engine.docker("run", "-d", *labels, IMAGE, "sleep", "600"))
    with pytest.raises(GputuiError, match="belongs to job 7 of the gputui queue s") as told:
        use.stop(started[0])
    assert told.value.hint == "cancel the job: gputui cancel 7"
    assert use.container(started[0]).is_running


def test_a_missing_container_is_reported(use: ForeignUse) -> None:
    with pytest.raises(NotFoundError, match="there is no container nowhere"):
        use.container("nowhere")


def test_fields_that_engines_leave_out_are_unknown() -> None:
    bare = detail_of({"Id": "x", "Config": {}, "HostConfig": {}, "State": {"Status": "created"}})
    assert (bare.user, bare.mounts, bare.ports, bare.started_at, bare.restart) == ("", (), (), None, "")
    assert bare.stop_timeout == 10
