"""Plain users enter their own jobs: real users, who may open neither the engine nor the queue."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from gputui.domain.state import JobState
from tests.e2e.members import COMMAND, Site
from tests.e2e.plain_users import plain_users, served_to_users, socket_of
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.needs("root"), pytest.mark.timeout(300)]


@dataclass
class Place:
    """A queue of containers and host jobs that plain users ask."""

    site: Site
    listener: socket.socket
    owner: ExitStack = field(default_factory=ExitStack)

    def serve(self) -> None:
        self.process = self.owner.enter_context(served_to_users(self.site, self.listener))

    def ask(self, name: str, *words: str) -> tuple[int, str, str]:
        done = self.site.run(name, COMMAND, *words)
        return done.returncode, done.stdout, done.stderr

    def running(self, run: Future[tuple[int, str, str]]) -> int:
        """Return the job that a command has submitted, once it runs."""

        def live() -> list[int]:
            assert not run.done(), run.result()
            return [job.id for job in self.site.store.jobs().values() if job.state is JobState.RUNNING]

        self.site.until(lambda: bool(live()), "it runs")
        return live()[0]


@pytest.fixture(scope="module")
def place(engine: Dockerd) -> Iterator[Place]:
    environ = {"GPUTUI_RUNTIME": "docker", "DOCKER_HOST": engine.host}
    with plain_users("alice", "bob", environ=environ) as site, socket_of(site) as listener:
        found = Place(site, listener)
        with found.owner:
            found.serve()
            yield found


WAITS = "id -u; echo no >&2; while [ ! -e /tmp/over ]; do sleep 0.05; done; exit 5"


@pytest.mark.parametrize("words", [("--network", "none", IMAGE), ("--host", "--")], ids=["container", "host"])
def test_alice_is_in_her_job_from_its_first_byte_and_bob_is_not(place: Place, words: tuple[str, ...]) -> None:
    alice, site = place.site.users["alice"], place.site
    over = "/tmp/over" if IMAGE in words else str(site.directory / "alice" / "over")
    script = WAITS.replace("/tmp/over", over)
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(place.ask, "alice", "run", "-q", *words, "sh", "-c", script)
        one = place.running(run)
        assert site.job(one).submitted_uid == alice.pw_uid
        followed = pool.submit(place.ask, "alice", "logs", "-f", str(one))
        for asked in (("attach", str(one)), ("exec", str(one), "id"), ("logs", str(one))):
            code, out, err = place.ask("bob", *asked)
            assert (code, out) == (1, "")
            assert f"job {one}: only {alice.pw_name}, who submitted it, and operators may" in err
        code, out, err = place.ask("alice", "exec", str(one), "id", "-u")
        assert (code, out.strip()) == (0, str(alice.pw_uid)), err
        code, out, err = place.ask("root", "exec", str(one), "touch", over)
        assert code == 0, err
        code, out, err = run.result(60)
        assert (code, out, err) == (5, f"{alice.pw_uid}\n", "no\n")
        assert {str(alice.pw_uid), "no"} == {*followed.result(60)[1].split()}
    told = [(entry.verb, entry.uid) for entry in site.store.audit_log()]
    bob = site.users["bob"].pw_uid
    assert told.count(("refused", bob)) >= 3
    assert {("exec", alice.pw_uid), ("attach", alice.pw_uid), ("exec", 0)} <= {*told}
    assert not {("exec", bob), ("attach", bob)} & {*told}


def test_a_stream_outlives_a_killed_owner_and_the_next_one_serves(place: Place) -> None:
    site = place.site
    go = site.directory / "alice" / "go"
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two; exit 3"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(place.ask, "alice", "run", "-q", "--host", "--", "sh", "-c", script)
        one = place.running(run)
        place.process.send_signal(signal.SIGKILL)
        place.owner.close()
        place.serve()
        assert place.ask("alice", "exec", str(one), "touch", str(go))[0] == 0
        assert run.result(60)[:2] == (3, "one\ntwo\n")


def test_one_who_waits_for_a_start_waits_at_the_next_owner(place: Place) -> None:
    site = place.site
    blocker = int(site.gputui("root", "submit", "--gpus", "1", "--host", "--", "sleep", "600"))
    site.until(lambda: site.job(blocker).state is JobState.RUNNING, "the GPU is taken")
    words = ("run", "-q", "--gpus", "1", "--network", "none", IMAGE, "sh", "-c", "echo first; exit 4")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(place.ask, "alice", *words)
        site.until(lambda: run.done() or max(site.store.jobs()) > blocker, "it is submitted")
        place.process.send_signal(signal.SIGKILL)
        place.owner.close()
        place.serve()
        assert not run.done(), run.result()
        site.gputui("root", "cancel", str(blocker))
        assert run.result(60)[:2] == (4, "first\n")
    waited = [job for job in site.store.jobs().values() if job.id > blocker]
    assert [len(job.attempts) for job in waited] == [1], "it was submitted once"
    attached = [entry.verb for entry in site.store.audit_log(waited[0].target)].count("attach")
    assert attached == 1, "from its start"
