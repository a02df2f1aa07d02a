"""A state directory that a group shares, with real users, whose commands run as these users."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputui.bootstrap import clock
from gputui.domain.audit import Actor
from gputui.domain.cause import CauseCode
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.files.leadership import current_leader
from gputui.runtime.process import wrapper
from gputui.store import TinyJobStore
from tests import leftovers
from tests.accounts import accounts
from tests.e2e.commands import Account
from tests.e2e.site import COMMANDS
from tests.needs import need

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
BECOME = """
import importlib, os, pkgutil, sys
import gputui, json, shlex, socket, tomllib
for each in pkgutil.walk_packages(gputui.__path__, "gputui."):
    if each.name.split(".")[1] in {"api", "cli", "config", "domain", "engine", "request", "store"}:
        importlib.import_module(each.name)
import gputui.bootstrap, gputui.runtime.process.runtime, gputui.runtime.docker.runtime, gputui.gpus.simulated
import gputui.ports.frame_channel, gputui.runtime.process.job_exec, gputui.runtime.docker.job_exec
import gputui.runtime.docker.transport, docker.errors, requests.exceptions
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
import sys
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


@dataclass
class Site:
    """A shared state directory, and its users by name."""

    directory: Path
    group: str
    users: dict[str, pwd.struct_passwd]
    store: TinyJobStore
    more: dict[str, str] = field(default_factory=dict)
    """Environment beside the usual one."""

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
        return fixed | self.more | more

    def run(self, name: str, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python code as that user."""
        status, out, err = COMMANDS.run(
            words, self.environ(), b"", PATIENCE, cwd=self.directory, account=self.account(name), code=code
        )
        return subprocess.CompletedProcess([name, *words], status, out.decode(), err.decode())

    def account(self, name: str) -> Account:
        user = self.users[name]
        return user.pw_uid, user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)

    @contextmanager
    def served(self, name: str = "root", **more: str) -> Iterator[None]:
        """Run a scheduler of that user for the time of a block."""
        uid, gid, groups = self.account(name)
        words = [str(uid), str(gid), json.dumps(groups), SERVE, *self._open_to_all(), "serve"] if uid else []
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

    def program(self, name: str) -> list[str]:
        """Return the arguments of the interpreter that run gputui as that user, in a process of its own."""
        uid, gid, groups = self.account(name)
        return ["-c", BECOME, str(uid), str(gid), json.dumps(groups), COMMAND] if uid else ["-m", "gputui"]

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
        return self.actions(name).act(SubmitJobs((Submission(spec, array=array),))).ids[0]

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


@contextmanager
def members(*names: str, config: str = "", environ: Mapping[str, str] | None = None) -> Iterator[Site]:
    """Yield a state directory of a new group, with a new user for each name; remove all of them afterwards."""
    need("root", "readers")
    mark = secrets.token_hex(3)
    group, by_name = f"gptg{mark}", {name: f"gpt{mark}{name}" for name in names}
    directory = Path(tempfile.mkdtemp(prefix="gputui-members-"))
    directory.chmod(0o755)
    with accounts():
        subprocess.run(["groupadd", group], check=True)
        for name, account in by_name.items():
            home = directory / name
            subprocess.run(["useradd", "-m", "-d", str(home), "-G", group, "-s", "/bin/sh", account], check=True)
    users = {name: pwd.getpwnam(account) for name, account in by_name.items()}
    store = TinyJobStore(directory / "state", StoreSettings(group=group))
    (directory / "config.toml").write_text(f'[store]\ngroup = "{group}"\n[scheduler]\nfast_failing_jobs = 0\n{config}')
    site = Site(directory, group, {**users, "root": pwd.getpwuid(0)}, store, dict(environ or {}))
    try:
        yield site
    finally:
        leftovers.end(site.state)
        store.close()
        with accounts():
            for account in by_name.values():
                subprocess.run(["userdel", "-f", account], check=True)
            subprocess.run(["groupdel", group], check=True)
        shutil.rmtree(directory)
