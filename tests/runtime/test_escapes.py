"""Escapes from a plain user's jobs, each tried by a real user on a real engine, past the check at submission.

A job that is refused then gains nothing; one that starts must not print what only an escape could print. Where the
engine allows it to an operator, the same job is tried as one too, and must work: so the attempt itself is sound.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import ExecRequest
from gputui.domain.errors import CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.policy.admission import ALLOWABLE
from gputui.domain.settings import (
    AllowSettings,
    PolicySettings,
    Settings,
)
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.tick.start_protocol import start_attempt
from gputui.ports import Channel
from gputui.runtime.docker.job_exec import DockerExec
from tests.cases import cases
from tests.factories import FakeClock
from tests.lane import in_its_lane
from tests.runtime.contract import output, shell
from tests.runtime.dockerd import Dockerd
from tests.runtime.escapes import (
    OF_OPTIONS,
    OF_USERS,
    SETUID_IMAGE,
    Escape,
    Site,
    job,
    made_site,
    of_mounts,
)
from tests.runtime.test_process import process_harness

pytestmark = [pytest.mark.docker, pytest.mark.needs("root"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(engine: Dockerd) -> Iterator[Site]:
    with made_site(engine) as site:
        yield site


def tried(site: Site, escape: Escape) -> list[str]:
    """Try it, and return what is wrong."""
    alice, spec = site.people.alice.pw_uid, job(escape.script, **escape.options)
    wrong: list[str] = []
    if (site.refusal(spec) is not None) != (escape.is_refused and not escape.may_be_submitted):
        wrong.append(f"{escape.name}: submitting says {site.refusal(spec)}")
    told = site.run(spec, alice)
    shown = told if isinstance(told, str) else ""
    if (shown or not escape.is_refused) and escape.gain(shown, site):
        wrong.append(f"{escape.name}: works, and prints {shown!r}")
    if isinstance(told, RuntimeFault) and told.cause.code not in {CauseCode.NOT_ALLOWED, CauseCode.BAD_SPEC}:
        wrong.append(f"{escape.name}: {told}")
    if isinstance(told, str) and escape.is_refused:
        wrong.append(f"{escape.name}: starts, and prints {told!r}")
    return wrong


def works(site: Site, escape: Escape) -> str:
    """Return why an escape does not even work for an operator; empty if it does, or this machine lacks the right."""
    done = site.run(job(escape.script, **escape.options), 0)
    if isinstance(done, RuntimeFault) and done.cause.code is not CauseCode.BAD_SPEC and "permitted" in str(done):
        return ""
    return f"{escape.name}: {done}" if isinstance(done, RuntimeFault) or not escape.gain(done, site) else ""


@pytest.mark.long
def test_each_escape_works_for_an_operator(site: Site) -> None:
    escapes = (*OF_OPTIONS, *OF_USERS, *of_mounts(site))
    wrong = [why for escape in escapes if escape.works and (why := works(site, escape))]
    assert not wrong, "\n".join(wrong)


@cases("escape", OF_OPTIONS)
def test_no_option_gives_more_than_the_account_has(site: Site, escape: Escape) -> None:
    assert not (wrong := tried(site, escape)), wrong


@cases("escape", OF_USERS)
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


@pytest.mark.needs("readers")
@pytest.mark.parametrize("starts", [5, in_its_lane(1000, is_long=True)])
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


@pytest.mark.needs("readers")
def test_a_thousand_swapped_links_open_nothing_of_others(site: Site) -> None:
    """The engine mounts what was opened."""
    spec, seen, codes = job(volumes=(f"{site.home}/x:/r",)), Counter[frozenset[str]](), set[CauseCode]()
    permissions = UserPermissions(site.place / "state", of_homes_only(site))
    launch = replace(site.harness.launch(()), spec=spec, submitter=site.people.alice.pw_uid)
    root = site.harness.open().root_directory()
    with swapping(site):
        opened = 0
        while opened < 1000 or not (seen and codes):  # a busy machine may give one of the two all the time
            opened += 1
            with ExitStack() as until:
                try:
                    held = permissions.permitted(lambda: root, launch, until).held
                except RuntimeFault as fault:
                    codes.add(fault.cause.code)
                    continue
                for each in held:
                    seen[frozenset(path.name for path in Path(each.descriptor).iterdir())] += 1
    assert set(seen) == {frozenset({"own"})}
    assert codes == {CauseCode.NOT_ALLOWED}


@pytest.mark.needs("readers")
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


def test_a_volume_of_ones_own_begins_as_the_images_directory(site: Site) -> None:
    alice, own = site.people.alice.pw_uid, f"gputui-{site.people.alice.pw_uid}-cache"
    assert site.run(job("echo kept > /tmp/x", volumes=(f"{own}:/tmp",)), alice) == ""
    assert site.run(job("cat /v/x", mounts=(f"type=volume,source={own},target=/v",)), alice) == "kept\n"
    assert isinstance(site.run(job("cat /v/x", volumes=(f"{own}:/v",)), site.people.bob.pw_uid), RuntimeFault)
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


@cases(
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
