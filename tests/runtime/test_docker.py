"""Behaviour of the Docker runtime beyond the contract, on a real engine: options, GPUs, causes, foreign containers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import docker
import pytest
from msgspec.structs import replace

from gputui.domain.container import ContainerState, Launch
from gputui.domain.errors import PART_OUT_OF_MEMORY, Blame, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.request import job_values
from gputui.runtime.docker import pull_process
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.runtime.host_processes import boot_id
from tests.cases import cases
from tests.factories import FakeClock, uuid
from tests.runtime.contract import OTHER_STORE, PATIENCE, SLEEP, STORE, Harness, output, record, seen, shell
from tests.runtime.dockerd import IMAGE, IMAGE_OF_NVIDIA, NETWORK, Dockerd
from tests.waiting import until

pytestmark = pytest.mark.docker


@pytest.fixture
def harness(engine: Dockerd) -> Iterator[Harness]:
    settings = RuntimeSettings(docker_host=engine.host, log_max_size=5_000_000, log_max_files=2, pids_limit=100)
    harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
    yield harness
    harness.clean()


@pytest.fixture
def runtime(harness: Harness) -> DockerRuntime:
    runtime = harness.open()
    assert isinstance(runtime, DockerRuntime)
    return runtime


@pytest.fixture
def api(engine: Dockerd) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=engine.host)
    yield client
    client.close()


@pytest.fixture
def by_hand(engine: Dockerd) -> Iterator[list[str]]:
    """Ids of containers made without gputui; they are removed at the end."""
    made: list[str] = []
    yield made
    client = docker.APIClient(base_url=engine.host)
    for each in made:
        client.remove_container(each, force=True)
    client.close()


def launch(
    harness: Harness, image: str, command: tuple[str, ...], gpus: tuple[str, ...] = (), **options: Any
) -> Launch:
    made = harness.launch(command, gpus=gpus)
    network = {} if "publish" in options else {"network": NETWORK}
    spec = JobSpec(image=image, command=command, tenant="team-a", options=ContainerOptions(**network | options))
    return Launch(made.store_id, made.job_id, made.attempt, spec, gpus)


def printed(harness: Harness, runtime: DockerRuntime, made: Launch, path: Path) -> str:
    created = runtime.create(made)
    runtime.start(created.id)
    harness.ended(runtime, created.id)
    return output(runtime, created.id, path).decode()


def failure(runtime: DockerRuntime, made: Launch) -> RuntimeFault:
    """Return the error of creating and starting a container; nothing is left behind."""
    with pytest.raises(RuntimeFault) as fault:
        runtime.start(runtime.create(made).id)
    assert runtime.containers() == ()
    return fault.value


# options


def test_options_are_passed_to_the_engine(
    harness: Harness, runtime: DockerRuntime, api: docker.APIClient, tmp_path: Path
) -> None:
    made = launch(
        harness,
        IMAGE,
        SLEEP,
        cpus=1.5,
        cpu_shares=512,
        memory=64 * 2**20,
        shm_size=2**30,
        ulimits=("memlock=-1", "stack=67108864", "nofile=10:20"),
        volumes=(f"{tmp_path}:/data:ro", "/scratch", "cache:/cache"),
        mounts=(f"type=bind,src={tmp_path},dst=/more,readonly", "type=tmpfs,target=/fast,tmpfs-size=1m"),
        user="alice",
        workdir="/tmp",
        entrypoint="env",
        network="none",
        runtime="nvidia",
    )
    inspected = api.inspect_container(runtime.create(made).id)
    host, config = inspected["HostConfig"], inspected["Config"]
    assert inspected["Name"] == f"/{made.name}"
    assert (host["Init"], host["AutoRemove"], host["RestartPolicy"]["Name"] or "no") == (True, False, "no")
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "5000000", "max-file": "2"}}
    assert (host["NanoCpus"], host["CpuShares"], host["PidsLimit"]) == (1_500_000_000, 512, 100)
    assert (host["Memory"], host["MemorySwap"]) == (64 * 2**20, 128 * 2**20), "twice the memory, as with docker run"
    assert host["ShmSize"] == 2**30
    assert {(each["Name"], each["Soft"], each["Hard"]) for each in host["Ulimits"]} == {
        ("memlock", -1, -1),
        ("stack", 67108864, 67108864),
        ("nofile", 10, 20),
    }
    assert host["Binds"] == [f"{tmp_path}:/data:ro", "cache:/cache"]
    assert {mount["Destination"] for mount in inspected["Mounts"]} >= {"/data", "/scratch", "/cache", "/more"}
    assert host["Mounts"][1]["TmpfsOptions"] == {"SizeBytes": 2**20}
    assert (host["NetworkMode"], host["Runtime"]) == ("none", "nvidia")
    assert (config["User"], config["WorkingDir"], config["Entrypoint"]) == ("alice", "/tmp", ["env"])


def test_options_and_labels_of_a_container(harness: Harness, runtime: DockerRuntime, api: docker.APIClient) -> None:
    # a container may share ipc with the host
    inspected = api.inspect_container(runtime.create(launch(harness, IMAGE, SLEEP, ipc="host")).id)
    assert inspected["HostConfig"]["IpcMode"] == "host"
    # a container has the labels of its job
    mine = (("team", "x"), ("gputui.store", "stolen"), ("gputui.other", "1"), ("user", "somebody"))
    made = launch(harness, IMAGE, SLEEP, (uuid(0), uuid(1)), labels=mine)
    labels = api.inspect_container(runtime.create(made).id)["Config"]["Labels"]
    assert labels == {
        "team": "x",
        "user": "team-a",
        "gputui.store": STORE,
        "gputui.job": str(made.job_id),
        "gputui.attempt": "1",
        "gputui.gpus": f"{uuid(0)},{uuid(1)}",
        "gputui.boot": boot_id(),
        "gputui.guest": "",
        "gputui.submitter": "",
    }
    # a request for too many cpus is lowered
    created = runtime.create(launch(harness, IMAGE, SLEEP, cpus=4096))
    cpus = int(api.info()["NCPU"])
    assert api.inspect_container(created.id)["HostConfig"]["NanoCpus"] == cpus * 10**9
    assert created.notes == (f"--cpus 4096 was lowered to the host's {cpus}",)
    # GPUs are requested by UUID
    created = runtime.create(launch(harness, IMAGE, SLEEP, (uuid(2), uuid(5))))
    (request,) = api.inspect_container(created.id)["HostConfig"]["DeviceRequests"]
    assert request["Driver"] == ""
    assert request["DeviceIDs"] == [uuid(2), uuid(5)]
    assert request["Capabilities"] == [["gpu"]]
    assert not request["Count"]


# GPUs


SHOW_CAPABILITIES = shell("echo $NVIDIA_VISIBLE_DEVICES:$NVIDIA_DRIVER_CAPABILITIES")


@pytest.mark.parametrize(
    ("gpus", "env", "seen"),
    [
        ("device=0", (), ""),
        ('"device=0","capabilities=video"', (), "video"),
        ("device=0", (("NVIDIA_DRIVER_CAPABILITIES", "all"),), "all"),
        ('"device=0","capabilities=video"', (("NVIDIA_DRIVER_CAPABILITIES", "graphics"),), "graphics"),
    ],
)
def test_driver_capabilities_are_those_of_the_job(
    harness: Harness, runtime: DockerRuntime, tmp_path: Path, gpus: str, env: tuple[tuple[str, str], ...], seen: str
) -> None:
    made = launch(harness, IMAGE, SHOW_CAPABILITIES, (uuid(0),), env=env)
    made = replace(made, spec=replace(made.spec, gpus=job_values.gpus(gpus, "--gpus")))
    assert printed(harness, runtime, made, tmp_path / "log") == f"{uuid(0)}:{seen}\n"


def test_assigned_gpus_override_the_choice_of_the_user(
    harness: Harness, runtime: DockerRuntime, tmp_path: Path
) -> None:
    own = (("NVIDIA_VISIBLE_DEVICES", "all"), ("CUDA_VISIBLE_DEVICES", "3"), ("A", "1"))
    made = launch(harness, IMAGE, shell("echo $NVIDIA_VISIBLE_DEVICES:$CUDA_VISIBLE_DEVICES:$A"), (uuid(0),), env=own)
    created = runtime.create(made)
    assert [note.split()[0] for note in created.notes] == ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    runtime.start(created.id)
    harness.ended(runtime, created.id)
    assert output(runtime, created.id, tmp_path / "log").decode() == f"{uuid(0)}::1\n"


def test_an_image_of_nvidia_gives_no_gpu_to_a_job_without(
    harness: Harness, runtime: DockerRuntime, tmp_path: Path
) -> None:
    text = printed(harness, runtime, launch(harness, IMAGE_OF_NVIDIA, ()), tmp_path / "log")
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in text
    assert "GPUTUI_GPUS=0\n" in text


# ports


def test_ports_chosen_by_the_engine_are_reported(harness: Harness, runtime: DockerRuntime) -> None:
    made = launch(harness, IMAGE, SLEEP, publish=("auto:8888", "127.0.0.1:auto:9000/udp", "127.0.0.1:39217:80"))
    created = runtime.create(made)
    runtime.start(created.id)
    found = {port.container_port: port for port in record(runtime, created.id).ports}
    assert {port: (each.protocol, each.host_ip) for port, each in found.items()} == {
        80: ("tcp", "127.0.0.1"),
        8888: ("tcp", "0.0.0.0"),
        9000: ("udp", "127.0.0.1"),
    }
    assert found[80].host_port == 39217
    assert found[8888].host_port >= 1024
    assert found[8888].ssh("gpu1") == f"ssh -N -L 8888:localhost:{found[8888].host_port} gpu1"
    assert found[80].ssh("gpu1") == "ssh -N -L 39217:localhost:39217 gpu1"
    assert found[9000].ssh("gpu1") is None


# causes


def test_images(runtime: DockerRuntime, harness: Harness) -> None:
    # images are listed by their names
    names = runtime.images()
    assert IMAGE in names
    assert list(names) == sorted(set(names))
    # a missing image is reported
    assert not runtime.has_image("gputui-test:nothing")
    fault = failure(runtime, launch(harness, "gputui-test:nothing", SLEEP))
    assert fault.cause.code is CauseCode.IMAGE_NOT_FOUND
    assert "gputui-test:nothing" in fault.cause.text
    # an unreachable registry is reported: a port without a listener is the network's fault, so the job is tried again.
    said: list[str] = []
    with pytest.raises(RuntimeFault) as refused:
        runtime.pull("127.0.0.1:1/some/image:tag", said.append, threading.Event())
    assert refused.value.cause.code is CauseCode.PULL_FAILED
    assert refused.value.cause.blame is Blame.INFRASTRUCTURE
    assert "127.0.0.1:1/some/image:tag" in refused.value.cause.text


REGISTRY = """
import hashlib, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
layer = b"x" * 1000
config = json.dumps({
    "architecture": "amd64", "os": "linux", "config": {}, "history": [],
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]},
}).encode()
def described(kind, blob):
    return {"mediaType": kind, "size": len(blob), "digest": "sha256:" + hashlib.sha256(blob).hexdigest()}
manifest = json.dumps({
    "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
    "config": described("application/vnd.docker.container.image.v1+json", config),
    "layers": [described("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
}).encode()
class Hanging(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self): self.do_GET()
    def do_GET(self):
        if self.path.endswith(hashlib.sha256(layer).hexdigest()):
            print("asked", flush=True)
            self.connection.recv(1)
            return
        body = manifest if "/manifests/" in self.path else config
        self.send_response(200)
        self.send_header("Content-Type", json.loads(manifest)["mediaType"])
        self.send_header("Docker-Content-Digest", "sha256:" + hashlib.sha256(manifest).hexdigest())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""Registry that offers every image and sends no layer of any."""


@pytest.fixture
def hanging(engine: Dockerd) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name of an image in that registry, and the registry's messages."""
    assert engine.holder is not None
    words = ["nsenter", "-t", str(engine.holder.pid), "-n", sys.executable, "-c", REGISTRY]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield f"127.0.0.1:{int(server.stdout.readline())}/some/image:tag", server.stdout
        server.kill()


def test_a_pull_that_hangs_can_be_cancelled_and_ends_in_the_engine_too(
    engine: Dockerd, runtime: DockerRuntime, hanging: tuple[str, IO[bytes]]
) -> None:
    image, told = hanging
    given_up = "Not continuing with pull after error: context canceled"
    before = engine.log_path.read_text().count(given_up)
    cancelled, said, faults = threading.Event(), list[str](), list[RuntimeFault]()

    def pull() -> None:
        with pytest.raises(RuntimeFault) as fault:
            runtime.pull(image, said.append, cancelled)
        faults.append(fault.value)

    thread = threading.Thread(target=pull)
    thread.start()
    assert told.readline() == b"asked\n"
    cancelled.set()
    thread.join(PATIENCE)
    assert [fault.cause.code for fault in faults] == [CauseCode.CANCELLED]
    assert said[0] == "pulling"
    until(lambda: engine.log_path.read_text().count(given_up) != before, "the engine pulls on", seconds=PATIENCE)


def test_a_pull_without_progress_is_aborted(engine: Dockerd, hanging: tuple[str, IO[bytes]]) -> None:
    settings = RuntimeSettings(docker_host=engine.host, pull_stall=timedelta(seconds=2))
    stalled = DockerRuntime(STORE, settings, FakeClock())
    with pytest.raises(RuntimeFault, match="no progress for 2s") as fault:
        stalled.pull(hanging[0], lambda _: None, threading.Event())
    assert fault.value.cause.code is CauseCode.PULL_FAILED
    assert fault.value.cause.blame is Blame.INFRASTRUCTURE
    stalled.close()


def test_an_image_is_pulled_from_a_registry_with_progress() -> None:
    """Only the texts are tested: the tests have no registry with an image in it."""
    told = list[str | None]()
    events = [
        {"status": "Pulling from some/image"},
        {"id": "a", "status": "Downloading", "progressDetail": {"current": 10, "total": 100}},
        {"id": "a", "status": "Downloading", "progressDetail": {"current": 10, "total": 100}},
        {"id": "a", "status": "Retrying in 5 seconds"},
        {"id": "a", "status": "Retrying in 4 seconds"},
        {"id": "a", "status": "Downloading", "progressDetail": {"current": 10.1, "total": 100}},
    ]
    client = SimpleNamespace(pull=lambda *_, **__: iter(events))
    pull_process.pull(cast("Any", client), "some/image", told.append)
    assert told == ["pulling", "pulling 10 %", None]


@cases("image", ["Not A Name", "UPPER/case:1"])
def test_an_invalid_image_name_is_refused(harness: Harness, runtime: DockerRuntime, image: str) -> None:
    with pytest.raises(RuntimeFault) as fault:
        runtime.pull(image, lambda _: None, threading.Event())
    assert fault.value.cause.code is CauseCode.IMAGE_NOT_FOUND
    assert failure(runtime, launch(harness, image, SLEEP)).cause.blame is Blame.SPEC


@cases(
    ("options", "option"),
    [
        ({"runtime": "nonsense"}, "--runtime"),
        ({"user": "nobody-here"}, "--user"),
        ({"memory": 1024}, "--memory"),
        ({"network": "no-such-network"}, "--network"),
        ({"mounts": ("type=bind,src=/no/such/path,dst=/x",)}, "--mount"),
        ({"mounts": ("type=bind,src=/tmp",)}, "--mount"),
        ({"volumes": ("./here:/x",)}, "--volume"),
        ({"volumes": ("/tmp:relative",)}, "--volume"),
        ({"workdir": "relative"}, "--workdir"),
        ({"ulimits": ("nofile=9:1",)}, "--ulimit"),
        ({"ipc": "nonsense"}, "--ipc"),
        ({"cpus": 0.001}, "--cpus"),
        ({"platform": "linux/s390x"}, "--platform"),
        ({"publish": ("x:80",)}, "--publish"),
        ({"device": ("fuse",)}, "--device"),
    ],
)
def test_a_bad_option_is_named(harness: Harness, runtime: DockerRuntime, options: dict[str, Any], option: str) -> None:
    fault = failure(runtime, launch(harness, IMAGE, SLEEP, **options))
    assert fault.cause.code is CauseCode.BAD_SPEC, fault
    assert option in fault.cause.text


def test_missing_commands(harness: Harness, runtime: DockerRuntime) -> None:
    # a missing command is reported
    fault = failure(runtime, launch(harness, IMAGE, ()))
    assert fault.cause.code is CauseCode.BAD_SPEC
    assert "COMMAND" in fault.cause.text
    # a command missing inside a shell is blamed on the job
    created = runtime.create(launch(harness, IMAGE, shell("no-such-program")))
    runtime.start(created.id)
    ended = harness.ended(runtime, created.id)
    assert (ended.exit_code, ended.cause and ended.cause.code) == (127, CauseCode.NON_ZERO_EXIT)


def test_a_failed_hook_is_blamed_on_the_machine(harness: Harness, runtime: DockerRuntime, engine: Dockerd) -> None:
    engine.fail_hook()
    try:
        fault = failure(runtime, launch(harness, IMAGE, SLEEP, (uuid(0),)))
    finally:
        engine.fail_hook(False)
    assert fault.cause.code is CauseCode.GPU_SETUP_FAILED
    assert fault.cause.blame is Blame.INFRASTRUCTURE
    assert "driver not loaded" in fault.cause.text


def test_a_container_over_its_memory_limit_is_reported(harness: Harness, runtime: DockerRuntime) -> None:
    # containerd watches a container's memory only from a moment after its start, and an engine under load may hear of
    # the end before it hears of the memory: so the shell waits before its child runs, and outlives it
    greedy = "sleep 2; dd if=/dev/zero of=/dev/null bs=100M count=1; code=$?; sleep 2; exit "
    made = [launch(harness, IMAGE, shell(greedy + end), memory=8 * 2**20) for end in ("$code", "0")]
    itself, part = [runtime.create(each).id for each in made]
    for container_id in (itself, part):
        runtime.start(container_id)
    ended = harness.ended(runtime, itself)
    assert (ended.exit_code, ended.cause and ended.cause.code, ended.notes) == (137, CauseCode.OUT_OF_MEMORY, ())
    ended = harness.ended(runtime, part)
    assert (ended.exit_code, ended.cause, ended.notes) == (0, None, (PART_OUT_OF_MEMORY,))


def test_a_missing_engine_is_reported(tmp_path: Path) -> None:
    runtime = DockerRuntime(STORE, RuntimeSettings(docker_host=f"unix://{tmp_path}/none.sock"), FakeClock())
    assert not runtime.status().up
    checked = runtime.check()
    assert not checked.up
    assert "does not run" in checked.text
    assert runtime.status() == checked
    with pytest.raises(RuntimeUnavailableError) as error:
        runtime.containers()
    assert error.value.cause.blame is Blame.INFRASTRUCTURE
    with pytest.raises(RuntimeUnavailableError):
        runtime.logs("any", follow=True)


# names


def test_a_name_taken_by_a_stranger(harness: Harness, runtime: DockerRuntime, api: docker.APIClient) -> None:
    made = launch(harness, IMAGE, SLEEP)
    stranger = api.create_container(IMAGE, list(SLEEP), name=made.name)
    try:
        with pytest.raises(RuntimeFault, match="taken"):
            runtime.create(made)
        assert api.inspect_container(stranger["Id"])["State"]["Status"] == "created"
    finally:
        api.remove_container(stranger["Id"])


def test_volumes_and_signals_of_an_end(harness: Harness, runtime: DockerRuntime, api: docker.APIClient) -> None:
    # removing takes anonymous volumes along
    before = len(api.volumes()["Volumes"] or [])
    created = runtime.create(launch(harness, IMAGE, SLEEP, volumes=("/scratch",)))
    assert len(api.volumes()["Volumes"] or []) == before + 1
    runtime.remove(created.id)
    assert len(api.volumes()["Volumes"] or []) == before
    # terminate sends the images stop signal
    script = 'trap "exit 7" INT; echo ready; while :; do sleep 0.05; done'
    made = launch(harness, IMAGE_OF_NVIDIA, ("-c", script), entrypoint="sh")
    created = runtime.create(made)
    runtime.start(created.id)
    seen(runtime, created.id, b"ready")
    runtime.terminate(created.id)
    assert harness.ended(runtime, created.id).exit_code == 7


# others' containers


@pytest.mark.parametrize(
    ("wanted", "devices"),
    [
        (["--gpus", '"device=1"'], ("1",)),
        (["--gpus", '"device=0,2"'], ("0", "2")),
        (["--gpus", "all"], ("all",)),
        (["--gpus", "2"], ("0", "1")),
        (["--gpus", f'"device={uuid(3)}"'], (uuid(3),)),
        (["--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=1,MIG-2"], ("1", "MIG-2")),
        (["-e", "NVIDIA_VISIBLE_DEVICES=all"], None),
        (["--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=void"], None),
        (["--label", "user=bob", "--device", "/dev/null:/dev/nvidia3"], None),
    ],
)
def test_foreign_containers_with_gpus_are_listed(
    runtime: DockerRuntime, engine: Dockerd, by_hand: list[str], wanted: list[str], devices: tuple[str, ...] | None
) -> None:
    by_hand.append(engine.docker("run", "-d", "--init", *wanted, "--label", "user=bob", IMAGE, *SLEEP))
    found = runtime.foreign()
    assert [each.devices for each in found] == ([devices] if devices else [])
    assert [(each.id, each.user, each.image) for each in found] == ([(by_hand[0], "bob", IMAGE)] if devices else [])
    assert runtime.foreign() == found


def test_an_ended_foreign_container_is_not_listed(runtime: DockerRuntime, engine: Dockerd, by_hand: list[str]) -> None:
    by_hand.append(engine.docker("run", "-d", "--name", "by-hand", "--gpus", "all", IMAGE, *SLEEP))
    assert [each.name for each in runtime.foreign()] == ["by-hand"]
    engine.docker("kill", "by-hand")
    assert runtime.foreign() == ()


def test_another_stores_container_is_foreign(harness: Harness, runtime: DockerRuntime) -> None:
    other = harness.open(OTHER_STORE)
    made = launch(harness, IMAGE, SLEEP, (uuid(1),))
    other.start(other.create(Launch(OTHER_STORE, 1, 1, made.spec, made.gpus)).id)
    (found,) = runtime.foreign()
    assert (found.user, found.devices) == ("team-a", (uuid(1),))


def test_containers_of_another_store_on_the_same_gpu_are_rivals(harness: Harness, runtime: DockerRuntime) -> None:
    mine = runtime.create(launch(harness, IMAGE, SLEEP, (uuid(0), uuid(1)))).id
    spec = launch(harness, IMAGE, SLEEP).spec
    runtime.create(launch(harness, IMAGE, SLEEP, (uuid(1),)))
    other = harness.open(OTHER_STORE)
    other.create(Launch(OTHER_STORE, 1, 1, spec, (uuid(2),)))
    assert runtime.rivals(mine) == (), "neither ours, nor those with other GPUs"
    theirs = other.create(Launch(OTHER_STORE, 2, 1, spec, (uuid(1),))).id
    assert [(each.id, each.state) for each in runtime.rivals(mine)] == [(theirs, ContainerState.CREATED)]
    assert [each.id for each in other.rivals(theirs)][-1] == mine
    other.start(theirs)
    assert [each.state for each in runtime.rivals(mine)] == [ContainerState.RUNNING]
    other.kill(theirs)
    harness.ended(other, theirs)
    assert runtime.rivals(mine) == ()
    assert runtime.rivals("0" * 64) == ()


def test_the_start_of_a_foreign_container_wakes_the_scheduler(
    runtime: DockerRuntime, engine: Dockerd, by_hand: list[str]
) -> None:
    woken = threading.Event()
    runtime.watch(woken.set)
    assert woken.wait(PATIENCE), "it wakes when it is connected"
    woken.clear()
    by_hand.append(engine.docker("run", "-d", "--init", IMAGE, *SLEEP))
    assert woken.wait(PATIENCE)


# output


def test_a_log_of_100_000_lines_is_saved(harness: Harness, runtime: DockerRuntime, tmp_path: Path) -> None:
    text = printed(
        harness, runtime, launch(harness, IMAGE, ("seq", "100000"), log_opt=("max-size=64m",)), tmp_path / "log"
    )
    assert text == "".join(f"{number}\n" for number in range(1, 100_001))
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


ROTATED = {"log_opt": ("max-size=10k", "max-file=3")}


@cases(("count", "is_cut"), [(100, False), (3000, True)])
def test_output_that_the_engine_dropped_is_told(
    harness: Harness, runtime: DockerRuntime, tmp_path: Path, count: int, is_cut: bool
) -> None:
    created = runtime.create(launch(harness, IMAGE, ("seq", str(count)), **ROTATED))
    runtime.start(created.id)
    harness.ended(runtime, created.id)
    stream = runtime.logs(created.id)
    lines = list(stream)
    assert (len(lines) < count, bool(getattr(stream, "notice", ""))) == (is_cut, is_cut)
    kept = output(runtime, created.id, tmp_path / "log").decode().splitlines()
    assert kept[-1] == str(count)
    assert [line.encode() for line in kept[is_cut:]] == lines
    told = "the engine keeps only the last 30K of this output (max-size=10K, max-file=3): lines may be missing"
    assert (kept[0] == f"[gputui: {told}]") is is_cut


def test_a_long_line_stays_one_line(harness: Harness, runtime: DockerRuntime) -> None:
    created = runtime.create(launch(harness, IMAGE, shell("head -c 100000 /dev/zero | tr '\\0' x; echo; echo end")))
    runtime.start(created.id)
    harness.ended(runtime, created.id)
    assert [len(line) for line in runtime.logs(created.id)] == [100_000, 3]


@cases("follow", [False, True])
def test_lines_begin_with_their_time_on_request(harness: Harness, runtime: DockerRuntime, follow: bool) -> None:
    script = "echo a; head -c 40000 /dev/zero | tr '\\0' x; echo; printf 'no end'"
    created = runtime.create(launch(harness, IMAGE, shell(script)))
    runtime.start(created.id)
    harness.ended(runtime, created.id)
    stream = runtime.logs(created.id, follow=follow, stamped=True)
    assert getattr(stream, "is_stamped", False)
    lines = list(stream)
    assert [line.partition(b" ")[2] for line in lines] == [b"a", b"x" * 40_000, b"no end"]
    assert all(re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ", line) for line in lines)
    assert not getattr(runtime.logs(created.id), "is_stamped", True)


def test_an_unwritable_log_is_reported(harness: Harness, runtime: DockerRuntime, tmp_path: Path) -> None:
    created = runtime.create(launch(harness, IMAGE, ("true",)))
    runtime.start(created.id)
    with pytest.raises(RuntimeFault, match="cannot keep the log"):
        runtime.save_log(created.id, tmp_path / "missing" / "log")
    assert record(runtime, created.id).state in set(ContainerState)


# many callers


def test_many_threads_use_one_runtime(harness: Harness, runtime: DockerRuntime) -> None:
    ids = [runtime.create(launch(harness, IMAGE, SLEEP)).id for _ in range(3)]
    wrong: list[object] = []

    def ask() -> None:
        for _ in range(30):
            found = {each.id for each in runtime.containers()}
            if found != set(ids) or runtime.inspect("none") or runtime.foreign():
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_importing_the_runtime_does_not_load_docker() -> None:
    script = (
        "import sys, gputui.runtime, gputui.runtime.docker.runtime;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'docker', 'requests', 'urllib3', 'paramiko'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
