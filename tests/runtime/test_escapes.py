"""Escapes from a plain user's jobs, each tried by a real user on a real engine, past the check at submission.

A job that is refused then gains nothing; one that starts must not print what only an escape could print. Where the
engine allows it to an operator, the same job is tried as one too, and must work: so the attempt itself is sound.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.cause import CauseCode
from gputui.domain.container import ExecRequest
from gputui.domain.errors import AccessError, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.policy.permitted_options import ALLOWABLE
from gputui.domain.settings import (
    AccessSettings,
    AdmissionSettings,
    AllowSettings,
    PolicySettings,
    RuntimeSettings,
    Settings,
)
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.tick.start_protocol import start_attempt
from gputui.ports import Channel
from gputui.runtime.docker.job_exec import DockerExec
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.store import TinyJobStore
from tests.accounts import accounts
from tests.factories import FakeClock
from tests.lane import in_its_lane
from tests.runtime.contract import Harness, output, shell
from tests.runtime.dockerd import IMAGE, Dockerd
from tests.runtime.test_process import process_harness

pytestmark = [pytest.mark.docker, pytest.mark.needs("root"), pytest.mark.timeout(600)]

SETUID_IMAGE = "gputui-test:setuid"
NEIGHBOUR = "gputui-test-neighbour"
"""A container of somebody else."""
SECRET = "the-secret-of-bob"


class People(Struct, frozen=True):
    """Two users without any right to the engine or the queue."""

    alice: pwd.struct_passwd
    bob: pwd.struct_passwd


@pytest.fixture(scope="module")
def people() -> Iterator[People]:
    mark = secrets.token_hex(3)
    names = [f"gpta{mark}", f"gptb{mark}"]
    with accounts():
        for name in names:
            subprocess.run(["useradd", "-M", "-U", "-s", "/bin/sh", name], check=True)
    yield People(*map(pwd.getpwnam, names))
    with accounts():
        for name in names:
            subprocess.run(["userdel", "-f", name], check=True)


@pytest.fixture(scope="module")
def place(people: People) -> Iterator[Path]:
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


@pytest.fixture(scope="module")
def site(engine: Dockerd, people: People, place: Path) -> Iterator[Site]:
    site = Site(engine, people, place)
    site.prepare()
    yield site
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
    """What a user tries."""

    name: str
    options: dict[str, Any] = {}
    script: str = "id -u"
    gain: Callable[[str, Site], bool] = lambda told, site: True
    """Whether the output shows that it worked; by default, that the job ran at all."""
    is_refused: bool = True
    """False: it runs, and gains nothing."""
    may_be_submitted: bool = False
    """True if it is refused only when it starts."""
    works: bool = True
    """Whether it works for an operator on this engine."""


def says(text: str) -> Callable[[str, Site], bool]:
    return lambda told, site: text in told


def same_namespace(kind: str) -> Callable[[str, Site], bool]:
    return lambda told, site: str(Path(f"/proc/{site.engine.pid}/ns/{kind}").readlink()) in told


SPEAKS = says(SECRET)
"""It has read what only bob may read."""
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
    Escape("a job that never stops", {"stop_timeout": 10**8}),
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


def tried(site: Site, escape: Escape) -> list[str]:
    """Try it, and return what is wrong."""
    alice, spec = site.people.alice.pw_uid, job(escape.script, **escape.options)
    wrong: list[str] = []
    if (site.refusal(spec) is not None) != (escape.is_refused and not escape.may_be_submitted):
        wrong.append(f"{escape.name}: submitting says {site.refusal(spec)}")
    told = site.run(spec, alice)
    if isinstance(told, str) and escape.gain(told, site):
        wrong.append(f"{escape.name}: works, and prints {told!r}")
    elif isinstance(told, RuntimeFault) and told.cause.code not in {CauseCode.NOT_ALLOWED, CauseCode.BAD_SPEC}:
        if escape.is_refused or told.cause.code is not CauseCode.RUNTIME_ERROR:
            wrong.append(f"{escape.name}: {told}")
    elif isinstance(told, RuntimeFault) != escape.is_refused:
        wrong.append(f"{escape.name}: starting says {told}")
    if escape.works:
        done = site.run(spec, 0)
        if isinstance(done, RuntimeFault) and done.cause.code is not CauseCode.BAD_SPEC and "permitted" in str(done):
            return wrong  # this machine itself lacks the right
        if isinstance(done, RuntimeFault) or not escape.gain(done, site):
            wrong.append(f"{escape.name}: does not even work for an operator: {done}")
    return wrong


@pytest.mark.parametrize("escape", OF_OPTIONS, ids=lambda each: each.name)
def test_no_option_gives_more_than_the_account_has(site: Site, escape: Escape) -> None:
    assert not (wrong := tried(site, escape)), wrong


@pytest.mark.parametrize("escape", OF_USERS, ids=lambda each: each.name)
def test_nobody_becomes_another_user(site: Site, escape: Escape) -> None:
    assert not (wrong := tried(site, escape)), wrong


def test_no_mount_shows_more_than_the_account_may_open(site: Site) -> None:
    wrong = [each for escape in of_mounts(site) for each in tried(site, escape)]
    assert not wrong, "\n".join(wrong)


SWAP = """
import os, sys, time
os.chdir(sys.argv[1])
os.mkdir("x")
open("x/own", "w").close()
print(flush=True)
while True:
    for target in (*sys.argv[2:], "mine"):
        os.rename("x", "away")
        os.symlink(target, "x")
        time.sleep(0.002)
        os.unlink("x")
        os.rename("away", "x")
        time.sleep(0.002)
"""
"""Puts links to directories of others and to an own one in the place of a directory, in turn."""


@contextmanager
def swapping(site: Site) -> Iterator[None]:
    """Let alice herself swap the directory `x` in her home for links."""
    alice = site.people.alice
    others = (str(site.place / "shared/open"), "/etc", str(site.place / "homes" / site.people.bob.pw_name))
    words = [sys.executable, "-I", "-c", SWAP, site.home, *others]
    mine = Path(site.home, "mine")
    mine.mkdir(exist_ok=True)
    (mine / "own").touch()
    os.chown(mine, alice.pw_uid, alice.pw_gid)
    rights: dict[str, Any] = {"user": alice.pw_uid, "group": alice.pw_gid, "extra_groups": []}
    with subprocess.Popen(words, stdout=subprocess.PIPE, **rights) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            yield
        finally:
            swapper.kill()
            swapper.wait()
            for each in ("x", "away"):
                left = Path(site.home, each)
                left.unlink() if left.is_symlink() else shutil.rmtree(left, ignore_errors=True)


def of_homes_only(site: Site) -> Settings:
    """Return settings under which alice may mount her home and nothing else."""
    admission = replace(site.admission, mounts=(f"{site.place}/homes/{{user}}",))
    return replace(site.settings, admission=admission)


@pytest.mark.parametrize("starts", [12, in_its_lane(1000, is_long=True)])
def test_a_link_that_is_swapped_while_a_job_starts_shows_nothing_of_others(site: Site, starts: int) -> None:
    spec, seen = job("ls /r", volumes=(f"{site.home}/x:/r",)), list[str]()
    with swapping(site):
        while len(seen) < starts:
            told = site.run(spec, site.people.alice.pw_uid, of_homes_only(site))
            if isinstance(told, str):
                seen.append(told)
            else:
                assert told.cause.code is CauseCode.NOT_ALLOWED, told
    assert set(seen) == {"own\n"}


def test_a_thousand_swapped_links_open_nothing_of_others(site: Site) -> None:
    """What is opened is what the engine mounts."""
    spec, seen, codes = job(volumes=(f"{site.home}/x:/r",)), Counter[frozenset[str]](), set[CauseCode]()
    permissions = UserPermissions(site.place / "state", of_homes_only(site))
    launch = replace(site.harness.launch(()), spec=spec, submitter=site.people.alice.pw_uid)
    root = site.harness.open().root_directory()
    with swapping(site):
        for _ in range(1000):
            with ExitStack() as until:
                try:
                    held = permissions.permitted(lambda: root, launch, until).held
                except RuntimeFault as fault:
                    codes.add(fault.cause.code)
                    continue
                for each in held:
                    seen[frozenset(path.name for path in Path(each.descriptor).iterdir())] += 1
    assert set(seen) == {frozenset({"own"})}
    assert 0 < seen.total() < 1000
    assert codes == {CauseCode.NOT_ALLOWED}


def test_a_home_that_is_replaced_by_a_link_leads_nowhere(site: Site) -> None:
    home, kept = Path(site.home), Path(f"{site.home}-kept")
    code = "import os, sys; os.rename(sys.argv[1], sys.argv[2]); os.symlink(sys.argv[3], sys.argv[1])"
    alice, other = site.people.alice, str(site.place / "shared/open")
    rights: dict[str, Any] = {"user": alice.pw_uid, "group": alice.pw_gid, "extra_groups": []}
    subprocess.run([sys.executable, "-I", "-c", code, home, kept, other], check=True, **rights)
    try:
        for source in (str(home), f"{home}/secret", other):
            spec = job("cat /r/secret", volumes=(f"{source}:/r",))
            assert "outside the directories" in str(site.refusal(spec, of_homes_only(site)))
            assert isinstance(site.run(spec, alice.pw_uid, of_homes_only(site)), RuntimeFault)
    finally:
        home.unlink()
        kept.rename(home)


def test_a_container_is_its_submitters_account_within_limits(site: Site) -> None:
    alice = site.people.alice
    script = (
        "id -u; id -g; id -G; cd /sys/fs/cgroup; cat pids.max memory.max cpu.max 2>/dev/null "
        "|| cat pids/pids.max memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us; "
        "grep -E 'NoNewPrivs|Cap' /proc/self/status; grep /dev/shm /proc/mounts; cat /r/own"
    )
    Path(site.home, "own").write_text("hers")
    os.chown(f"{site.home}/own", alice.pw_uid, alice.pw_gid)
    told = site.run(job(script, volumes=(f"{site.home}:/r",)), alice.pw_uid)
    assert isinstance(told, str), told
    lines = told.splitlines()
    assert lines[:3] == [str(alice.pw_uid), str(alice.pw_gid), str(alice.pw_gid)]
    assert lines[3:5] == ["64", str(64 * 1024**2)]
    assert "50000" in lines[5]
    status = dict(line.split() for line in lines if ":\t" in line)
    assert status.pop("NoNewPrivs:") == "1"
    assert {int(word, 16) for word in status.values()} == {0}
    assert "size=8192k" in told
    assert lines[-1] == "hers"


def test_a_setuid_program_of_the_image_gives_nothing(site: Site) -> None:
    spec = replace(job("su root -c 'id -u'"), image=SETUID_IMAGE)
    told = site.run(spec, site.people.alice.pw_uid)
    assert isinstance(told, str)
    assert told.splitlines() != ["0"]
    free = site.run(replace(spec, options=replace(spec.options, user=str(site.people.alice.pw_uid))), 0)
    assert free == "0\n", "without the box it gives root"


def test_labels_of_images_and_jobs_name_no_other_submitter(site: Site) -> None:
    alice = site.people.alice.pw_uid
    spec = replace(job("true", labels=(("traefik.http", "x"), ("gputui.submitter", "0"))), image=SETUID_IMAGE)
    runtime = site.harness.open()
    launch = replace(site.harness.launch(()), spec=spec, submitter=alice)
    with ExitStack() as until:
        permitted = UserPermissions(site.place / "state", site.settings).permitted(lambda: "/", launch, until)
        name = runtime.create(permitted).id
    labels = json.loads(site.engine.docker("inspect", "--format", "{{json .Config.Labels}}", name))
    runtime.remove(name)
    assert labels["gputui.submitter"] == str(alice)
    assert "traefik.http" not in labels


def test_a_command_inside_a_job_has_no_more_rights_than_the_job(site: Site) -> None:
    alice = site.people.alice.pw_uid
    runtime = site.harness.open()
    launch = replace(site.harness.launch(()), spec=replace(job("sleep 60"), image=SETUID_IMAGE), submitter=alice)
    permit = partial(UserPermissions(site.place / "state", site.settings).permitted, runtime.root_directory)
    assert start_attempt(site.store, runtime, launch, FakeClock(), site.settings, permit) is None
    with closing(DockerExec(site.settings.runtime)) as inside:
        for script in ("id -u", "su root -c 'id -u'"):
            command = ("sh", "-c", f"{script}; grep -E 'NoNewPrivs|CapEff' /proc/self/status")
            channel = inside.execute(launch.name, ExecRequest(command), lambda submitter: None)
            told = all_of(channel)
            assert "NoNewPrivs:\t1" in told
            assert "CapEff:\t0000000000000000" in told
            assert "0" not in told.splitlines()
    runtime.kill(launch.name)
    site.harness.ended(runtime, launch.name)
    runtime.remove(launch.name)


def all_of(channel: Channel) -> str:
    """Return what a command inside a job prints, until it ends."""
    with closing(channel):
        pieces = (piece for pieces in iter(channel.receive, None) for _, piece in pieces)
        return b"".join(pieces).decode()


def test_an_image_is_not_named_by_its_id_where_images_are_listed(site: Site) -> None:
    listed = replace(site.settings, admission=replace(site.admission, images=("gputui-test",), networks=()))
    alice = site.people.alice.pw_uid
    whole = site.engine.docker("inspect", "--format", "{{.Id}}", SETUID_IMAGE)
    for image in (
        whole,
        whole.removeprefix("sha256:"),
        whole.removeprefix("sha256:")[:12],
        "alpine",
        "lab/gputui-test",
    ):
        spec = replace(job(), image=image)
        assert site.refusal(spec, listed) is not None
        assert isinstance(site.run(spec, alice, listed), RuntimeFault), image
    assert isinstance(site.run(job(), alice, listed), str)


def test_an_image_that_may_run_as_root_reaches_nothing_outside(site: Site) -> None:
    listed = replace(site.settings, admission=replace(site.admission, root_images=(SETUID_IMAGE,)))
    alice = site.people.alice.pw_uid
    own = f"gputui-{alice}-own"

    def told(script: str, **options: Any) -> str | RuntimeFault:
        return site.run(replace(job(script, **options), image=SETUID_IMAGE), alice, listed)

    shown = told(
        "id -u; grep -E 'NoNewPrivs|CapEff' /proc/self/status; touch /v/own && echo made", volumes=(f"{own}:/v",)
    )
    assert isinstance(shown, str), shown
    lines = shown.splitlines()
    assert (lines[0], lines[-1]) == ("0", "made")
    assert "NoNewPrivs:\t1" in lines
    able = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    assert able == 0b11101011, "chown, dac_override, fowner, kill, setgid, setuid"
    assert isinstance(told("true", volumes=(f"{site.home}:/v",)), RuntimeFault)
    assert isinstance(told("true", volumes=("pgdata:/v",)), RuntimeFault)
    assert isinstance(told("true", cap_add=("SYS_ADMIN",)), RuntimeFault)
    site.engine.docker("volume", "rm", own)


def test_the_driver_of_gpus_takes_no_options_of_users(site: Site) -> None:
    for gpus in (GpuRequest(driver="cdi"), GpuRequest(driver_options=(("x", "y"),)), GpuRequest(capabilities=("x",))):
        assert "--gpus" in str(site.run(replace(job(), gpus=gpus), site.people.alice.pw_uid))


def test_what_a_site_allows_to_all_never_includes_what_gives_root(site: Site) -> None:
    allow = AllowSettings(dict.fromkeys(ALLOWABLE, True), named_volumes=())
    settings = replace(site.settings, policy=PolicySettings(allow=allow))
    for escape in OF_OPTIONS[:12]:
        spec = job(escape.script, **escape.options)
        told = site.run(spec, site.people.alice.pw_uid, settings)
        assert isinstance(told, RuntimeFault) is (escape.name != "the host's memory"), escape.name


def test_no_setting_and_no_field_of_a_job_takes_a_plain_user_out_of_the_box(site: Site) -> None:
    alice = site.people.alice.pw_uid
    as_image = replace(site.settings, runtime=replace(site.settings.runtime, run_as_submitter=False))
    assert site.run(job(), alice, as_image) == f"{alice}\n"
    for asked in (job(privileged=True), job(user="0")):
        for warrant in ("", f"0/{'0' * 24}", f"{alice}/{'0' * 24}"):
            assert isinstance(site.run(replace(asked, warrant=warrant), alice, as_image), RuntimeFault)
    sweeping = replace(job("env"), sweep=(("NVIDIA_VISIBLE_DEVICES", "all"), ("LD_PRELOAD", "/x.so")))
    told = site.run(sweeping, alice)
    assert isinstance(told, RuntimeFault) or not {"NVIDIA_VISIBLE_DEVICES=all", "LD_PRELOAD=/x.so"} & set(told.split())


class Hosts:
    """Host jobs of a plain user, started by root."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site, self.harness = site, process_harness(directory)

    def run(self, script: str, **options: Any) -> str | RuntimeFault:
        site, runtime = self.site, self.harness.open()
        spec = JobSpec(command=shell(script), options=ContainerOptions(**options))
        launch = replace(self.harness.launch(()), spec=spec, submitter=site.people.alice.pw_uid)
        permit = partial(UserPermissions(site.place / "state", site.settings).permitted, runtime.root_directory)
        fault = start_attempt(site.store, runtime, launch, FakeClock(), site.settings, permit)
        if fault is not None:
            return fault
        self.harness.ended(runtime, launch.name)
        with tempfile.TemporaryDirectory() as folder:
            return output(runtime, launch.name, Path(folder) / "log").decode()


@pytest.fixture
def hosts(site: Site, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(site, tmp_path / "hosts")
    yield hosts
    hosts.harness.clean()


def test_a_host_job_is_its_submitters_process(hosts: Hosts) -> None:
    site, alice = hosts.site, hosts.site.people.alice
    bobs = f"{site.place}/homes/{site.people.bob.pw_name}/secret"
    closed = (bobs, f"{site.place}/state", f"{site.place}/shared/closed/inner", f"{site.engine.directory}/docker.sock")
    tries = "; ".join(f"test -r {each} && echo opened {each}" for each in closed)
    told = hosts.run(f"id -u; id -g; id -G; {tries}; true", workdir="/")
    assert isinstance(told, str), told
    assert told.split() == [str(alice.pw_uid), str(alice.pw_gid), str(alice.pw_gid)]


@pytest.mark.parametrize(
    "options",
    [
        {"user": "root"},
        {"user": "0"},
        {"user": "+0"},
        {"user": "4294967296"},
        {"ulimits": ("rtprio=99",)},
        {"ulimits": ("nice=40",)},
        {"ulimits": (f"nofile={2**30}",)},
        {"memory": 2**40},
        {"cpus": 1000.0},
        {"cpu_shares": 262144},
        {"env": (("A=b", "c"),)},
        {"workdir": "/tmp\0uid=0"},
        {"env": (("A", "b\0uid=0"),)},
    ],
)
def test_a_host_job_gets_no_more_than_its_account(hosts: Hosts, options: dict[str, Any]) -> None:
    told = hosts.run("id -u", **options)
    assert isinstance(told, RuntimeFault), told
    assert told.cause.code in {CauseCode.NOT_ALLOWED, CauseCode.BAD_SPEC}


def test_a_host_job_of_a_group_or_of_bob_is_refused(hosts: Hosts) -> None:
    alice, bob = hosts.site.people.alice.pw_name, hosts.site.people.bob.pw_name
    for user in (bob, str(hosts.site.people.bob.pw_uid), f"{alice}:root", f"{alice}:0"):
        assert isinstance(hosts.run("id -u", user=user), RuntimeFault)
