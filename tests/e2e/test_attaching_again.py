"""Interrupted connections to jobs in real containers: the engine restarts, or the owner of the queue does."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from gputui.domain.state import JobState
from tests.e2e.members import COMMAND, Site
from tests.e2e.person import Person
from tests.e2e.plain_users import plain_users, served_to_users, socket_of
from tests.e2e.site import COMMANDS
from tests.process_list import command_lines
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [
    pytest.mark.docker,
    pytest.mark.needs("root"),
    pytest.mark.timeout(300),
]
LEAVING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
SCRIPT = "trap 'echo two; echo error >&2; exit 7' USR1; echo one; while :; do sleep 0.05; done"


@dataclass
class Place:
    """A queue of containers on an engine that can be restarted."""

    site: Site
    engine: Dockerd
    listener: socket.socket
    scheduler: ExitStack = field(default_factory=ExitStack)

    def schedule(self) -> None:
        """Start the scheduler, which serves streams."""
        self.scheduler.enter_context(served_to_users(self.site, self.listener))

    def restart_scheduler(self) -> None:
        """End the scheduler with all streams, as a service manager does, and start it again."""
        self.scheduler.close()
        for pid in streams(self.site):
            os.kill(pid, signal.SIGKILL)
        self.schedule()

    def restart_engine(self) -> None:
        """Kill the engine and start it again; its containers run on."""
        self.engine.kill()
        self.engine.launch(live_restore=True)


def streams(site: Site) -> list[int]:
    """Return the pids of the processes of streams of this queue."""
    mark = {b"gputui.bootstrap.stream", os.fsencode(site.state)}
    return [pid for pid, words in command_lines().items() if mark <= {*words}]


@pytest.fixture
def place(live_engine: Dockerd) -> Iterator[Place]:
    environ = {"GPUTUI_RUNTIME": "docker", "DOCKER_HOST": live_engine.host}
    with plain_users("alice", environ=environ) as site, socket_of(site) as listener:
        found = Place(site, live_engine, listener)
        with found.scheduler:
            found.schedule()
            yield found


def output_so_far(site: Site, job_id: int) -> bytes:
    return COMMANDS.run(["logs", str(job_id)], site.environ(), b"", timeout=60)[1]


def interrupted(
    place: Place, job_id: int, running: Future[tuple[int, bytes, bytes]], interrupt: Callable[[], None]
) -> None:
    """Interrupt the connection to a job, and wait until the command that runs attached to it again."""
    before = attachments(place.site, job_id)
    interrupt()
    place.site.until(lambda: running.done() or attachments(place.site, job_id) > before, "it attached again")
    assert not running.done(), running.result()


def runs(site: Site) -> None:
    """Wait until the start of the only job is over: an engine that is killed meanwhile loses the container."""
    site.until(lambda: [job.state for job in site.store.jobs().values()] == [JobState.RUNNING], "it runs")


def attachments(site: Site, job_id: int) -> int:
    return [entry.verb for entry in site.store.audit_log(f"job {job_id}")].count("attach")


@pytest.mark.parametrize("name", ["root", "alice"])
def test_a_job_without_a_terminal_is_attached_to_again(place: Place, name: str) -> None:
    """Root connects to the engine itself, alice asks the owner: she cannot reach the engine's socket."""
    site = place.site
    words = ("run", "-q", "--network", "none", IMAGE, "sh", "-c", SCRIPT)
    account = site.account(name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            COMMANDS.run, words, site.environ(), b"", 200, cwd=site.directory, account=account, code=COMMAND
        )
        site.until(lambda: bool(site.store.jobs()), "it is submitted")
        (one,) = site.store.jobs()
        site.until(lambda: output_so_far(site, one) == b"one\n", "it has begun")
        runs(site)
        interrupted(place, one, running, place.restart_engine)
        if name != "root":
            interrupted(place, one, running, place.restart_scheduler)
        site.gputui(name, "signal", str(one), "USR1")
        code, out, err = running.result(120)
        own = [line for line in err.splitlines() if b"has not answered for" not in line]  # a slow owner is named
        assert (code, out, own) == (7, b"one\ntwo\n", [b"error"])
    assert site.job(one).state is JobState.FAILED
    assert len(site.job(one).attempts) == 1, "the restart ended no attempt"


@pytest.mark.parametrize("name", [pytest.param("root", marks=pytest.mark.long), "alice"])
def test_a_terminal_is_attached_to_again(place: Place, name: str) -> None:
    site = place.site
    words = ("run", "-it", "--network", "none", IMAGE, "sh")
    person = Person(site.environ(TERM="vt100"), *words, program=site.program(name))
    person.press(b"kept=yes; echo $((40+2))\n")
    person.until(b"42\r\n")
    runs(site)
    place.restart_engine()
    person.press(b"echo kept-$kept-$((50+5))\n")
    person.until(b"kept-yes-55\r\n")
    if name != "root":
        place.restart_scheduler()
        person.press(b"echo kept-$kept-$((60+6))\n")
        person.until(b"kept-yes-66\r\n")
    person.press(b"exit 9\n")
    assert person.ended() == 9


def test_a_signal_while_the_connection_is_lost_leaves_with_its_number(place: Place) -> None:
    site = place.site
    owner = Person(site.environ(TERM="vt100"), "run", "-it", "--network", "none", IMAGE, "sh")
    owner.press(b"echo $((40+2))\n")
    owner.until(b"42\r\n")
    runs(site)
    (one,) = site.store.jobs()
    found = {number: Person(site.environ(TERM="vt100"), "attach", str(one)) for number in LEAVING}
    for person in found.values():
        person.press(b"echo $((50+5))\n")
        person.until(b"55\r\n")
    place.engine.kill()
    for number, person in found.items():
        person.until(b"trying again")
        os.kill(person.pid, number)
        assert person.ended() == 128 + number
        assert b"keeps running" in person.shown
    place.engine.launch(live_restore=True)
    owner.press(b"echo $((60+6))\n")
    owner.until(b"66\r\n")
    owner.press(b"exit 9\n")
    assert owner.ended() == 9
