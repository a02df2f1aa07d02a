"""The same escapes, asked for at the socket of a running owner by processes of the user herself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest

from gputui.domain.job_spec import Submission
from tests import leftovers
from tests.runtime.dockerd import Dockerd
from tests.runtime.escapes import OF_OPTIONS, OF_USERS, Escape, Site, job, made_site, of_mounts
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.needs("root", "readers"), pytest.mark.timeout(600)]

SERVE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "gputui", "--state", sys.argv[2], "--probe", "sim:1", "serve"])
"""
ASK = """
import http.client, json, socket, sys
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
for method, path, body in json.load(sys.stdin):
    asked = Connection("queue")
    asked.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = asked.getresponse()
    print(json.dumps([answer.status, answer.read().decode(errors="replace")]))
    asked.close()
"""
Answer = tuple[int, Any]


class Owner:
    """A running owner, and users who ask it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.door = site.place / "queue.sock"

    def ask(self, uid: int, *requests: tuple[str, str, str | None]) -> list[Answer]:
        """Return the answers to requests of a process of that user; a body of JSON is decoded."""
        words = [sys.executable, "-I", "-c", ASK, str(self.door)]
        rights: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
        asked = subprocess.run(
            words, input=json.dumps(requests), capture_output=True, text=True, check=False, cwd="/", env={}, **rights
        )
        assert asked.returncode == 0, asked.stderr
        return [(status, _decoded(body)) for status, body in map(json.loads, asked.stdout.splitlines())]

    def submit(self, uid: int, *escapes: Escape) -> list[Answer]:
        bodies = [msgspec.json.encode({"jobs": [Submission(job(each.script, **each.options))]}) for each in escapes]
        return self.ask(uid, *(("POST", "/v1/jobs", body.decode()) for body in bodies))

    def ended(self, uid: int, job_id: int) -> Mapping[str, Any]:
        """Return the job once it has ended."""
        found: list[Mapping[str, Any]] = []

        def has_ended() -> bool:
            found[:] = [self.ask(uid, ("GET", f"/v1/jobs/{job_id}", None))[0][1]]
            return found[0]["state"] in {"COMPLETED", "FAILED", "CANCELLED"}

        until(has_ended, f"job {job_id} ends")
        return found[0]


def _decoded(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@contextmanager
def serving(site: Site) -> Iterator[Owner]:
    """Let root serve the queue to all accounts."""
    owner, admission = Owner(site), site.admission
    state = site.place / "served"
    state.mkdir(mode=0o700)
    environ = {
        **site.engine.environ,
        "GPUTUI_SCHEDULER_FAST_FAILING_JOBS": "0",
        "GPUTUI_ACCESS_USERS": "*",
        "GPUTUI_ACCESS_SOCKET": f"{site.place}/door/api.sock",
        "GPUTUI_ADMISSION_MOUNTS": ",".join(admission.mounts),
        "GPUTUI_ADMISSION_NETWORKS": ",".join(admission.networks),
        "GPUTUI_ADMISSION_PIDS": str(admission.pids),
        "GPUTUI_ADMISSION_MEMORY": str(admission.memory),
        "GPUTUI_ADMISSION_CPUS": str(admission.cpus),
        "GPUTUI_ADMISSION_SHM_SIZE": str(admission.shm_size),
    }
    with closing(socket.socket(socket.AF_UNIX)) as door:
        door.bind(str(owner.door))
        owner.door.chmod(0o666)
        door.listen(64)
        words = [sys.executable, "-c", SERVE, str(door.fileno()), str(state)]
        process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, pass_fds=(door.fileno(),))
        try:
            assert owner.ask(0, ("GET", "/v1/about", None))[0][0] == 200
            yield owner
        finally:
            process.terminate()
            process.wait(60)
            leftovers.end(state)


@pytest.fixture(scope="module")
def owner(engine: Dockerd) -> Iterator[Owner]:
    with made_site(engine) as site, serving(site) as owner:
        yield owner


def test_what_a_user_asks_for_is_refused_by_name_and_told_in_the_audit_log(owner: Owner) -> None:
    alice = owner.site.people.alice
    tries = [*OF_OPTIONS, *OF_USERS, *of_mounts(owner.site)]
    assert len(tries) > 80
    gained: list[str] = []
    for escape, (status, body) in zip(tries, owner.submit(alice.pw_uid, *tries), strict=True):
        if escape.is_refused and not escape.may_be_submitted:
            if status != 403 or not body["rule"].startswith("admission-"):
                gained.append(f"{escape.name}: {status} {body}")
            continue
        assert status == 201, (escape.name, body)
        ended = owner.ended(alice.pw_uid, body["ids"][0])
        log = f"/v1/jobs/{body['ids'][0]}/attempts/latest/log"
        told = str(owner.ask(alice.pw_uid, ("GET", log, None))[0][1])
        if escape.may_be_submitted:
            assert ended["state"] == "FAILED", escape.name
            assert "cannot be mounted" in ended["cause"]
        elif escape.gain(told, owner.site):
            gained.append(f"{escape.name}: {told}")
    assert not gained, "\n".join(gained)
    told = json.dumps(owner.ask(0, ("GET", "/v1/audit", None))[0][1])
    assert "admission-privileged" in told
    assert alice.pw_name in told


def test_an_edit_takes_no_job_out_of_its_box(owner: Owner) -> None:
    alice = owner.site.people.alice.pw_uid
    held = Submission(job("id -u"), held=True)
    body = msgspec.json.encode({"jobs": [held]}).decode()
    [(status, made)] = owner.ask(alice, ("POST", "/v1/jobs", body))
    assert status == 201
    one = made["ids"][0]
    for options in ({"privileged": True}, {"volumes": ["/etc:/e"]}, {"user": "0"}, {"network": "host"}):
        edit = json.dumps({"options": options})
        [(status, told)] = owner.ask(alice, ("PATCH", f"/v1/jobs/{one}", edit))
        assert status in {403, 422, 400}, told
