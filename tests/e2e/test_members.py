"""Members of a group that share a state directory, root's scheduler among them: real users, who try what they can."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.bootstrap import clock
from gputui.domain.audit import Actor
from gputui.domain.cause import CauseCode
from gputui.domain.container_options import ContainerOptions
from gputui.domain.job import Interactive, Job, JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.files.leadership import current_leader
from gputui.runtime.process import wrapper
from gputui.store import TinyJobStore
from tests import leftovers
from tests.accounts import accounts
from tests.e2e.site import COMMANDS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes users"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
BECOME = """
import importlib, os, pkgutil, sys
import gputui, json, shlex, socket, tomllib
for each in pkgutil.walk_packages(gputui.__path__, "gputui."):
    if each.name.split(".")[1] in {"cli", "config", "domain", "engine", "request", "store"}:
        importlib.import_module(each.name)
import gputui.bootstrap, gputui.runtime.process.runtime, gputui.runtime.docker.runtime, gputui.gpus.simulated
import gputui.runtime.relayed, gputui.runtime.process.job_exec
import concurrent.futures.thread, zoneinfo, apscheduler.executors.asyncio, apscheduler.executors.pool
import apscheduler.schedulers.asyncio, apscheduler.triggers.date, apscheduler.triggers.interval
uid, gid, groups, code = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
os.setgroups(groups); os.setgid(gid); os.setuid(uid)  # only now: the interpreter itself may be closed to users
sys.argv = ["gputui", *sys.argv[5:]]
exec(code)
"""
COMMAND = "from gputui.cli.main import main; main()"
SERVE = f"""
from gputui.runtime.process import wrapper
sys.executable, wrapper.__file__ = sys.argv[1:3]
del sys.argv[1:3]
{COMMAND}
"""
FORGE = """
from msgspec.structs import replace
from pathlib import Path
from gputui.domain.audit import Actor
from gputui.domain.job import Job, JobSpec
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
from datetime import UTC, datetime
state, group, command, user, *warrants = sys.argv[1:]
store = TinyJobStore(Path(state), StoreSettings(group=group))
specs = [JobSpec(command=("sh", "-c", command), warrant=warrant, tenant=user) for warrant in warrants]
jobs = [Job(0, spec, datetime.now(UTC), submitted_by=user) for spec in specs]
print(*store.submit(jobs, actor=Actor(0, user)))
"""


CLAIM = """
from msgspec.structs import replace
from pathlib import Path
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
state, group, job_id, warrant = sys.argv[1:]
store = TinyJobStore(Path(state), StoreSettings(group=group))
with store.transaction() as transaction:
    job = transaction.get(int(job_id))
    transaction.put(replace(job, spec=replace(job.spec, warrant=warrant)))
"""


@dataclass
class Site:
    """A shared state directory, and its users by name."""

    directory: Path
    group: str
    users: dict[str, pwd.struct_passwd]
    store: TinyJobStore

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def environ(self, **more: str) -> dict[str, str]:
        fixed = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "GPUTUI_STATE": str(self.state),
            "GPUTUI_CONFIG": str(self.directory / "config.toml"),
            "GPUTUI_PROBE": "sim:1",
            "GPUTUI_RUNTIME": "process",
        }
        return fixed | more

    def run(self, name: str, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python code as that user."""
        user = self.users[name]
        groups = json.dumps(os.getgrouplist(user.pw_name, user.pw_gid))
        command = [sys.executable, "-c", BECOME, str(user.pw_uid), str(user.pw_gid), groups, code, *words]
        return subprocess.run(command, env=self.environ(), cwd=self.directory, capture_output=True, text=True)

    @contextmanager
    def served(self, name: str = "root", **more: str) -> Iterator[None]:
        """Run a scheduler of that user for the time of a block."""
        user = self.users[name]
        groups = json.dumps(os.getgrouplist(user.pw_name, user.pw_gid))
        words = (
            [str(user.pw_uid), str(user.pw_gid), groups, SERVE, *self._open_to_all(), "serve"] if user.pw_uid else []
        )
        command = [sys.executable, *(("-c", BECOME, *words) if words else ("-m", "gputui", "serve"))]
        serve = subprocess.Popen(command, env=self.environ(**more), cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            self.until(lambda: (found := current_leader(self.state)) is not None and found.pid == serve.pid, "it leads")
            yield
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait(PATIENCE)

    def _open_to_all(self) -> tuple[str, str]:
        """An interpreter and a copy of the wrapper that members may run, wherever the tests' own lie."""
        own = Path(sys.executable).resolve()
        is_closed = any(not each.stat().st_mode & stat.S_IXOTH for each in (own, *own.parents))
        copy = self.directory / "wrapper.py"
        shutil.copyfile(wrapper.__file__, copy)
        copy.chmod(0o644)
        return "/usr/bin/python3" if is_closed else str(own), str(copy)

    def gputui(self, name: str, *words: str) -> str:
        """Return what a command of that user prints."""
        done = self.run(name, COMMAND, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, name: str, script: str) -> int:
        return int(self.gputui(name, "submit", "--host", "--", "sh", "-c", script))

    def actions(self, name: str) -> Actions:
        """Return what that user may ask for, without the seconds that a process of hers takes to come up."""
        user = self.users[name]
        return Actions(self.store, clock(), Actor(user.pw_uid, user.pw_name))

    def queued(self, name: str, script: str, array: tuple[int, ...] = (), **options: Any) -> int:
        """The id of a host job of that user, or of the array."""
        spec = JobSpec(command=("sh", "-c", script), tenant=name, options=ContainerOptions(workdir="/"), **options)
        return self.actions(name).submit([Submission(spec, array=array)])[0]

    def forge(self, name: str, command: str, user: str, *warrants: str) -> list[int]:
        """Write jobs into the queue by hand, one for each warrant."""
        done = self.run(name, FORGE, str(self.state), self.group, command, user, *warrants)
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    def job(self, job_id: int) -> Job:
        return self.store.get(job_id)

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"gave up waiting until {what}"
            time.sleep(0.02)

    def ended(self, job_id: int) -> Job:
        self.until(lambda: self.job(job_id).state.is_terminal, f"job {job_id} ended")
        return self.job(job_id)

    def is_refused(self, job_id: int) -> bool:
        """Return whether it failed for good because of what it is, without having begun."""
        job = self.ended(job_id)
        assert job.cause is not None
        return job.cause.code is CauseCode.BAD_SPEC and len(job.attempts) == 1 and job.state is JobState.FAILED


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two members of a new group, and root, who schedules."""
    mark = secrets.token_hex(3)
    group, names = f"gptg{mark}", {name: f"gpt{mark}{name}" for name in ("alice", "mallory")}
    directory = Path(tempfile.mkdtemp(prefix="gputui-members-"))
    directory.chmod(0o755)
    with accounts():
        subprocess.run(["groupadd", group], check=True)
        for name, account in names.items():
            home = directory / name
            subprocess.run(["useradd", "-m", "-d", str(home), "-G", group, "-s", "/bin/sh", account], check=True)
    users = {name: pwd.getpwnam(account) for name, account in names.items()}
    store = TinyJobStore(directory / "state", StoreSettings(group=group))
    site = Site(directory, group, {**users, "root": pwd.getpwuid(0)}, store)
    (directory / "config.toml").write_text(f'[store]\ngroup = "{group}"\n[scheduler]\nfast_failing_jobs = 0\n')
    try:
        with site.served(TOPSECRET="hush"):
            yield site
    finally:
        leftovers.end(site.state)
        store.close()
        with accounts():
            for account in names.values():
                subprocess.run(["userdel", "-f", account], check=True)
            subprocess.run(["groupdel", group], check=True)
        shutil.rmtree(directory)


def test_a_host_job_runs_as_its_submitter_who_reads_its_log_meanwhile(site: Site) -> None:
    go = site.directory / "go"
    one = site.submit("alice", f"id -u; id -g; id -G; env; echo ready; while [ ! -e {go} ]; do sleep 0.05; done")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    site.until(lambda: "ready\n" in site.run("alice", COMMAND, "logs", str(one)).stdout, "alice reads its log")
    lines = site.gputui("alice", "logs", str(one)).splitlines()
    alice = site.users["alice"]
    assert lines[:2] == [str(alice.pw_uid), str(alice.pw_gid)]
    assert set(map(int, lines[2].split())) == set(os.getgrouplist(alice.pw_name, alice.pw_gid))
    env = dict(line.split("=", 1) for line in lines[3 : lines.index("ready")])
    assert (env["HOME"], env["USER"], env["SHELL"]) == (alice.pw_dir, alice.pw_name, "/bin/sh")
    assert not {"TOPSECRET", "GPUTUI_STATE", "PYTHONPATH"} & (env.keys() - {"PYTHONPATH"})
    go.touch()
    assert site.ended(one).state is JobState.COMPLETED
    site.until((site.state / f"logs/{one}/1.log").exists, "its log is kept")
    assert "ready" in site.gputui("alice", "logs", str(one))


def test_only_its_submitter_and_root_enter_a_job_by_the_relay(site: Site) -> None:
    go = site.directory / "gone"
    go.unlink(missing_ok=True)
    script = f"id -u; while [ ! -e {go} ]; do sleep 0.05; done; exit 5"
    one = site.queued("alice", script, interactive=Interactive(stdin=True))
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    alice = site.users["alice"]
    inside = site.run("alice", COMMAND, "exec", str(one), "sh", "-c", "id -u; echo $GPUTUI_JOB_ID; exit 4")
    assert (inside.returncode, inside.stdout.split()) == (4, [str(alice.pw_uid), str(one)]), inside.stderr
    by_root = COMMANDS.run(["exec", str(one), "id", "-u"], site.environ(), b"", timeout=30)
    assert by_root[:2] == (0, f"{alice.pw_uid}\n".encode()), "root enters it as its submitter"
    refused = site.run("mallory", COMMAND, "attach", str(one))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"job {one} is a job of {alice.pw_name}" in refused.stderr
    # mallory writes her own warrant into the record of alice's job: the record of its start decides
    spec = site.job(site.queued("mallory", "true")).spec
    done = site.run("mallory", CLAIM, str(site.state), site.group, str(one), spec.warrant)
    assert done.returncode == 0, done.stderr
    assert f"job {one} is a job of {alice.pw_name}" in site.run("mallory", COMMAND, "exec", str(one), "id").stderr
    go.touch()
    attached = site.run("alice", COMMAND, "attach", str(one))
    assert (attached.returncode, attached.stdout) == (5, f"{alice.pw_uid}\n"), attached.stderr
    verbs = [(entry.verb, entry.user) for entry in site.store.audit_log(f"job {one}")]
    assert {("exec", alice.pw_name), ("exec", "root")} <= set(verbs)
    assert not [user for _, user in verbs if user == site.users["mallory"].pw_name]


def test_a_socket_that_a_member_put_there_is_not_talked_to(site: Site) -> None:
    one = site.queued("alice", "sleep 600")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    kept = site.state / "relay.kept"
    (site.state / "relay").rename(kept)
    user = site.users["mallory"]
    with socket.socket(socket.AF_UNIX) as planted:
        os.seteuid(user.pw_uid)
        try:
            planted.bind(str(site.directory / "mallory" / "relay"))
            planted.listen()
        finally:
            os.seteuid(0)
        (site.directory / "mallory" / "relay").chmod(0o666)
        (site.directory / "mallory" / "relay").rename(site.state / "relay")
        refused = site.run("alice", COMMAND, "exec", str(one), "id")
    kept.rename(site.state / "relay")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"the socket of uid {user.pw_uid}" in refused.stderr
    site.actions("alice").cancel([one])


def test_a_forged_job_of_a_member_runs_as_no_other_user(site: Site) -> None:
    out = site.directory / "alice" / "forged"
    one = site.submit("alice", "true")
    assert site.ended(one).state is JobState.COMPLETED
    alice = site.users["alice"].pw_uid
    name = site.job(one).spec.warrant.partition("/")[2]
    warrants = (f"{alice}/{name}", f"{alice}/{'0' * 24}", f"0/{name}", "", f"{alice}/../0/{name}")
    forged = site.forge("mallory", f"id > {out}", site.users["alice"].pw_name, *warrants)
    assert len(forged) == len(warrants)
    assert all(site.is_refused(each) for each in forged)
    assert not out.exists()


def test_a_member_cannot_make_a_warrant_for_another(site: Site) -> None:
    """Forgeries: a directory in root's name, one that is moved there, and a link to another user's file."""
    mallory, out = site.users["mallory"].pw_uid, site.directory / "mallory" / "stolen"
    mine = site.submit("mallory", f"id -u > {out}")
    assert site.ended(mine).state is JobState.COMPLETED
    assert out.read_text() == f"{mallory}\n"
    out.unlink()
    name = site.job(mine).spec.warrant.partition("/")[2]
    code = "import os; os.chdir(sys.argv[1]); os.rename(sys.argv[2], '0')"
    site.run("mallory", code, str(site.state / "warrants"), str(mallory))
    [forged] = site.forge("mallory", f"id -u > {out}", "root", f"0/{name}")
    assert site.is_refused(forged)
    assert not out.exists()
    shutil.rmtree(site.state / "warrants" / "0")


def test_root_submits_no_host_job_here(site: Site) -> None:
    done = site.run("root", COMMAND, "submit", "--host", "--", "true")
    assert (done.returncode, "root" in done.stderr) == (2, True)


def test_root_writes_no_log_through_a_link_that_a_member_planted(site: Site) -> None:
    victim = site.directory / "victim"
    victim.mkdir(mode=0o700)
    go = site.directory / "plant"
    one = site.submit("mallory", f"while [ ! -e {go} ]; do sleep 0.05; done; echo pwned")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    code = "os.makedirs(os.path.dirname(sys.argv[2]), exist_ok=True); os.symlink(sys.argv[1], sys.argv[2])"
    done = site.run("mallory", code, str(victim), str(site.state / f"logs/{one}"))
    assert done.returncode == 0, done.stderr
    go.touch()
    assert site.ended(one).state is JobState.COMPLETED
    log = site.state / "gputui.log"
    site.until(lambda: "its log cannot be saved" in log.read_text(), "the refusal is told")
    assert list(victim.iterdir()) == []
    (site.state / f"logs/{one}").unlink()


def test_a_member_may_schedule_after_root(site: Site) -> None:
    """The directory that root's scheduler made takes attempts of others, who run jobs as themselves only."""
    code = """
from msgspec.structs import replace
from gputui.bootstrap import clock
from gputui.domain.container import Launch, RunAs
from gputui.domain.errors import RuntimeFault
from gputui.domain.job import JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.process.runtime import ProcessRuntime
from pathlib import Path
runtime = ProcessRuntime("other0000000", Path(sys.argv[1]), RuntimeSettings(), clock())
launch = Launch("other0000000", 7, 1, JobSpec(command=("true",)), (), run_as=RunAs(os.getuid(), is_strict=True))
print(runtime.create(launch).id, runtime.check().up)
try:
    runtime.create(replace(launch, job_id=8, run_as=RunAs(int(sys.argv[2]), is_strict=True)))
except RuntimeFault as fault:
    print(fault.cause.code, fault.cause.text)
runtime.remove("gputui-other0000000-7-1")
"""
    done = site.run("alice", code, str(site.state), str(site.users["mallory"].pw_uid))
    assert done.returncode == 0, done.stderr
    made, refused = done.stdout.splitlines()
    assert made == "gputui-other0000000-7-1 True"
    assert refused.startswith("BadSpec it is a job of ")


def test_elements_retries_and_requeued_jobs_run_as_their_submitter(site: Site) -> None:
    out = site.directory / "alice" / "again"
    script = f"id -u >> {out}; test $(wc -l < {out}) -ge 4"
    first = site.queued("alice", script, (0, 1), retries=3, backoff=timedelta(milliseconds=10))
    assert {site.ended(each).state for each in (first, first + 1)} == {JobState.COMPLETED}
    lines = len(out.read_text().split())
    assert lines >= 4
    site.actions("mallory").requeue([first])
    site.until(lambda: len(out.read_text().split()) > lines and site.job(first).state.is_terminal, "it ran again")
    assert set(out.read_text().split()) == {str(site.users["alice"].pw_uid)}


@pytest.fixture
def place(site: Site) -> Iterator[Site]:
    """Create another state directory of the same users, without a scheduler."""
    directory = Path(tempfile.mkdtemp(prefix="gputui-members-"))
    directory.chmod(0o755)
    (directory / "config.toml").write_text((site.directory / "config.toml").read_text())
    store = TinyJobStore(directory / "state", StoreSettings(group=site.group))
    yield Site(directory, site.group, site.users, store)
    leftovers.end(directory / "state")
    store.close()
    shutil.rmtree(directory)


def test_a_member_leads_after_root(place: Site) -> None:
    """The member runs her own jobs, leaves those of others waiting, and neither loses nor repeats root's work."""
    go = place.directory / "go"
    script = f"echo begun; while [ -e {place.state} ] && [ ! -e {go} ]; do sleep 0.05; done"
    with place.served():
        hers, his = (place.queued(name, script) for name in ("alice", "mallory"))
        place.until(lambda: all(place.job(each).state is JobState.RUNNING for each in (hers, his)), "both run")
    late = place.queued("mallory", "true")
    with place.served("alice"):
        done = place.run("mallory", COMMAND, "submit", "--host", "--", "true")
        assert (done.returncode, "runs as root can run jobs as other users" in done.stderr) == (2, True), done.stderr
        assert place.ended(place.queued("alice", "true")).state is JobState.COMPLETED
        assert (place.job(late).state, place.job(late).attempts) == (JobState.PENDING, ())
        told = place.run("mallory", COMMAND, "explain", str(late))
        assert "only a scheduler that runs as root" in " ".join(told.stdout.split()), told
        place.actions("mallory").cancel([his])
        log = place.state / "gputui.log"
        place.until(lambda: "whose processes" in log.read_text(), "it is told that it cannot be ended")
        assert place.job(his).state is JobState.COMPLETING
        assert place.job(hers).state is JobState.RUNNING
        go.touch()
        assert place.ended(hers).state is JobState.COMPLETED
        assert place.ended(his).state is JobState.CANCELLED
        place.until(lambda: log.read_text().count("can begin or remove it") == 2, "both are left to root")
        assert log.read_text().count("whose processes") == 1
        assert "Traceback" not in log.read_text()
    logs = [(place.state / f"logs/{each}/1.log").read_text() for each in (hers, his)]
    assert logs == ["begun\n", "begun\n"]
    assert not (place.state / f"logs/{hers}/2.log").exists()
    with place.served():
        assert place.ended(late).state is JobState.COMPLETED
        place.until(lambda: not list((place.state / "attempts").glob("gputui-*")), "root removes them")
