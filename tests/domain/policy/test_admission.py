"""Requests that jobs of plain users may make: every option has a rule, or is closed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.policy.admission import (
    FREE,
    OPENED,
    AdmissionRules,
    MountSource,
    box,
    full_image,
    mount_refusal,
    mount_roots,
    refusals,
)
from gputui.domain.settings import AdmissionSettings, AllowSettings
from tests.cases import cases

GIB = 1024**3
CAPPED = AdmissionSettings(memory=8 * GIB, cpus=4.0, shm_size=GIB, pids=100, networks=("lab",))


def rules(settings: AdmissionSettings = CAPPED, user: str = "alice", **allow: bool) -> AdmissionRules:
    return AdmissionRules(1001, user, settings, AllowSettings(allow, named_volumes=("models",)))


def refused(image: str | None = "debian", of: AdmissionRules | None = None, **options: Any) -> list[str]:
    """Return the refused options of a job."""
    spec = JobSpec(image=image, command=("true",), options=ContainerOptions(**options))
    return [each.option for each in refusals(spec, of or rules())]


HARMLESS: list[dict[str, Any]] = [
    {},
    {"env": (("CUDA_VISIBLE_DEVICES", "0"), ("OLD_LIBRARY", "x")), "workdir": "/w", "entrypoint": "sh"},
    {"volumes": ("/anonymous", "/data/set:/d:ro", "gputui-1001-cache:/c", "models:/m:ro,nocopy")},
    {"mounts": ("type=tmpfs,dst=/t,tmpfs-size=1g", "type=bind,src=/data,dst=/d,ro", "src=gputui-1001-x,dst=/v")},
    {"tmpfs": ("/t:size=1g",), "shm_size": GIB, "memory": 8 * GIB, "cpus": 4.0, "pids_limit": 100},
    {"network": "lab", "publish": ("8888", "auto:80", "127.0.0.1:1024:22", "8000-8010:8000-8010")},
    {"network": "none", "ipc": "private", "cgroupns": "private", "security_opt": ("no-new-privileges:true",)},
    {"ulimits": ("memlock=-1", "nofile=65536:65536"), "cap_drop": ("ALL",), "read_only": True, "oom_score_adj": 500},
    {"log_driver": "local", "stop_timeout": 600, "health_interval": timedelta(seconds=5), "volume_driver": "local"},
    {"cpu_shares": 512, "blkio_weight": 10, "labels": (("run", "a"),), "hostname": "x", "dns": ("1.1.1.1",)},
]
REFUSED: list[tuple[str, Any]] = [
    ("env", (("LD_PRELOAD", "x"),)),
    ("env", (("LD_LIBRARY_PATH", "x"),)),
    ("env", (("NVIDIA_VISIBLE_DEVICES", "all"),)),
    ("env", (("NVIDIA_MIG_CONFIG_DEVICES", "all"),)),
    ("env", (("A=b", ""),)),
    ("env", (("", "x"),)),
    ("env", (("A\0LD_PRELOAD", "x"),)),
    ("volumes", ("pgdata:/d",)),
    ("volumes", ("gputui-100-x:/d",)),
    ("volumes", ("gputui-10011-x:/d",)),
    ("volumes", ("gputui-1001-:/d",)),
    ("volumes", ("gputui-1001-x/../y:/d",)),
    ("volumes", ("../x:/d",)),
    ("volumes", ("/data:/d:ro,z",)),
    ("volumes", ("/data:/d:U",)),
    ("volumes", ("/data:/d:rshared",)),
    ("volumes", ("/data:/proc/x",)),
    ("volumes", ("/data:/a/../sys",)),
    ("volumes", ("/data://",)),
    ("volumes", ("/data:relative",)),
    ("volumes", ("/data:/a:ro:more",)),
    ("volumes", ("/data:/var/run/nvidia-container-devices/all",)),
    ("mounts", ("type=bind,src=/data,dst=/d,bind-propagation=shared",)),
    ("mounts", ("type=bind,src=/data,dst=/run/gputui",)),
    ("mounts", ("type=volume,dst=/d,volume-driver=local",)),
    ("mounts", ("type=volume,dst=/d,volume-opt=device=/etc",)),
    ("mounts", ("type=volume,src=models,dst=/d,volume-subpath=a",)),
    ("mounts", ("type=image,src=debian,dst=/d",)),
    ("mounts", ("type=tmpfs,src=/etc,dst=/d",)),
    ("mounts", ("no mount",)),
    ("tmpfs", ("/run/nvidia-container-devices/0",)),
    ("memory", 8 * GIB + 1),
    ("memory", 0),
    ("memory", -1),
    ("cpus", 4.5),
    ("cpus", 0.0),
    ("shm_size", GIB + 1),
    ("pids_limit", 101),
    ("pids_limit", 0),
    ("pids_limit", -1),
    ("cpu_shares", 1025),
    ("blkio_weight", 501),
    ("stop_timeout", 601),
    ("stop_timeout", -1),
    ("network", "host"),
    ("network", "container:x"),
    ("network", "other"),
    ("network", "name=lab,alias=database"),
    ("network", "name=lab,driver-opt=a=b"),
    ("network", "name=lab,unknown=x"),
    ("publish", ("80:80",)),
    ("publish", ("0.0.0.0:1023:1",)),
    ("publish", ("1000-1030:2000-2030",)),
    ("publish", ("nonsense",)),
    ("ipc", "host"),
    ("ipc", "container:x"),
    ("cgroupns", "host"),
    ("security_opt", ("no-new-privileges:false",)),
    ("security_opt", ("no-new-privileges", "seccomp=unconfined")),
    ("ulimits", ("RTPRIO =99",)),
    ("ulimits", ("nice=40",)),
    ("oom_score_adj", -1),
    ("log_driver", "syslog"),
    ("volume_driver", "rclone"),
    ("health_interval", timedelta(milliseconds=1)),
    ("health_start_interval", timedelta(seconds=1)),
]


@cases("options", HARMLESS)
def test_what_gives_no_rights_is_for_everybody(options: dict[str, Any]) -> None:
    assert refused(**options) == []


@cases(("field", "value"), REFUSED)
def test_what_could_give_rights_is_refused(field: str, value: Any) -> None:
    assert len(refused(**{field: value})) == 1


def any_value(field: str) -> Any:
    """Return a value of an option that its own rule, if it has one, would refuse."""
    annotation = ContainerOptions.__annotations__[field]
    values = {"bool": True, "int": -7, "float": -7.0, "timedelta": timedelta(0), "str": "strange"}
    return next((value for name, value in values.items() if annotation.startswith(name)), ("strange",))


def test_every_option_has_a_rule_or_is_closed() -> None:
    """One that is added later is closed until somebody thinks about it."""
    open_ones = {field for field in ContainerOptions.__struct_fields__ if not refused(**{field: any_value(field)})}
    pairs = {"env", "labels"}
    assert open_ones - pairs == FREE - pairs


def test_rules_that_a_site_lifts_and_adds() -> None:
    # a site lifts some rules and none that gives root
    everything = dict.fromkeys(ContainerOptions.__struct_fields__, True) | {"docker_socket": True, "ulimit": True}
    of = AdmissionRules(1001, "alice", CAPPED, AllowSettings(everything))
    open_ones = {
        name for name in OPENED if not refused(of=of, **{_FIELDS.get(name, name): any_value(_FIELDS.get(name, name))})
    }
    assert open_ones == OPENED
    for field in ("privileged", "cap_add", "device", "device_cgroup_rule", "security_opt", "pid", "uts", "userns"):
        assert refused(of=of, **{field: any_value(field)})
    for field in ("volumes_from", "cgroup_parent", "link", "annotation", "volume_driver", "oom_kill_disable"):
        assert refused(of=of, **{field: any_value(field)})
    assert refused(of=of, network="container:x") == ["--network"]
    assert refused(of=of, network="name=container:x") == ["--network"]
    assert refused(of=of, ipc="container:x") == ["--ipc"]
    # a site forbids an option to all
    assert refused(of=rules(publish=False), publish=("8888",)) == ["--publish"]


_FIELDS = {"ulimit": "ulimits"}


@cases(
    ("name", "whole"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("library/debian", "docker.io/library/debian:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("index.docker.io/lab/x", "docker.io/lab/x:latest"),
        ("lab/x@sha256:ab", "docker.io/lab/x@sha256:ab"),
        ("ghcr.io/lab/x", "ghcr.io/lab/x:latest"),
        ("localhost/x", "localhost/x:latest"),
        ("host:5000/x:1", "host:5000/x:1"),
        ("lab/host:5000", "docker.io/lab/host:5000"),
    ],
)
def test_names_of_images_are_made_whole_as_the_engine_does(name: str, whole: str) -> None:
    assert full_image(name) == whole


@cases(
    ("pattern", "image", "may"),
    [
        ("*", "ghcr.io/any/thing@sha256:ab", True),
        ("debian", "debian:12", True),
        ("debian", "docker.io/library/debian@sha256:ab", True),
        ("debian", "debian-evil", False),
        ("debian", "evil/debian", False),
        ("debian", "ghcr.io/library/debian", False),
        ("debian:12", "debian:12", True),
        ("debian:12", "debian:13", False),
        ("debian:12*", "debian:12.1", True),
        ("ghcr.io/lab/*", "ghcr.io/lab/train:3", True),
        ("ghcr.io/lab/*", "ghcr.io/labour/train:3", False),
        ("ghcr.io/lab/*", "lab/train", False),
        ("ghcr.io/lab/*@sha256:*", "ghcr.io/lab/train:3", False),
        ("ghcr.io/lab/*@sha256:*", "ghcr.io/lab/train@sha256:ab", True),
        ("docker.io/*", "abcdef012345", False),
        ("docker.io/*", "sha256:abcdef", False),
        ("docker.io/*", "abcdef:1", True),
        ("docker.io/*", "a\nb", False),
    ],
)
def test_images_are_listed_by_patterns(pattern: str, image: str, may: bool) -> None:
    assert (refused(image, rules(AdmissionSettings(images=(pattern,)))) == []) is may
    assert box(JobSpec(image=image, command=()), rules(AdmissionSettings(root_images=(pattern,)))).is_image_user is may


def test_rules_of_images_hosts_and_boxes() -> None:
    # any image may be named where none are listed
    assert refused("abcdef012345", rules(AdmissionSettings())) == []

    # GPUs come without options of the driver
    def told(**gpus: Any) -> list[str]:
        spec = JobSpec(image="debian", command=("true",), gpus=GpuRequest(1, 1, **gpus))
        return [each.option for each in refusals(spec, rules())]

    assert told(capabilities=("compute", "utility"), driver="nvidia") == []
    assert told(driver="cdi") == told(driver_options=(("a", "b"),)) == told(capabilities=("all,x",)) == ["--gpus"]
    # host jobs are the sites choice
    assert refused(None, env=(("LD_LIBRARY_PATH", "/opt"), ("NVIDIA_TF32_OVERRIDE", "0"))) == []
    assert refused(None, env=(("A=b", ""),)) == ["--env"]
    assert refused(None, rules(AdmissionSettings(host_jobs=False))) == ["--host"]
    assert refused(None, ulimits=("rtprio=99",)) == ["--ulimit"]
    # the box has the sites limits
    found = box(JobSpec(image="debian", command=()), rules())
    assert (found.pids, found.memory, found.cpus, found.shm_size) == (100, 8 * GIB, 4.0, GIB)
    assert not found.is_image_user


@cases("image", ["", "../containers/x", "a/../b", "-it", "a b", "a\0b", "debian?x", "déjà"])
def test_what_is_no_name_of_an_image_is_refused(image: str) -> None:
    assert refused(image, rules(AdmissionSettings())) == ["image"]


@cases(
    ("root", "user", "found"),
    [
        ("/data", "alice", [("/data", "")]),
        ("/scratch/{user}", "alice", [("/scratch", "alice")]),
        ("/scratch/u-{uid}/work", "alice", [("/scratch", "u-1001/work")]),
        ("/{user}", "alice", [("/", "alice")]),
        ("/scratch/{user}", "../etc", []),
        ("/scratch/{user}", "a/b", []),
        ("/scratch/{user}", ".", []),
        ("/scratch/{user}", "", []),
        ("/data", "../etc", [("/data", "")]),
    ],
)
def test_directories_may_be_named_after_their_users(root: str, user: str, found: list[tuple[str, str]]) -> None:
    assert list(mount_roots(rules(AdmissionSettings(mounts=(root,)), user))) == found


@cases(
    ("path", "why"),
    [
        ("/data", "own files"),
        ("/data/a/b", None),
        ("/database", "outside"),
        ("/", "socket"),
        ("/run", "socket"),
        ("/run/docker.sock", "socket"),
        ("/data/state", "own files"),
        ("/data/state/logs", "own files"),
        ("/etc", "outside"),
    ],
)
def test_mounts_lie_in_listed_directories(path: str, why: str | None) -> None:
    source = MountSource("--volume", path)
    told = mount_refusal(source, path, rules(), ["/data"], ["/run/docker.sock"], "/data/state")
    assert (told is None) if why is None else (told is not None and why in told.what)
