"""Decisions based on the engine's answers, messages and addresses, without an engine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, EngineGpus, Launch
from gputui.domain.errors import Blame, Cause, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import create
from gputui.runtime.docker.connection import cause_of, cause_of_init, unavailable
from gputui.runtime.docker.create import create_request
from gputui.runtime.docker.engine import EngineFacts, GpuMode, read_facts
from gputui.runtime.docker.logs import LogLimit, frames, limit_of, lines
from gputui.runtime.docker.pull_process import PullProgress, pull_fault
from gputui.runtime.docker.records import ContainerCache, Outages, container_record, foreign_of, parse_time
from gputui.runtime.host_processes import boot_id
from tests.cases import cases
from tests.factories import NOW, spec, uuid

if TYPE_CHECKING:
    from docker import APIClient

# the engine

VERSION = {"Version": "27.5.1", "ApiVersion": "1.47", "Components": [{"Name": "Engine"}]}
PODMAN = [{"Name": "Podman Engine"}]
INFO = {"NCPU": 8, "Runtimes": {"runc": {}, "nvidia": {}}, "LiveRestoreEnabled": True, "DefaultRuntime": "runc"}


@cases(
    ("version", "info", "mode"),
    [
        ({}, {}, GpuMode.NVIDIA),
        ({}, {"Runtimes": {"runc": {}}}, GpuMode.NVIDIA),
        ({}, {"Runtimes": {}, "CDISpecDirs": ["/etc/cdi"]}, GpuMode.CDI),
        ({}, {"Runtimes": {}, "CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": None}, GpuMode.NVIDIA),
        ({}, {"Runtimes": {}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, GpuMode.CDI),
        ({}, {"Runtimes": {}, "DiscoveredDevices": [{"ID": "vendor.com/nic=0"}]}, GpuMode.NVIDIA),
        ({}, {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, GpuMode.NVIDIA),
        ({"Version": "5.4.0", "Components": PODMAN}, {}, GpuMode.CDI),
        ({"Version": "4.9.3", "Components": PODMAN}, {}, GpuMode.NONE),
        ({"ApiVersion": "1.39"}, {}, GpuMode.NONE),
    ],
)
def test_gpus_are_requested_in_the_mode_of_the_engine(
    version: dict[str, Any], info: dict[str, Any], mode: GpuMode
) -> None:
    assert read_facts(VERSION | version, INFO | info).gpu_mode is mode


@cases(
    ("version", "info", "word"),
    [
        ({}, {"LiveRestoreEnabled": False}, "live-restore"),
        ({}, {"Runtimes": {"runc": {}}}, "nvidia-container-runtime-hook"),
        ({"Version": "4.9.3", "Components": PODMAN}, {}, "Podman before 5.4"),
        ({"ApiVersion": "1.40", "Version": "19.03.15"}, {}, "the engine is too old, its API is 1.40"),
        ({}, {"MemoryLimit": False, "CpuCfsQuota": True}, "--memory"),
    ],
)
def test_engines_are_warned_about(version: dict[str, Any], info: dict[str, Any], word: str) -> None:
    facts = read_facts(VERSION | version, INFO | info)
    (warning,) = (*facts.warnings, *facts.gpus.warnings)
    assert word in warning


def test_engines_without_and_with_warnings() -> None:
    # an engine without device requests is too old for GPUs as well
    facts = read_facts(VERSION | {"ApiVersion": "1.39", "Version": "18.09.9"}, INFO)
    assert ["too old" in warning for warning in (*facts.warnings, *facts.gpus.warnings)] == [True, True]
    # a healthy engine has no warnings
    facts = read_facts(VERSION, INFO)
    assert (facts.name, facts.cpus, facts.warnings) == ("Docker 27.5.1", 8, ())
    assert facts.gpus.warnings == ()


@cases(
    ("changes", "api", "docker"),
    [
        ({"cgroupns": "host"}, "1.40", "20.10"),
        ({"platform": "linux/amd64"}, "1.40", "20.10"),
        ({"annotation": ("a=b",)}, "1.42", "24"),
        ({"health_cmd": "true", "health_start_interval": timedelta(seconds=5)}, "1.43", "25"),
    ],
)
def test_an_option_that_an_old_engine_would_ignore_is_refused(changes: dict[str, Any], api: str, docker: str) -> None:
    options = ContainerOptions(**changes)
    option = "--" + next(name for name in changes if name != "health_cmd").replace("_", "-")
    old = read_facts(VERSION | {"ApiVersion": api, "Version": "9.9"}, INFO)
    with pytest.raises(
        RuntimeFault, match=f"^{option}: Docker 9.9 does not know it: it needs Docker {docker}$"
    ) as caught:
        body(old, options=options)
    assert caught.value.cause.blame is Blame.SPEC
    assert body(read_facts(VERSION, INFO), options=options)
    podman = read_facts({"Version": "5.4.0", "ApiVersion": "1.40", "Components": PODMAN}, INFO)
    assert body(podman, options=options), "Podman's API version does not tell what it knows"


# what is sent


def body(facts: EngineFacts, **changes: Any) -> dict[str, Any]:
    launch = Launch("s", 1, 1, spec(**changes), (uuid(0),))
    return create_request(launch, facts, RuntimeSettings()).body


def test_gpus_and_output_of_a_body() -> None:
    # GPUs are requested by cdi
    made = body(EngineFacts("29", cpus=8, gpu_mode=GpuMode.CDI))
    assert made["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid(0)}"]}]
    assert "NVIDIA_VISIBLE_DEVICES=void" in made["Env"]
    # Python writes its output at once unless the job says otherwise
    facts = EngineFacts("28.0", 8)
    assert "PYTHONUNBUFFERED=1" in body(facts)["Env"]
    assert "PYTHONUNBUFFERED=" in body(facts, options=ContainerOptions(env=(("PYTHONUNBUFFERED", ""),)))["Env"]
    # an engine that would ignore GPUs is refused
    with pytest.raises(RuntimeFault) as fault:
        body(EngineFacts("4.9.3", cpus=8, gpu_mode=GpuMode.NONE, gpus=EngineGpus(is_podman=True)))
    assert fault.value.cause.code is CauseCode.GPU_SETUP_FAILED
    assert "Podman 4.9.3" in fault.value.cause.text


@cases(
    ("text", "mount"),
    [
        ("type=bind,source=/a,target=/b", {"Type": "bind", "Source": "/a", "Target": "/b"}),
        ("type=bind,src=/a,dst=/b,ro", {"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}),
        ("type=bind,src=/a,dst=/b,readonly=false", {"Type": "bind", "Source": "/a", "Target": "/b"}),
        ('type=bind,"src=/a,b",dst=/b', {"Type": "bind", "Source": "/a,b", "Target": "/b"}),
        (
            "type=bind,src=/a,dst=/b,bind-propagation=rslave",
            {"Type": "bind", "Source": "/a", "Target": "/b", "BindOptions": {"Propagation": "rslave"}},
        ),
        ("source=v,target=/b", {"Type": "volume", "Source": "v", "Target": "/b"}),
        (
            "type=volume,src=v,dst=/b,volume-driver=local,volume-opt=type=nfs,volume-opt=o=addr=x",
            {
                "Type": "volume",
                "Source": "v",
                "Target": "/b",
                "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": {"type": "nfs", "o": "addr=x"}}},
            },
        ),
        (
            "type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=1777",
            {"Type": "tmpfs", "Target": "/t", "TmpfsOptions": {"SizeBytes": 2**20, "Mode": 0o1777}},
        ),
    ],
)
def test_mounts_are_converted(text: str, mount: dict[str, Any]) -> None:
    assert create.mount(text) == mount


@cases(
    "text",
    [
        "",
        "type=bind",
        "type=nonsense,target=/a",
        "type=bind,src=a,dst=/b",
        "type=tmpfs,target=/t,tmpfs-mode=9",
        "target",
        "type=tmpfs,target=/t,bind-propagation=x",
        "src=a,dst=/b,readonly=maybe",
        "type=tmpfs,target=/t,tmpfs-size=x",
    ],
)
def test_invalid_mounts_are_refused(text: str) -> None:
    with pytest.raises(RuntimeFault) as fault:
        create.mount(text)
    assert fault.value.cause.code is CauseCode.BAD_SPEC
    assert "--mount" in fault.value.cause.text


# what it answers


@cases(
    ("text", "status", "code"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", 500, CauseCode.DISK_FULL),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', 500, CauseCode.GPU_SETUP_FAILED),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=x", 400, CauseCode.GPU_SETUP_FAILED),
        ("No such image: x:latest", 404, CauseCode.IMAGE_NOT_FOUND),
        ('exec: "x": executable file not found in $PATH: unknown', 400, CauseCode.COMMAND_NOT_FOUND),
        ('exec: "/etc": permission denied: unknown', 400, CauseCode.COMMAND_NOT_EXECUTABLE),
        ("exec /app: exec format error", 500, CauseCode.COMMAND_NOT_EXECUTABLE),
        ("something nobody has seen before", 400, CauseCode.BAD_SPEC),
        ("uids and gids must be in range 0-2147483647", 500, CauseCode.BAD_SPEC),
        ("path /data is mounted on / but it is not a shared or slave mount", 500, CauseCode.BAD_SPEC),
        (
            'error during container init: error mounting "tmpfs" to rootfs at "/r/below": read-only file system',
            500,
            CauseCode.BAD_SPEC,
        ),
        ("mkdir /var/lib/docker/overlay2/1: read-only file system", 500, CauseCode.RUNTIME_ERROR),
        ("something nobody has seen before", 500, CauseCode.RUNTIME_ERROR),
        (
            "task 8a4953c11730: already exists",
            400,
            CauseCode.RUNTIME_ERROR,
        ),  # dockerd was killed in its start
    ],
)
def test_messages_of_the_engine_give_causes(text: str, status: int, code: CauseCode) -> None:
    assert cause_of(text, status=status).code is code


def test_messages_of_an_engine() -> None:
    # messages are short and in one line
    cause = cause_of("OCI runtime create failed: runc create failed: it\n broke: unknown" + " x" * 999, status=500)
    assert cause.text.startswith("it broke")
    assert len(cause.text) <= 400
    # messages of the init process give causes
    assert cause_of_init(b"[FATAL tini (7)] exec nope failed: No such file or directory\n") == Cause(
        CauseCode.COMMAND_NOT_FOUND, "the image has no command 'nope'"
    )
    found = cause_of_init(b"[FATAL tini (7)] exec /etc failed: Permission denied\n")
    assert found is not None
    assert (found.code, found.blame) == (CauseCode.COMMAND_NOT_EXECUTABLE, Blame.SPEC)
    assert cause_of_init(b"sh: nope: not found\n") is None
    # an error of the engine is the cause
    error = 'failed to create task: error running hook #0: nvidia-container-cli: driver error: "x"'
    record = container_record(inspected({"ExitCode": 128, "Error": error}))
    assert record is not None
    assert record.cause is not None
    assert record.cause.code is CauseCode.GPU_SETUP_FAILED
    assert (record.job_id, record.attempt, record.gpus) == (7, 2, (uuid(0),))


NO_WAY = '(Caused by NewConnectionError("Failed to establish a new connection: [Errno 101] Network is unreachable"))'


@cases(
    ("error", "word"),
    [
        (PermissionError(13, "Permission denied"), "usermod"),
        (FileNotFoundError(2, "No such file or directory"), "sudo systemctl enable --now docker"),
        (ConnectionRefusedError(111, "Connection refused"), "sudo systemctl enable --now docker"),
        (OSError("400 Bad Request: Client sent an HTTP request to an HTTPS server."), "DOCKER_TLS_VERIFY=1"),
        (OSError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), "unset DOCKER_TLS_VERIFY"),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "ca.pem"),
        (OSError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] certificate required"), "key.pem"),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired"), "renew it"),
        (OSError("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired"), "key.pem"),
        (OSError("SSLError(SSLEOFError(8, 'EOF occurred in violation of protocol (_ssl.c:2393)'))"), "key.pem"),
        (TimeoutError("timed out"), "in time"),
        (OSError("x" * 999), "does not answer"),
        (OSError(f"HTTPSConnectionPool(host='gpu1'): {NO_WAY}"), "does not answer: Network is unreachable ("),
        (OSError("('Connection aborted.', RemoteDisconnected('Remote end closed'))"), "answer: Remote end closed ("),
        (
            OSError("('Connection aborted.', ConnectionResetError(104, 'Connection reset'))"),
            "answer: Connection reset (",
        ),
    ],
)
def test_an_engine_that_does_not_answer(error: OSError, word: str) -> None:
    assert word in str(unavailable("unix:///var/run/docker.sock", error))


@cases(
    ("text", "time"),
    [
        ("2026-11-21T06:17:14.213224839Z", datetime(2026, 11, 21, 6, 17, 14, 213224, UTC)),
        ("2026-11-21T06:17:14Z", datetime(2026, 11, 21, 6, 17, 14, 0, UTC)),
        ("2026-11-21T07:17:14.5+01:00", datetime(2026, 11, 21, 6, 17, 14, 500000, UTC)),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
    ],
)
def test_times_of_the_engine_are_read(text: str | None, time: datetime | None) -> None:
    assert parse_time(text) == time


def inspected(state: dict[str, Any], **labels: str) -> dict[str, Any]:
    ours = {"gputui.job": "7", "gputui.attempt": "2", "gputui.gpus": uuid(0)} | labels
    return {"Id": "c", "Config": {"Labels": ours}, "State": {"Status": "exited", "ExitCode": 0} | state}


@cases("label", ["", "x", "-"])
def test_containers_with_foreign_labels_are_ignored(label: str) -> None:
    assert container_record(inspected({}, **{"gputui.job": label})) is None


# others' containers


def others(host: dict[str, Any], default_runtime: str = "runc", **config: Any) -> tuple[str, ...]:
    found = foreign_of({"Id": "c", "Name": "/n", "HostConfig": host, "Config": config, "State": {}}, default_runtime)
    return found.devices if found else ()


@cases(
    ("host", "devices"),
    [
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "vendor.com/nic=1"]}]}, ("0",)),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, ("all",)),
        ({"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, ("all",)),
        ({"DeviceRequests": [{"Driver": "amd", "Count": -1, "Capabilities": [["npu"]]}]}, ()),
        ({"Devices": [{"PathOnHost": "/dev/nvidia3"}, {"PathOnHost": "/dev/nvidiactl"}]}, ("minor:3",)),
        ({"Devices": [{"PathOnHost": "/dev/nvidia-uvm"}]}, ()),
    ],
)
def test_devices_of_foreign_containers_are_found(host: dict[str, Any], devices: tuple[str, ...]) -> None:
    assert others(host) == devices


def test_the_default_runtime_gives_foreign_containers_all_gpus() -> None:
    env = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0,GPU-1"]
    assert others({"Runtime": ""}, "nvidia", Env=env) == ("0", "GPU-1")
    assert others({"Runtime": ""}, "runc", Env=env) == ()


# its restarts


def ended(exit_code: int, seconds: float, code: CauseCode = CauseCode.SIGNALLED) -> ContainerRecord:
    at = NOW + timedelta(seconds=seconds)
    cause = Cause(code, "ended")
    return ContainerRecord("c", 1, 1, ContainerState.EXITED, (), NOW, at, exit_code, cause)


@cases(
    ("record", "lost"),
    [
        (ended(143, 15), True),
        (ended(137, 9), True),
        (ended(255, 15, CauseCode.NON_ZERO_EXIT), False),
        (ended(143, 5), False),
        (ended(143, 25), False),
        (ended(139, 15), False),
        (ended(137, 15, CauseCode.OUT_OF_MEMORY), False),
    ],
)
def test_ends_during_an_outage_are_judged(record: ContainerRecord, lost: bool) -> None:
    outages = Outages()
    outages.lost(NOW + timedelta(seconds=10))
    outages.lost(NOW + timedelta(seconds=12))
    outages.back(NOW + timedelta(seconds=20))
    cause = outages.judge(record).cause
    assert cause is not None
    assert (cause.code is CauseCode.CONTAINER_LOST) is lost


def test_outages_of_an_engine() -> None:
    # an engine that hung and answers again was not restarted
    outages = Outages()
    outages.silent(NOW + timedelta(seconds=10))
    assert outages.judge(ended(137, 15)).cause == ended(137, 15).cause, "the call that is answered first judges"
    outages.back(NOW + timedelta(seconds=20))
    assert outages.judge(ended(137, 15)).cause == ended(137, 15).cause
    # an outage begins when the engine hangs
    outages = Outages()
    outages.silent(NOW + timedelta(seconds=10))
    outages.silent(NOW + timedelta(seconds=13))
    outages.lost(NOW + timedelta(seconds=18))
    outages.back(NOW + timedelta(seconds=20))
    cause = outages.judge(ended(137, 12)).cause
    assert cause is not None
    assert cause.code is CauseCode.CONTAINER_LOST
    # ends by a reboot are recognised
    unseen = ended(255, 15, CauseCode.NON_ZERO_EXIT)
    for boot, is_local, lost in (("other", True, True), ("other", False, False), (boot_id(), True, False)):
        judged = Outages(is_local=is_local).judge(replace(unseen, boot=boot)).cause
        assert judged is not None
        assert ("restart of the machine" in judged.text) is lost, boot
    old = Outages(is_local=True).judge(unseen).cause  # by its time: an older gputui told no boot
    assert old is not None
    assert old.code is CauseCode.CONTAINER_LOST


class Ended:
    """Client of an engine with one container, which was sent SIGTERM."""

    def __init__(self, at: datetime) -> None:
        times = {"StartedAt": NOW.isoformat(), "FinishedAt": at.isoformat()}
        self.summary = {"Id": "c", "State": "exited", "Labels": {}}
        self.state = {"Status": "exited", "ExitCode": 143, "Error": "", "OOMKilled": False, "Pid": 0, **times}

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return [self.summary]

    def inspect_container(self, _: str) -> dict[str, Any]:
        labels = {"gputui.store": "s", "gputui.job": "1", "gputui.attempt": "1", "gputui.gpus": ""}
        return {"Id": "c", "Name": "/c", "State": self.state, "Created": NOW.isoformat(), "Config": {"Labels": labels}}

    def logs(self, *_: Any, **__: Any) -> bytes:
        return b""

    def events(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Action": "start", "id": "c"}]

    def info(self) -> dict[str, Any]:
        return {}


def test_an_end_seen_before_an_outage_is_judged_again_after_it() -> None:
    """A stopping engine ends its containers first, so they may be inspected before its end is noticed."""
    survey, client = ContainerCache("s"), cast("APIClient", Ended(NOW + timedelta(seconds=9.5)))
    [seen] = survey.containers(client)
    assert seen.cause is not None
    assert seen.cause.code is CauseCode.SIGNALLED
    survey.outages.lost(NOW + timedelta(seconds=10))
    survey.outages.back(NOW + timedelta(seconds=20))
    survey.forget_all()
    [judged] = survey.containers(client)
    assert judged.cause is not None
    assert judged.cause.code is CauseCode.CONTAINER_LOST


@cases("remembered", [True, False])
def test_a_cut_connection_is_not_taken_for_a_restart_of_the_engine(remembered: bool) -> None:
    class Remembering(Ended):
        def events(self, **_: Any) -> list[dict[str, Any]]:
            return [{"timeNano": 7_000_000_001}] if remembered else []

    survey, client = ContainerCache("s"), cast("APIClient", Remembering(NOW + timedelta(seconds=12)))
    survey.see_event(7_000_000_001)
    survey.lost(NOW + timedelta(seconds=10))
    survey.outages.back(NOW + timedelta(seconds=20))
    [seen] = survey.containers(client)
    assert seen.cause is not None
    assert (seen.cause.code is CauseCode.SIGNALLED) is remembered


def test_an_end_is_not_judged_while_the_engine_stops() -> None:
    """A stopping engine accepts no new connections, and reports the ended containers on old ones."""
    going = [RuntimeUnavailableError("nobody listens")]

    def check_listening() -> None:
        if going:
            raise going[0]

    survey, client = ContainerCache("s", check_listening), cast("APIClient", Ended(NOW + timedelta(seconds=9.5)))
    with pytest.raises(RuntimeUnavailableError):
        survey.containers(client)
    survey.outages.lost(NOW + timedelta(seconds=10))
    survey.outages.back(NOW + timedelta(seconds=20))
    survey.forget_all()
    going.clear()
    [judged] = survey.containers(client)
    assert judged.cause is not None
    assert judged.cause.code is CauseCode.CONTAINER_LOST
    going.append(RuntimeUnavailableError("nobody listens"))
    assert survey.containers(client) == (judged,), "it was judged once"


# output


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(content)) + content


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    yield from (data[at : at + size] for at in range(0, len(data), size))


@cases("size", [1, 7, 8, 9, 1000])
def test_lines_of_two_streams_are_separated(size: int) -> None:
    data = frame(1, b"one\ntw") + frame(2, b"err\r\n") + frame(1, b"o\n") + frame(1, b"") + frame(2, b"rest")
    assert list(lines(frames(pieces(data, size)))) == [b"one", b"err", b"two", b"rest"]


def test_an_interrupted_log_raises_an_error() -> None:
    with pytest.raises(ValueError, match="breaks off"):
        list(frames(iter([frame(1, b"whole"), frame(1, b"half")[:-1]])))


# pulls


def event(layer: str, status: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    return {"id": layer, "status": status, "progressDetail": {"current": current, "total": total}}


def test_progress_of_a_pull_is_summed() -> None:
    progress = PullProgress()
    events = [
        event("a", "Pulling fs layer"),
        event("a", "Downloading", 10, 100),
        event("b", "Downloading", 0, 100),
        event("a", "Downloading", 80, 100),
        event("a", "Downloading", 80, 100),
        event("a", "Download complete"),
        event("b", "Downloading", 100, 100),
        event("a", "Extracting", 1, 100),
    ]
    said = [words for each in events if (words := progress.update(each))]
    assert said == [
        "pulling",
        "pulling 10 %",
        "pulling 40 %",
        "pulling 50 %",
        "pulling 100 %",
        "unpacking",
    ]


@cases(
    ("text", "code"),
    [
        ("manifest for x:1 not found: manifest unknown", CauseCode.IMAGE_NOT_FOUND),
        ("pull access denied for x, repository does not exist", CauseCode.IMAGE_NOT_FOUND),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", CauseCode.PULL_FAILED),
        ("toomanyrequests: You have reached your pull rate limit", CauseCode.PULL_FAILED),
        (
            "pull access denied for x, repository does not exist: denied: You have reached your pull rate limit",
            CauseCode.PULL_FAILED,
        ),
        ("error parsing HTTP 403 response body: denied: too many requests", CauseCode.PULL_FAILED),
        ("write /x: no space left on device", CauseCode.DISK_FULL),
    ],
)
def test_failed_pulls_give_causes(text: str, code: CauseCode) -> None:
    assert pull_fault("x", text).cause.code is code


def test_a_refusal_without_the_credentials_of_a_broken_helper_is_the_machines_fault() -> None:
    problem = "docker-credential-pass did not answer within 20 s"
    found = pull_fault("x", "pull access denied for x, repository does not exist", problem).cause
    assert (found.code, problem in found.text) == (CauseCode.PULL_FAILED, True)
    assert pull_fault("x", "manifest unknown", problem).cause.code is CauseCode.IMAGE_NOT_FOUND


@cases(
    ("size", "files", "read", "after", "is_told"),
    [
        (10_000, 3, 19_999, 60.0, False),  # two full files and a new one are more than that
        (10_000, 3, 20_000, 60.0, True),
        (10_000, 1, 0, 60.0, True),
        (100 * 1024**2, 2, 150 * 1024**2, 1.0, False),  # 100 MiB are not written within a second
        (100 * 1024**2, 2, 150 * 1024**2, 3.0, True),
        (0, 3, 10**12, 60.0, False),
        (10_000, 3, 20_000, -0.1, True),  # the engine was late to note the start
        (10_000, 1, 0, -0.1, False),
    ],
)
def test_a_log_tells_whether_lines_may_be_missing(
    size: int, files: int, read: int, after: float, is_told: bool
) -> None:
    limit = LogLimit(size, files, started_at=NOW, read=read)
    assert bool(limit.notice(NOW + timedelta(seconds=after))) is is_told


@cases(
    ("config", "size", "files"),
    [
        ({"Type": "json-file", "Config": {"max-size": "10k", "max-file": "3"}}, 10 * 1024, 3),
        ({"Type": "json-file", "Config": {"max-size": "67108864"}}, 64 * 1024**2, 1),
        ({"Type": "json-file", "Config": {}}, 0, 1),
        ({"Type": "json-file", "Config": {"max-size": "-1"}}, 0, 1),
        ({"Type": "json-file", "Config": {"max-size": "many"}}, 0, 1),
        ({"Type": "local", "Config": {}}, 20 * 1024**2, 5),
        ({"Type": "journald", "Config": None}, 0, 1),
        (None, 0, 1),
    ],
)
def test_the_limit_of_a_log_is_read(config: object, size: int, files: int) -> None:
    inspected = {"HostConfig": {"LogConfig": config}, "State": {"StartedAt": "2026-01-01T00:00:00Z"}}
    client = cast("Any", SimpleNamespace(inspect_container=lambda _: inspected))
    assert (limit_of(client, "c").size, limit_of(client, "c").files) == (size, files)
