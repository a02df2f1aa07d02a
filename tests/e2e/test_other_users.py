"""What a second member of a shared queue may do with the jobs, processes and containers of another: real users, real
containers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gputui.domain.state import JobState
from tests.e2e.members import COMMAND, Site, members
from tests.e2e.person import Person
from tests.e2e.terminal import Terminal
from tests.gpus import standin
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [
    pytest.mark.docker,
    pytest.mark.nvml,
    pytest.mark.needs("root"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("members"),
]


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> standin.StandIn:
    found = standin.StandIn(tmp_path_factory.mktemp("nvml") / "nvml.txt")
    found.write(gpus=2)
    return found


@pytest.fixture(scope="module")
def site(engine: Dockerd, gpus: standin.StandIn) -> Iterator[Site]:
    """Two members, and root, who schedules containers on two GPUs."""
    environ = {"GPUTUI_RUNTIME": "docker", "DOCKER_HOST": engine.host, "GPUTUI_PROBE": "nvml", **gpus.environment}
    with members("alice", "mallory", environ=environ) as found, found.served():
        yield found


def refused(site: Site, name: str, *words: str) -> str:
    """Return the one sentence with which a command of that user is refused."""
    done = site.run(name, COMMAND, *words)
    assert (done.returncode, done.stdout) == (1, ""), (words, done)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def audited(site: Site, verb: str) -> list[tuple[str, str]]:
    """Return users and details of the entries of a verb in the audit log."""
    return [(entry.user, f"{entry.before} {entry.after}") for entry in site.store.audit_log() if entry.verb == verb]


def test_a_member_works_in_her_own_job_and_no_other_member_does(site: Site) -> None:
    words = ("run", "-it", "--network", "none", "--time-limit", "1h", IMAGE, "sh")
    person = Person(site.environ(TERM="vt100"), *words, program=site.program("alice"))
    person.press(b"kept=yes; echo $((40+2))\n")
    person.until(b"42\r\n")
    (one,) = site.store.jobs()
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    again = Person(site.environ(TERM="vt100"), "attach", str(one), program=site.program("alice"))
    again.press(b"echo kept-$kept\n")
    again.until(b"kept-yes\r\n")
    again.press(b"\x10")
    again.press(b"\x11")
    assert again.ended() == 0
    inside = site.run("alice", COMMAND, "exec", str(one), "sh", "-c", "echo inside; exit 4")
    assert (inside.returncode, inside.stdout) == (4, "inside\n"), inside.stderr

    alice, mallory = (site.users[name].pw_name for name in ("alice", "mallory"))
    assert f"job {one} is a job of {alice}" in refused(site, "mallory", "exec", str(one), "id")
    for verb, words_for_it in (("signal", ("TERM",)), ("suspend", ())):
        told = refused(site, "mallory", verb, str(one), *words_for_it)
        assert f"job {one}: only {alice}, who submitted it, and operators may" in told
    at_a_terminal = Person(site.environ(TERM="vt100"), "attach", str(one), program=site.program("mallory"))
    assert at_a_terminal.ended() == 1
    assert f"job {one} is a job of {alice}".encode() in at_a_terminal.shown
    assert site.run("mallory", COMMAND, "edit", str(one), "--time-limit", "+1h").returncode != 0
    users = {entry.user for entry in site.store.audit_log(f"job {one}")}
    assert users == {alice}, f"nothing that {mallory} asked for was done"
    site.gputui("mallory", "cancel", "-q", str(one))  # members may: docs/security.md
    person.ended()
    assert site.ended(one).state is JobState.CANCELLED
    assert (mallory, "cancel") in {(entry.user, entry.verb) for entry in site.store.audit_log(f"job {one}")}


@pytest.fixture
def foreign(site: Site, gpus: standin.StandIn) -> Iterator[subprocess.Popen[bytes]]:
    """A process of alice on GPU 0 that belongs to no job."""
    alice = site.users["alice"]
    with subprocess.Popen(["sleep", "600"], user=alice.pw_uid, group=alice.pw_gid, cwd="/") as process:
        gpus.change(f"gpu 0 process {process.pid} 5000000000 C")
        site.until(lambda: str(process.pid) in site.gputui("root", "ps"), "it is seen on its GPU")
        yield process
        process.kill()
    gpus.change(without=["gpu 0 process"])


def test_a_process_of_another_user_is_left_alone(site: Site, foreign: subprocess.Popen[bytes]) -> None:
    alice, mallory = (site.users[name].pw_name for name in ("alice", "mallory"))
    for name in ("TERM", "KILL"):
        told = refused(site, "mallory", "ps", "--yes", "--signal", name, str(foreign.pid))
        assert f"pid {foreign.pid} belongs to {alice} (ask {alice} or root)" in told
    assert foreign.poll() is None
    assert [user for user, _ in audited(site, "signal")] == [mallory, mallory]
    site.gputui("alice", "ps", "--yes", "--signal", "TERM", str(foreign.pid))
    assert foreign.wait(60) == -15


def test_a_container_is_stopped_only_by_those_who_reach_the_engine(site: Site, engine: Dockerd) -> None:
    engine.docker("run", "-d", "--name", "lab", "--network", "none", "--stop-timeout", "0", IMAGE, "sleep", "600")
    told = refused(site, "mallory", "ps", "--yes", "--stop", "lab")
    assert "no permission to speak to Docker" in told
    assert engine.docker("inspect", "--format", "{{.State.Running}}", "lab") == "true"
    assert [user for user, _ in audited(site, "stop-container")] == [site.users["mallory"].pw_name]
    site.gputui("root", "ps", "--yes", "--stop", "lab")
    assert engine.docker("inspect", "--format", "{{.State.Running}}", "lab") == "false"
    engine.docker("rm", "lab")


@pytest.mark.tmux
def test_the_console_refuses_to_kill_a_process_of_another_user(site: Site, foreign: subprocess.Popen[bytes]) -> None:
    """The capability lets her read the interpreter, wherever it lies; it gives no right to send signals."""
    user = site.users["mallory"]
    who = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    reads = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--bounding-set=-kill"]
    command = [*who, *reads, sys.executable, "-m", "gputui"]
    home = {"HOME": user.pw_dir, "XDG_STATE_HOME": f"{user.pw_dir}/state", "TERM": "xterm-256color"}
    before = len(audited(site, "signal"))
    with Terminal(command, site.environ(**home), 140, 36) as terminal:
        terminal.until("q quit")
        terminal.press("U")
        terminal.until("GPU USERS", str(foreign.pid), "K send KILL")
        terminal.press("K")
        terminal.until("KILL", str(foreign.pid))
        terminal.press("y")
        shown = terminal.until("belongs to")
        assert re.search(rf"pid {foreign.pid} belongs to", shown)
    assert foreign.poll() is None
    assert [name for name, _ in audited(site, "signal")][before:] == [user.pw_name]
