"""Two accounts of this machine at the socket of a real owner: neither gets at the other's jobs; the audit log tells."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputui import __version__, thin
from gputui.api.routes import ROUTES, AnswerKind, Scope
from gputui.domain.access import Role
from tests.api.owner import SECRET
from tests.api.test_roles import ROWS
from tests.waiting import until

pytestmark = pytest.mark.needs("root", "curl")
ALICE, BOB = 61_901, 61_902
PATIENCE = 60.0
JOB = {"name": "secret", "command": ["sleep", "600"], "options": {"env": [["KEY", SECRET]]}}


COMMANDS = {
    "submit": ("--tenant", "root", "--host", "--", "true"),
    "queue": ("--all",),
    "show": ("{job}",),
    "gpus": (),
    "explain": ("{job}",),
    **dict.fromkeys(("cancel", "hold", "release", "suspend", "unsuspend", "requeue"), ("{job}",)),
    "signal": ("{job}", "USR1"),
    "priority": ("{job}", "1"),
    "pause": ("mine",),
    "unpause": (),
    "drain": ("0",),
    "resume": ("0",),
    "history": ("--json",),
    "reserve": ("add", "--gpus", "1", "--start", "18:00", "--for", "1h"),
    "tenant": ("set", "root", "--weight", "9"),
    "cron": ("remove", "{cron}"),
}
"""Commands of thin clients about another's things; those who only look are told what everybody may know."""
LOOKING = {"queue", "show", "gpus", "explain", "history"}


class Door:
    """The socket of a `gputui serve` that lets everybody use its queue."""

    __test__ = False

    def __init__(self, directory: Path, access: str = "") -> None:
        """`access` are further lines of the settings [access]."""
        self.directory = directory
        config = directory / "config.toml"
        config.write_text(f'[access]\nusers = ["*"]\n{access}')
        state = directory / "state"
        words = ("--state", state, "--config", config, "--probe", "sim:1:A100", "--runtime", "process", "serve")
        command = [sys.executable, "-P", "-m", "gputui", *map(str, words)]
        with (directory / "log").open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        self.socket = state / "api.sock"
        until(self._answers, lambda: (directory / "log").read_text())  # its mode is set before that
        for place in (directory, state):
            place.chmod(0o711)
        self.socket.chmod(0o666)

    def _answers(self) -> bool:
        words = ["curl", "-sf", "-o", "/dev/null", "--unix-socket", str(self.socket), "http://localhost/v1/about"]
        return subprocess.run(words, check=False).returncode == 0

    def ask(self, uid: int, method: str, path: str, body: bytes | None = None, *headers: str) -> tuple[int, str]:
        """Return status and body of the answer to that user."""
        words = ["curl", "-sS", "--max-time", "20", "-X", method, "-w", "\n%{http_code}", "--unix-socket"]
        words += [str(self.socket), f"http://localhost{path}", *(word for each in headers for word in ("-H", each))]
        words += ["--data-binary", "@-"] if body is not None else []
        done = subprocess.run(
            words, input=body, user=uid, group=uid, extra_groups=(), cwd="/", capture_output=True, check=False
        )
        assert done.returncode == 0, (method, path, done.stderr)
        text, _, status = done.stdout.decode(errors="replace").rpartition("\n")
        return int(status), text

    def json(self, uid: int, method: str, path: str, body: Any = None) -> Any:
        """Return what a user is answered, whom nothing refuses."""
        status, text = self.ask(uid, method, path, None if body is None else msgspec.json.encode(body))
        assert status < 300, text
        return json.loads(text)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture
def door() -> Iterator[Door]:
    with tempfile.TemporaryDirectory() as place:  # another pytest closes those of this one to other accounts
        made = Door(Path(place))
        yield made
        made.close()


def test_each_submits_follows_and_cancels_his_own(door: Door) -> None:
    ids = {}
    for uid in (ALICE, BOB):
        [ids[uid]] = door.json(uid, "POST", "/v1/jobs", {"jobs": [{"spec": JOB, "held": True}]})["ids"]
    for uid, other in ((ALICE, BOB), (BOB, ALICE)):
        assert door.json(uid, "GET", f"/v1/jobs/{ids[uid]}")["spec"]["env"] == {"KEY": "***"}
        assert door.json(uid, "GET", f"/v1/jobs/{ids[other]}")["spec"]["env"] == {}
        cancel = msgspec.json.encode({"action": "cancel", "ids": [ids[other]]})
        assert door.ask(uid, "POST", "/v1/actions", cancel)[0] == 403
        assert door.json(uid, "POST", "/v1/actions", {"action": "cancel", "ids": [ids[uid]]})["ids"] == [ids[uid]]
    submitted = [entry for entry in door.json(0, "GET", "/v1/audit") if entry["verb"] == "submit"]
    assert [entry["uid"] for entry in submitted] == [ALICE, BOB]


def test_no_route_lets_one_at_the_others_jobs(door: Door) -> None:
    ids = door.json(ALICE, "POST", "/v1/jobs", {"jobs": [{"spec": JOB, "held": True}] * 3})["ids"]
    before = [door.json(0, "GET", f"/v1/jobs/{job_id}") for job_id in ids]
    refused = []
    for route in ROUTES:
        if route.kind is AnswerKind.EVENTS:
            continue  # they have no end; tests/api/test_roles.py reads them
        row = ROWS[route.handler]
        path = route.path.replace("{id}", str(row.job)).replace("{attempt}", "latest")
        query = "?" + "&".join(f"{name}={value}" for name, value in row.query.items()) if row.query else ""
        body = None if row.body is None else msgspec.json.encode(row.body)
        headers = (f"{name}: {value}" for name, value in row.headers.items())
        status, text = door.ask(BOB, route.method, path + query, body, *headers)
        assert SECRET not in text, route.handler
        if route.scope is Scope.JOB and route.role is Role.USER:
            assert status == 403, (route.handler, status, text)
        refused += [f"{route.method} {path}"] if status == 403 else []
    assert [door.json(0, "GET", f"/v1/jobs/{job_id}") for job_id in ids] == before
    entries = [entry for entry in door.json(0, "GET", "/v1/audit") if entry["verb"] == "refused"]
    assert {entry["uid"] for entry in entries} == {BOB}
    assert [entry["after"].partition(": ")[0] for entry in entries] == refused
    assert len(refused) >= 8


def test_no_command_lets_one_at_the_others_jobs(door: Door) -> None:
    assert COMMANDS.keys() == thin.COMMANDS
    [job_id] = door.json(ALICE, "POST", "/v1/jobs", {"jobs": [{"spec": JOB, "held": True}]})["ids"]
    every = {
        "action": "add_recurring",
        "recurrence": {"expression": "@yearly", "zone": "UTC"},
        "submission": {"spec": JOB},
    }
    [cron] = door.json(ALICE, "POST", "/v1/actions", every)["ids"]
    before = [door.json(0, "GET", path) for path in (f"/v1/jobs/{job_id}", "/v1/recurring", "/v1/controls", "/v1/gpus")]
    for command, words in COMMANDS.items():
        argv = [command, *(word.format(job=job_id, cron=cron) for word in words)]
        line = {
            "version": __version__,
            "argv": argv,
            "cwd": "/",
            "ttys": 7,
            "environ": {"SUDO_UID": "0", "USER": "root"},
        }
        status, text = door.ask(BOB, "POST", "/v1/cli", msgspec.json.encode(line))
        assert (status, SECRET in text) == (200, False), (command, text)
        assert text.partition("\n")[0] == ("0" if command in LOOKING else "1"), (command, text)
    after = [door.json(0, "GET", path) for path in (f"/v1/jobs/{job_id}", "/v1/recurring", "/v1/controls", "/v1/gpus")]
    assert after[:3] == before[:3]
    assert [(gpu["uuid"], gpu["state"]) for gpu in after[3]] == [(gpu["uuid"], gpu["state"]) for gpu in before[3]]
    entries = [entry for entry in door.json(0, "GET", "/v1/audit") if entry["verb"] == "refused"]
    assert {entry["uid"] for entry in entries} == {BOB}
    assert len(entries) == len(COMMANDS.keys() - LOOKING)
