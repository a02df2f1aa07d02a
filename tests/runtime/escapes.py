"""Escapes that a plain user may try, and a queue over a real engine with two users to try them."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import AccessError, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import (
    AccessSettings,
    AdmissionSettings,
    RuntimeSettings,
    Settings,
)
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.tick.start_protocol import start_attempt
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.store import TinyJobStore
from tests.accounts import accounts
from tests.factories import FakeClock
from tests.runtime.contract import Harness, output, shell
from tests.runtime.dockerd import IMAGE, Dockerd

SETUID_IMAGE = "gputui-test:setuid"
NEIGHBOUR = "gputui-test-neighbour"
"""A container of somebody else."""
SECRET = "the-secret-of-bob"


class People(Struct, frozen=True):
    """Two users without any right to the engine or the queue."""

    alice: pwd.struct_passwd
    bob: pwd.struct_passwd


@contextmanager
def made_people() -> Iterator[People]:
    """Make two accounts on this machine, until the end."""
    mark = secrets.token_hex(3)
    names = [f"gpta{mark}", f"gptb{mark}"]
    with accounts():
        for name in names:
            subprocess.run(["useradd", "-M", "-U", "-s", "/bin/sh", name], check=True)
    try:
        yield People(*map(pwd.getpwnam, names))
    finally:
        with accounts():
            for name in names:
                subprocess.run(["userdel", "-f", name], check=True)


@contextmanager
def made_place(people: People) -> Iterator[Path]:
    """Yield a directory of root with homes of both users, a shared one, and the state directory."""
    with tempfile.TemporaryDirectory(prefix="gputui-escapes-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "state").mkdir(mode=0o700)
        (path / "homes").mkdir()
        (path / "homes").chmod(0o1777)
        (path / "shared").mkdir()
        for user, where, mode in (
            (people.alice, "homes/{}", 0o700),
            (people.bob, "homes/{}", 0o700),
            (people.bob, "shared/open", 0o755),
            (people.bob, "shared/closed", 0o700),
            (people.bob, "shared/closed/inner", 0o777),
        ):
            made = path / where.format(user.pw_name)
            made.mkdir()
            os.chown(made, user.pw_uid, user.pw_gid)
            made.chmod(mode)
            (made / "secret").write_text(SECRET)
            os.chown(made / "secret", user.pw_uid, user.pw_gid)
        home = path / "homes" / people.alice.pw_name
        (home / "to-bob").symlink_to(path / "homes" / people.bob.pw_name)
        (home / "to-closed").symlink_to(path / "shared/closed")
        (home / "to-etc").symlink_to("/etc")
        os.mkfifo(home / "pipe")
        for each in home.iterdir():
            os.chown(each, people.alice.pw_uid, people.alice.pw_gid, follow_symlinks=False)
        (path / "door").mkdir()
        with closing(socket.socket(socket.AF_UNIX)) as door:
            door.bind(f"{path}/door/api.sock")
            (path / "door/api.sock").chmod(0o666)
            yield path


@contextmanager
def made_site(engine: Dockerd) -> Iterator[Site]:
    """Make a queue with two users over an engine, until the end."""
    with made_people() as people, made_place(people) as place:
        site = Site(engine, people, place)
        try:
            site.prepare()
            yield site
        finally:
            site.close()


class Site:
    """A queue of root over a private engine, with a plain user."""

    def __init__(self, engine: Dockerd, people: People, place: Path) -> None:
        self.engine, self.people, self.place = engine, people, place
        runtime = RuntimeSettings(docker_host=engine.host)
        self.harness = Harness(lambda store: DockerRuntime(store, runtime, FakeClock()), image=IMAGE, name="docker")
        self.admission = AdmissionSettings(
            mounts=(f"{place}/homes/{{user}}", f"{place}/shared", f"{place}/door", str(engine.directory)),
            networks=("lab",),
            pids=64,
            memory=64 * 1024**2,
            cpus=0.5,
            shm_size=8 * 1024**2,
        )
        self.settings = Settings(
            admission=self.admission, runtime=runtime, access=AccessSettings(socket=f"{place}/door/api.sock")
        )
        self.store = TinyJobStore(place / "state", self.settings.store)

    def prepare(self) -> None:
        docker = self.engine.docker
        docker("run", "--network=none", "--name", NEIGHBOUR, "-d", "-e", f"TOKEN={SECRET}", IMAGE, "sleep", "600")
        script = "echo root::0:0::/root:/bin/sh > /etc/passwd; ln -s busybox /bin/su; chmod 4755 /bin/busybox"
        docker("run", "--network=none", "--name", "gputui-test-maker", IMAGE, "sh", "-c", script)
        labels = "LABEL traefik.enable=true gputui.submitter=0"
        docker("commit", "--change", labels, "gputui-test-maker", SETUID_IMAGE)
        docker("rm", "gputui-test-maker")
        docker("run", "--rm", "--network=none", "-v", "pgdata:/v", IMAGE, "sh", "-c", f"echo {SECRET} > /v/secret")
        bobs = f"gputui-{self.people.bob.pw_uid}-data:/v"
        docker("run", "--rm", "--network=none", "-v", bobs, IMAGE, "sh", "-c", f"echo {SECRET} > /v/secret")

    def close(self) -> None:
        self.engine.docker("rm", "--force", NEIGHBOUR)
        self.harness.clean()
        self.store.close()

    @property
    def home(self) -> str:
        return f"{self.place}/homes/{self.people.alice.pw_name}"

    def run(self, spec: JobSpec, uid: int, settings: Settings | None = None) -> str | RuntimeFault:
        """Return the output of a job of that user, or why it was not started."""
        settings = settings or self.settings
        runtime = self.harness.open()
        launch = replace(self.harness.launch(()), spec=spec, submitter=uid)
        permit = partial(UserPermissions(self.place / "state", settings).permitted, runtime.root_directory)
        fault = start_attempt(self.store, runtime, launch, FakeClock(), settings, permit)
        if fault is not None:
            return fault
        self.harness.ended(runtime, launch.name)
        with tempfile.TemporaryDirectory() as folder:
            found = output(runtime, launch.name, Path(folder) / "log").decode()
        runtime.remove(launch.name)
        return found

    def refusal(self, spec: JobSpec, settings: Settings | None = None) -> str | None:
        """Return why alice may not submit the job; None if she may."""
        try:
            permissions = UserPermissions(self.place / "state", settings or self.settings)
            permissions.check(spec, self.people.alice.pw_uid)
        except AccessError as error:
            return f"{error.rule}: {error}"
        return None


def job(script: str = "id -u", **options: Any) -> JobSpec:
    options = {"network": "none", **options}
    return JobSpec(image=IMAGE, command=shell(script), options=ContainerOptions(**options))


OWN_NAMESPACE = "readlink /proc/self/ns/{}"


class Escape(Struct, frozen=True):
    """Attempt of a user."""

    name: str
    options: dict[str, Any] = {}
    script: str = "id -u"
    gain: Callable[[str, Site], bool] = lambda told, site: True
    """Tells by the output whether it worked; by default, whether the job ran at all."""
    is_refused: bool = True
    """False: it runs, and gains nothing."""
    may_be_submitted: bool = False
    """True if it is refused only when it starts."""
    works: bool = True
    """True if it works for an operator on this engine."""


def says(text: str) -> Callable[[str, Site], bool]:
    return lambda told, site: text in told


def same_namespace(kind: str) -> Callable[[str, Site], bool]:
    return lambda told, site: str(Path(f"/proc/{site.engine.pid}/ns/{kind}").readlink()) in told


SPEAKS = says(SECRET)
"""Gain of an escape that has read what only bob may read."""
RAN = "echo it-ran"

OF_OPTIONS = (
    Escape("privileged", {"privileged": True}, "grep CapEff /proc/self/status", says("000001")),
    Escape("one capability", {"cap_add": ("SYS_ADMIN",)}, "mount -t tmpfs t /tmp && echo mounted", says("mounted")),
    Escape("all capabilities", {"cap_add": ("ALL",)}, "grep CapEff /proc/self/status", says("000001")),
    Escape("a device", {"device": ("/dev/kmsg",)}, "ls /dev", says("kmsg")),
    Escape("a rule for devices", {"device_cgroup_rule": ("b *:* rwm",)}),
    Escape("no seccomp", {"security_opt": ("seccomp=unconfined",)}, "grep Seccomp: /proc/self/status", says("\t0")),
    Escape("paths of the kernel", {"security_opt": ("systempaths=unconfined",)}),
    Escape("new privileges", {"security_opt": ("no-new-privileges:false",)}),
    Escape("a label of SELinux", {"security_opt": ("label=disable",)}),
    Escape("the host's processes", {"pid": "host"}, OWN_NAMESPACE.format("pid"), same_namespace("pid")),
    Escape("a neighbour's processes", {"pid": f"container:{NEIGHBOUR}"}, "cat /proc/1/environ", SPEAKS),
    Escape("the host's memory", {"ipc": "host"}, OWN_NAMESPACE.format("ipc"), same_namespace("ipc")),
    Escape("a neighbour's memory", {"ipc": f"container:{NEIGHBOUR}"}, works=False),
    Escape("the host's name", {"uts": "host"}, OWN_NAMESPACE.format("uts"), same_namespace("uts")),
    Escape("the host's users", {"userns": "host"}),
    Escape("the host's groups", {"cgroupns": "host"}, OWN_NAMESPACE.format("cgroup"), same_namespace("cgroup")),
    Escape("the host's network", {"network": "host"}, OWN_NAMESPACE.format("net"), same_namespace("net")),
    Escape("the host's network by its long name", {"network": "name=host"}, OWN_NAMESPACE.format("net")),
    Escape("a neighbour's network", {"network": f"container:{NEIGHBOUR}"}),
    Escape("a network that is not listed", {"network": "database"}, works=False),
    Escape("options of a network", {"network": "name=bridge,driver-opt=com.docker.network.endpoint.sysctls=x=1"}),
    Escape("a link to a neighbour", {"network": "bridge", "link": (f"{NEIGHBOUR}:n",)}, "env", SPEAKS, works=False),
    Escape("a neighbour's volumes", {"volumes_from": (NEIGHBOUR,)}),
    Escape("another control group", {"cgroup_parent": "/"}, "cat /proc/self/cgroup", works=False),
    Escape("another runtime", {"runtime": "nvidia"}),
    Escape("a driver of volumes", {"volume_driver": "plugin", "volumes": ("v:/v",)}, works=False),
    Escape("an annotation that injects devices", {"annotation": ("cdi.k8s.io/x=nvidia.com/gpu=all",)}, works=False),
    Escape("a setting of the kernel", {"sysctl": ("kernel.shm_rmid_forced=1",)}),
    Escape(
        "a log that goes elsewhere",
        {"log_driver": "syslog", "log_opt": ("syslog-address=udp://1.1.1.1:1",)},
        works=False,
    ),
    Escape("a log that fills the disk", {"log_opt": ("max-size=1000g",)}),
    Escape(
        "priority in want of memory",
        {"oom_score_adj": -1000},
        "cat /proc/self/oom_score_adj",
        says("-1000"),
        works=False,
    ),
    Escape("no end in want of memory", {"oom_kill_disable": True}, works=False),
    Escape("real time", {"ulimits": ("rtprio=99",)}, "ulimit -r", says("99"), works=False),
    Escape("more processors than all", {"cpu_shares": 262144}),
    Escape("no limit of memory", {"memory": 0}, "cat /sys/fs/cgroup/memory.max"),
    Escape("no limit of processes", {"pids_limit": -1}, "cat /sys/fs/cgroup/pids.max", says("max")),
    Escape("more processors than allowed", {"cpus": 1.0}),
    Escape("no limit of swap", {"memory_swap": -1, "memory": 32 * 1024**2}),
    Escape("a port of the machine", {"network": "bridge", "publish": ("22:22",)}, works=False),
    Escape("a job that never stops", {"stop_timeout": 3600}),
    Escape(
        "work for the engine",
        {"health_cmd": "true", "health_interval": None},
        is_refused=False,
        gain=says("x"),
        works=False,
    ),
    Escape(
        "a library for root's programs", {"env": (("LD_PRELOAD", "/proc/self/cwd/x.so"),)}, "env", says("LD_PRELOAD")
    ),
    Escape("all GPUs", {"env": (("NVIDIA_VISIBLE_DEVICES", "all"),)}, "env", says("DEVICES=all"), works=False),
    Escape(
        "all GPUs in a name", {"env": (("NVIDIA_VISIBLE_DEVICES=all", ""),)}, "env", says("DEVICES=all"), works=False
    ),
    Escape("all GPUs by a mount", {"tmpfs": ("/var/run/nvidia-container-devices/all",)}),
    Escape("all GPUs by a volume", {"volumes": ("/var/run/../run/nvidia-container-devices//all",)}),
)

OF_USERS = (
    Escape("root", {"user": "0"}, "id -u", lambda told, site: told == "0\n"),
    Escape("root by name", {"user": "root"}, "id -u", lambda told, site: told == "0\n"),
    Escape("root's group", {"group_add": ("0",)}, "id -G", lambda told, site: "0" in told.split()),
    Escape("the disk group by name", {"group_add": ("disk",)}, works=False),
    Escape("the image's root", {}, "id -u", lambda told, site: told == "0\n", is_refused=False),
)


def of_mounts(site: Site) -> tuple[Escape, ...]:
    home, place, bob = site.home, site.place, site.people.bob
    engine = site.engine.directory
    read = "cat /r/secret"

    def mounted(source: str, script: str = read, gain: Callable[[str, Site], bool] = SPEAKS) -> dict[str, Any]:
        return {"options": {"volumes": (f"{source}:/r",)}, "script": script, "gain": gain}

    bind = "type=bind,source={},target=/r"
    evil = "type=volume,source={},target=/r,volume-opt=type=none,volume-opt=o=bind,volume-opt=device={}"
    return (
        Escape("another's home", **mounted(f"{place}/homes/{bob.pw_name}")),
        Escape("another's home by two dots", **mounted(f"{home}/../{bob.pw_name}")),
        Escape("another's home by a link", **mounted(f"{home}/to-bob")),
        Escape("another's home as a mount", {"mounts": (bind.format(f"{home}/to-bob"),)}, read, SPEAKS),
        Escape("a closed directory by a link", **mounted(f"{home}/to-closed")),
        Escape("what lies in a closed directory", **mounted(f"{place}/shared/closed/inner")),
        Escape("a file in a closed directory", **mounted(f"{place}/shared/closed/secret", "cat /r")),
        Escape("the closed directory itself", **mounted(f"{place}/shared/closed")),
        Escape("all that is shared", **mounted(f"{place}/shared", "cat /r/closed/secret"), is_refused=False),
        Escape("all homes", **mounted(f"{place}/homes", f"cat /r/{bob.pw_name}/secret")),
        Escape("/etc", **mounted("/etc", "cat /r/shadow", says("root:"))),
        Escape("/etc by a link", **mounted(f"{home}/to-etc", "cat /r/shadow", says("root:"))),
        Escape("the root directory", **mounted("/", "ls /r/root && echo seen", says("seen"))),
        Escape(
            "the root directory of process 1",
            **mounted("/proc/1/root", "ls /r && echo seen", says("seen")),
            works=False,
        ),
        Escape("the engine's socket", **mounted(f"{engine}/docker.sock", "ls -l /r && echo seen", says("seen"))),
        Escape("a directory with the engine's socket", **mounted(str(engine), "ls /r", says("docker.sock"))),
        Escape("the queue's socket", **mounted(f"{place}/door/api.sock", "ls /r && echo seen", says("seen"))),
        Escape("a directory with the queue's socket", **mounted(f"{place}/door", "ls /r", says("api.sock"))),
        Escape("the queue's files", **mounted(f"{place}/state", "ls /r", says("queue.json"))),
        Escape("a pipe", **mounted(f"{home}/pipe", RAN, says("it-ran"))),
        Escape(
            "a source that the engine would make", **mounted(f"{home}/none", RAN, says("it-ran")), may_be_submitted=True
        ),
        Escape("another label for a directory", {"volumes": (f"{home}:/r:Z",)}, RAN, says("it-ran")),
        Escape("another owner for a directory", {"volumes": (f"{home}:/r:U",)}, works=False),
        Escape("mounts that spread to the host", {"volumes": (f"{home}:/r:rshared",)}, works=False),
        Escape(
            "a volume that is a directory", {"mounts": (evil.format("evil", place / "shared/closed"),)}, read, SPEAKS
        ),
        Escape("another's volume", {"volumes": (f"gputui-{bob.pw_uid}-data:/r",)}, read, SPEAKS),
        Escape("the site's volume", {"volumes": ("pgdata:/r",)}, read, SPEAKS),
        Escape(
            "a volume by another's prefix", {"volumes": (f"gputui-{site.people.alice.pw_uid}-/../x:/r",)}, works=False
        ),
        Escape("another image", {"mounts": (f"type=image,source={SETUID_IMAGE},target=/r",)}, works=False),
        Escape(
            "a part of a volume", {"mounts": ("type=volume,source=pgdata,target=/r,volume-subpath=..",)}, works=False
        ),
        Escape("a mount over /proc", {"tmpfs": ("/proc/sys",)}, works=False),
        Escape(
            "a setuid file of root",
            **mounted(
                home,
                "cp /bin/busybox /r/sh; chown 0:0 /r/sh; chmod 6755 /r/sh; ls -ln /r/sh; stat -c %u /r/sh",
                lambda told, site: "0" in told.split("\n")[-2:],
            ),
            is_refused=False,
        ),
        Escape("a device file", **mounted(home, "mknod /r/d b 7 0 && echo made", says("made")), is_refused=False),
        Escape(
            "a directory that the engine makes for a mount below a mount",
            {"volumes": (f"{place}/shared/open:/r",), "tmpfs": ("/r/below",)},
            RAN,
            lambda told, site: (site.place / "shared/open/below").exists(),
            is_refused=False,
        ),
        Escape(
            "a directory that the engine makes to work in",
            {"volumes": (f"{place}/shared/open:/r",), "workdir": "/r/work/here"},
            RAN,
            lambda told, site: (site.place / "shared/open/work").exists(),
            is_refused=False,
        ),
        Escape(
            "files that the engine makes in /etc",
            {"volumes": (f"{place}/shared/open:/etc",)},
            RAN,
            lambda told, site: (site.place / "shared/open/hosts").exists(),
            is_refused=False,
        ),
        Escape(
            "to write where she may only read",
            **mounted(f"{place}/shared/open", "touch /r/hers && echo made", says("made")),
            is_refused=False,
        ),
    )
