"""A state directory with real users of the machine, whose commands run as these users."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gputui.domain.job import Job
from gputui.store import TinyJobStore
from tests.e2e.commands import Account
from tests.e2e.site import COMMANDS
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
BECOME = """
import importlib, os, pkgutil, sys
import gputui, json, shlex, socket, tomllib
for each in pkgutil.walk_packages(gputui.__path__, "gputui."):
    if each.name.split(".")[1] in {"api", "cli", "config", "domain", "engine", "request", "store"}:
        importlib.import_module(each.name)
import gputui.bootstrap, gputui.runtime.process.runtime, gputui.runtime.docker.runtime, gputui.gpus.simulated
import gputui.ports.runtime, gputui.runtime.process.job_exec, gputui.runtime.docker.job_exec
import gputui.runtime.docker.transport, docker.errors, requests.exceptions
import concurrent.futures.thread, zoneinfo, apscheduler.executors.asyncio, apscheduler.executors.pool
import apscheduler.schedulers.asyncio, apscheduler.triggers.date, apscheduler.triggers.interval
uid, gid, groups, code = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
os.setgroups(groups); os.setgid(gid); os.setuid(uid)  # only now: the interpreter itself may be closed to users
sys.argv = ["gputui", *sys.argv[5:]]
exec(code)
"""
COMMAND = "from gputui.cli.main import main; main()"


@dataclass
class Site:
    """A state directory, and the users of its queue by name."""

    directory: Path
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

    def program(self, name: str) -> list[str]:
        """Return the arguments of the interpreter that run gputui as that user, in a process of its own."""
        uid, gid, groups = self.account(name)
        return ["-c", BECOME, str(uid), str(gid), json.dumps(groups), COMMAND] if uid else ["-m", "gputui"]

    def gputui(self, name: str, *words: str) -> str:
        """Return what a command of that user prints."""
        done = self.run(name, COMMAND, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, job_id: int) -> Job:
        return self.store.get(job_id)

    def until(self, true: Callable[[], bool], what: str) -> None:
        until(true, what)
