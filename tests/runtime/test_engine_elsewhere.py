"""Engine of another machine: its GPUs by their UUIDs, foreign use there, and a queue that it has already."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import EngineGpus, ExecRequest, Launch, RuntimeStatus
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.engine.files import EngineFile
from gputui.runtime.docker.job_exec import DockerExec
from gputui.runtime.docker.records import READING, foreign_of
from gputui.runtime.docker.runtime import DockerContainers, DockerRuntime
from tests.cases import cases
from tests.factories import NOW, FakeClock, spec, uuid
from tests.runtime.standin_engine import StandInEngine, this_machine

STORE, OTHER = "store0000000", "other0000000"
ELSEWHERE = {"Name": "gpu1", "KernelVersion": "1.2.3-elsewhere", "DockerRootDir": "/srv/docker", "ID": "engine-1"}
ALL_GPUS = {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    """Make an engine behind a forwarded socket."""
    made = StandInEngine(tmp_path / "d.sock", **this_machine() | ELSEWHERE)
    yield made
    made.close()


Open = Callable[..., DockerRuntime]


@pytest.fixture
def connect(engine: StandInEngine, tmp_path: Path) -> Iterator[Open]:
    made: list[DockerRuntime] = []

    def connect(store_id: str = STORE, *, as_guest: bool = False, url: str = "") -> DockerRuntime:
        settings = RuntimeSettings(docker_host=url or engine.url, as_guest=as_guest)
        made.append(DockerRuntime(store_id, settings, FakeClock(), EngineFile(tmp_path / f"{store_id}.json")))
        return made[-1]

    yield connect
    for runtime in made:
        runtime.close()


def launch(store_id: str = STORE, gpus: int = 1) -> Launch:
    return Launch(store_id, 1, 1, spec(gpus, image="busybox"), tuple(map(uuid, range(gpus))))


def seen(runtime: DockerRuntime) -> RuntimeStatus:
    runtime.foreign()
    return runtime.status()


def gives(runtime: DockerRuntime) -> EngineGpus:
    found = seen(runtime).gpus
    assert found is not None
    return found


def test_its_gpus_are_asked_for_by_uuid_and_its_files_are_not_looked_at(engine: StandInEngine, connect: Open) -> None:
    runtime = connect()
    runtime.create(launch())
    [body] = engine.created.values()
    assert body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == [uuid(0)]
    assert body["Labels"]["gputui.guest"] == socket.gethostname()
    status = runtime.check()
    assert status.data_root == "/srv/docker"
    assert status.gpus is not None
    assert (status.gpus.is_local, status.gpus.elsewhere) == (False, "gpu1")
    with pytest.raises(RuntimeFault, match="only operators may mount them"):
        runtime.root_directory()


READS = {"NetworkMode": "none", "ReadonlyRootfs": True, "DeviceRequests": [{"Count": -1, "Capabilities": READING}]}
A_DEVICE = {"Devices": [{"PathOnHost": "/dev/nvidia0"}]}
IS_PROBE = {"gputui.probe": "1"}


@cases(
    ("host", "labels", "mounted", "is_seen"),
    [
        (READS, IS_PROBE, "/etc/passwd", False),
        (READS, {}, "/etc/passwd", True),
        (READS, IS_PROBE, "/data", True),
        (READS, {**IS_PROBE, "gputui.store": OTHER}, "/etc/passwd", True),
        ({**READS, **ALL_GPUS}, IS_PROBE, "/etc/passwd", True),
        ({**READS, "NetworkMode": "bridge"}, IS_PROBE, "/etc/passwd", True),
        ({**READS, "ReadonlyRootfs": False}, IS_PROBE, "/etc/passwd", True),
        ({**READS, "Privileged": True}, IS_PROBE, "/etc/passwd", True),
        ({**READS, **A_DEVICE}, IS_PROBE, "/etc/passwd", True),
        ({**READS, **A_DEVICE, "DeviceRequests": None}, IS_PROBE, "/etc/passwd", True),
        ({**READS, "DeviceRequests": None, "Runtime": "nvidia"}, IS_PROBE, "/etc/passwd", True),
    ],
)
def test_a_container_that_may_do_more_than_read_gpus_claims_them_whatever_its_label_says(
    host: dict[str, Any], labels: dict[str, str], mounted: str, is_seen: bool
) -> None:
    mounts = [{"Type": "bind", "Destination": mounted}]
    config = {"Labels": labels, "Env": ["NVIDIA_VISIBLE_DEVICES=all"]}
    inspected = {"Id": "a", "Config": config, "HostConfig": host, "Mounts": mounts, "State": {}}
    assert (foreign_of(inspected, "runc") is not None) is is_seen


def test_foreign_use_there_is_seen_and_a_probe_is_none(engine: StandInEngine, connect: Open) -> None:
    runtime = connect()
    for container_id, host, labels in (("a" * 64, ALL_GPUS, IS_PROBE), ("b" * 64, READS, IS_PROBE)):
        engine.runs(container_id)
        engine.created[container_id] |= {"HostConfig": host, "Labels": labels}
    assert [(each.id, each.devices, each.store) for each in runtime.foreign()] == [("a" * 64, ("all",), "")]


def test_a_guest_is_told_of_the_queue_there(engine: StandInEngine, connect: Open) -> None:
    guest, bold = connect(), connect(as_guest=True)
    assert gives(guest).owner == gives(bold).owner == ""
    engine.info |= this_machine()  # seen from there
    owner = connect(OTHER)
    owner.start(owner.create(launch(OTHER)).id)
    assert not [text for text in seen(owner).all_warnings if "queue" in text]
    engine.info |= ELSEWHERE
    guest.check()
    assert gives(guest).owner == f"its queue {OTHER} runs jobs on them"
    assert "gpu1 has a gputui queue of its own" in guest.status().all_warnings[-1]
    assert gives(bold).owner == ""
    engine.created.clear()
    assert gives(guest).owner == ""


def test_the_queue_there_is_told_of_its_guest(engine: StandInEngine, connect: Open) -> None:
    guest = connect()
    guest.start(guest.create(launch()).id)
    engine.info |= this_machine()
    words = f"gputui on {socket.gethostname()} starts jobs on GPUs of {socket.gethostname()} too"
    assert seen(connect(OTHER)).warnings[-1].startswith(words)
    engine.info |= ELSEWHERE
    another = connect("third0000000")
    assert gives(another).owner == "", "two guests are equals, as two queues of one machine are"
    told = another.status().warnings[-1]
    assert told.startswith(f"queue {STORE} of another state directory of this machine starts jobs on GPUs of gpu1 too")
    advice = "submit to one of them, by `--state` or GPUTUI_STATE, so that one queue has them all"
    assert advice in told, "neither queue is that machine's"


def test_what_labels_tell_is_short_and_plain(engine: StandInEngine, connect: Open) -> None:
    container_id = "c" * 64
    engine.runs(container_id)
    labels = {"gputui.store": f"\x1b[31m{'x' * 3000}", "gputui.guest": "y" * 3000}
    engine.created[container_id] |= {"HostConfig": ALL_GPUS, "Labels": labels}
    [found] = connect().foreign()
    assert (found.store.strip("x…"), found.guest_of.strip("y…")) == ("", "")
    assert max(len(found.store), len(found.guest_of)) <= 60


@cases(("ahead", "told"), [(3600.0, "1h00m ahead of"), (-3600.0, "1h00m behind"), (3.0, ""), (0.0, "")])
def test_times_are_those_of_this_machine_whatever_the_clock_there(
    engine: StandInEngine, connect: Open, ahead: float, told: str
) -> None:
    engine.created.clear()
    there = NOW + timedelta(seconds=ahead)
    engine.info |= {"SystemTime": there.isoformat()}
    runtime = connect()
    made = runtime.create(launch()).id
    engine.runs("a" * 64, StartedAt=there.isoformat())
    engine.created["a" * 64] |= {"HostConfig": ALL_GPUS}
    began, ended = there - timedelta(minutes=5), there - timedelta(minutes=2)
    times = {"StartedAt": began.isoformat(), "FinishedAt": ended.isoformat()}
    engine.states[made] = {"Status": "exited", "ExitCode": 1, **times}
    [record] = runtime.containers()
    assert (record.started_at, record.ended_at) == (NOW - timedelta(minutes=5), NOW - timedelta(minutes=2))
    assert [each.started_at for each in runtime.foreign()] == [NOW]
    warned = [text for text in runtime.check().warnings if "clock" in text]
    assert [told in text for text in warned] == ([True] if told else [])


# one queue, one engine


@pytest.fixture
def second(tmp_path: Path) -> Iterator[StandInEngine]:
    made = StandInEngine(tmp_path / "second.sock", **this_machine() | ELSEWHERE | {"ID": "engine-2", "Name": "gpu2"})
    yield made
    made.close()


def test_the_engine_of_the_first_container_is_the_queues(connect: Open, second: StandInEngine, tmp_path: Path) -> None:
    """Another one is neither asked for containers nor given any, until the record is removed."""
    book = EngineFile(tmp_path / f"{STORE}.json")
    assert connect(url=second.url).check().up
    assert book.read() is None, "a look is no use"
    connect().create(launch())
    known = book.read()
    assert known is not None
    assert (known.id, known.machine) == ("engine-1", "gpu1")
    moved = connect(url=second.url)
    for ask in (moved.containers, moved.foreign, lambda: moved.create(launch())):
        with pytest.raises(RuntimeUnavailableError, match="this queue's jobs are on another engine: gpu1 "):
            ask()
    status = moved.check()
    assert (status.up, status.short) == (False, "another engine")
    assert f"`rm {book.path}`" in status.hint
    assert not second.created
    book.path.unlink()
    moved.create(launch())
    known = book.read()
    assert known is not None
    assert known.id == "engine-2"


def test_nothing_is_entered_or_ended_on_another_engine(connect: Open, second: StandInEngine, tmp_path: Path) -> None:
    connect().create(launch())
    settings, book = RuntimeSettings(docker_host=second.url), EngineFile(tmp_path / f"{STORE}.json")
    inside, others = DockerExec(settings, book), DockerContainers(settings, book)
    for ask in (
        lambda: inside.processes("0" * 64),
        lambda: inside.execute("gputui-1", ExecRequest(("sh",)), lambda _: None),
        lambda: others.stop("somebodys", 1),
    ):
        with pytest.raises(RuntimeUnavailableError, match="this queue's jobs are on another engine: gpu1 "):
            ask()
    inside.close()
    others.close()


def test_an_engine_under_another_address_is_the_same(
    engine: StandInEngine, connect: Open, second: StandInEngine, tmp_path: Path
) -> None:
    connect().create(launch())
    second.info |= {"ID": engine.info["ID"]}
    moved = connect(url=second.url)
    assert moved.containers() == ()
    moved.create(launch())
    known = EngineFile(tmp_path / f"{STORE}.json").read()
    assert known is not None
    assert known.address == second.url


def test_an_engine_that_changes_behind_its_address_loses_no_job(engine: StandInEngine, connect: Open) -> None:
    runtime = connect()
    runtime.start(runtime.create(launch()).id)
    assert len(runtime.containers()) == 1
    kept, engine.created = engine.created, {}
    assert runtime.containers() == (), "somebody removed it"
    engine.created = kept
    assert len(runtime.containers()) == 1
    engine.created, engine.info = {}, engine.info | {"ID": "engine-3"}
    for _ in range(2):
        with pytest.raises(RuntimeUnavailableError, match="on another engine"):
            runtime.containers()
        assert runtime.status().short == "another engine"
        assert not runtime.check().up
    engine.created, engine.info = kept, engine.info | {"ID": "engine-1"}
    assert runtime.check().up
    assert len(runtime.containers()) == 1


def test_starts_side_by_side_record_the_engine_once(connect: Open, tmp_path: Path) -> None:
    runtime = connect()
    with ThreadPoolExecutor(8) as workers:
        made = list(workers.map(lambda number: runtime.create(replace(launch(), job_id=number)), range(1, 25)))
    assert len({each.id for each in made}) == 24
    assert EngineFile(tmp_path / f"{STORE}.json").read() is not None


def test_podman_is_known_by_its_storage(engine: StandInEngine, connect: Open) -> None:
    """Podman makes up an id for each request."""
    podman = {"BuildahVersion": "1.28.2", "DockerRootDir": "/var/lib/containers/storage"}
    engine.info |= podman
    connect().create(launch())
    engine.info |= {"ID": "made up"}
    assert connect().check().up
    engine.info |= {"DockerRootDir": "/home/ann/.local/share/containers/storage"}
    assert "on another engine: the one that was there before, not gpu1 (" in connect().check().text


def test_an_engine_without_an_id_is_not_recorded(engine: StandInEngine, connect: Open, tmp_path: Path) -> None:
    kept = engine.info
    engine.info = {key: value for key, value in kept.items() if key != "ID"}
    connect().create(launch())
    assert EngineFile(tmp_path / f"{STORE}.json").read() is None
    engine.info = kept
    connect().create(launch())
    del engine.info["ID"]
    assert connect().check().short == "another engine"


def test_a_record_that_cannot_be_read_or_written_stops_starts(connect: Open, tmp_path: Path) -> None:
    path = tmp_path / f"{STORE}.json"
    path.write_text("{")
    assert "it is damaged" in connect().check().text
    path.unlink()
    path.mkdir()
    assert "cannot be read, so the engine of this queue is not known" in connect().check().text
    path.rmdir()
    runtime = connect()
    assert runtime.check().up
    path.mkdir()
    with pytest.raises(RuntimeUnavailableError, match=r"\.json cannot be written"):
        runtime.create(launch())
