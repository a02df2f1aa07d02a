"""The units of `gputui install` on a booted systemd: what the settings allow works within their sandbox."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases import cases
from tests.cli.machine import STATE, UNITS, Machine, booted
from tests.e2e.members import ROOT
from tests.lane import in_its_lane
from tests.needs import need

pytestmark = [pytest.mark.systemd, pytest.mark.xdist_group("machine")]

ANY = "from gputui.__main__ import main; main()"
"""The command as it is installed, which asks the owner if there is one."""
CONTAINERS = "[scheduler]\nhost_jobs = false\n"
METRICS = "[metrics]\nenabled = true\n"
SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9877/metrics').status)"


@pytest.fixture(scope="module")
def booted_machine() -> Iterator[Machine]:
    need("boot")
    with booted() as machine:
        machine.run("systemctl", "start", "sysinit.target")  # it empties /tmp
        machine.run("groupadd", "gpu")
        for name in ("alice", "bob"):
            machine.run("useradd", "--create-home", "--groups=gpu", "--shell=/bin/sh", name)
        machine.run("useradd", "--create-home", "--shell=/bin/sh", "carol")
        yield machine


@pytest.fixture
def machine(booted_machine: Machine) -> Iterator[Machine]:
    yield booted_machine
    booted_machine.run("systemctl", "stop", "gputui.socket", "gputui.service", code=None)
    booted_machine.forget("/var/lib", "/var/backups/gputui", "/srv", "/etc/gputui", "/run/gputui")
    booted_machine.run("rm", "-rf", f"/{UNITS}/gputui.socket", f"/{UNITS}/gputui.service.d")


def backup(machine: Machine) -> None:
    """Let the unit make a backup; it is recorded as good, and can be restored with its owners."""
    machine.run("systemctl", "start", "gputui-backup.service")
    assert "ok    backup" in machine.gputui("root", "doctor", code=None)
    [archive] = machine.run("find", "/var/backups/gputui", "-type", "f").split()
    assert archive.endswith("Z.tar.gz")
    machine.run(sys.executable, "-m", "gputui", "--state", "/srv/restored", "state", "restore", archive)
    of_state, of_copy = machine.owners(f"{STATE}/queue.json", "/srv/restored/queue.json")
    assert of_state == of_copy


def states(machine: Machine) -> dict[str, str]:
    """Return submitter and state of all jobs."""
    jobs = json.loads(machine.gputui("bob", "queue", "--all", "--json"))
    return {f"{job['submitted_by']} {job['id']}": job["state"] for job in jobs}


@pytest.mark.parametrize("jobs", [CONTAINERS, in_its_lane("", is_long=True)])
def test_a_private_queue_is_roots(machine: Machine, jobs: str) -> None:
    machine.install(jobs + METRICS)
    with machine.serving():
        assert machine.owners(STATE, f"{STATE}/queue.json") == ["root:root 700", "root:root 600"]
        machine.until(lambda: machine.run(sys.executable, "-c", SCRAPE, code=None) == "200\n", "it serves metrics")
        backup(machine)


@pytest.mark.long
def test_roots_service_leaves_a_users_queue_to_the_user(machine: Machine) -> None:
    machine.run("install", "-d", "-o", "alice", "-g", "alice", "-m", "700", STATE)
    machine.gputui("alice", "submit", "busybox", "true")
    machine.install(CONTAINERS)
    with machine.serving():
        machine.gputui("alice", "submit", "busybox", "true")
        backup(machine)
    assert set(machine.owners(STATE, f"{STATE}/queue.json")) == {"alice:alice 700", "alice:alice 600"}


@pytest.mark.long
@cases("state", ["/srv/queue", "/home/alice/queue", "/tmp/queue"])
def test_the_queue_may_lie_anywhere(machine: Machine, state: str) -> None:
    machine.run("rm", "-rf", state)
    machine.install(CONTAINERS, state)
    with machine.serving(state):
        machine.run("systemctl", "start", "gputui-backup.service")
    assert machine.owners(state) == ["root:root 700"]


@pytest.mark.long
def test_the_service_writes_where_the_settings_say(machine: Machine) -> None:
    """Beside the state directory, the service writes where the settings and root's own link to another disk say."""
    machine.run("install", "-d", "-m", "700", STATE)
    machine.run("mkdir", "/srv/logs", "/srv/mapping", "/var/spool/mails")
    machine.run("ln", "-s", "/srv/logs", f"{STATE}/logs")
    more = '[metrics]\nhpc_job_mapping_dir = "/srv/mapping"\n[hooks]\nmail_to = ["root"]\n'
    machine.install(CONTAINERS + more)
    within = " && ".join(f"touch {place}/made" for place in (f"{STATE}/logs", "/srv/mapping", "/var/spool/mails"))
    with machine.serving(within=f"{within} && ! touch /srv/made /etc/made"):
        assert machine.owners("/srv/logs/made", "/srv/mapping/made") == ["root:root 600"] * 2


@pytest.mark.long
def test_the_backup_is_made_daily(machine: Machine) -> None:
    machine.install(CONTAINERS)
    machine.run("systemctl", "start", "gputui-backup.timer")
    assert "gputui-backup.service" in machine.run("systemctl", "list-timers", "--no-pager")
    machine.run("systemctl", "stop", "gputui-backup.timer")


LISTENER = """
import os, socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/engine.sock")
listener.listen()
print(os.getpid(), flush=True)
time.sleep(60)
"""
ASK = """
import socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.settimeout(30)
asked.connect("/run/gputui/api.sock")
asked.sendall(b"GET /v1/about HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
answer = b"".join(iter(lambda: asked.recv(65536), b""))
print(answer.partition(b"\\r\\n\\r\\n")[2].decode())
"""


def ask(machine: Machine, user: str) -> dict[str, Any]:
    """Return what the service tells a user about itself and her."""
    told: dict[str, Any] = json.loads(machine.python(user, ASK))
    return told


def audit(machine: Machine) -> list[dict[str, Any]]:
    """Return the entries of the audit log, as root reads them at the socket."""
    told = machine.python("root", ASK.replace("/v1/about", "/v1/audit"))
    entries: list[dict[str, Any]] = json.loads(told)
    return entries


def role(machine: Machine, user: str) -> str:
    return str(ask(machine, user)["caller"]["role"])


def test_accounts_without_rights_to_the_directory_have_a_role(machine: Machine) -> None:
    """The socket is there before the service, starts it, and keeps those waiting who connect while it restarts."""
    machine.install(CONTAINERS, STATE, "--users")
    assert 'users = ["*"]' in machine.run("cat", "/etc/gputui/config.toml")
    machine.run("systemctl", "start", "gputui.socket")
    assert role(machine, "carol") == "user"
    first = ask(machine, "root")["owner"]["pid"]
    assert machine.owners(STATE, "/run/gputui", "/run/gputui/api.sock") == [
        "root:root 700",
        "root:root 755",
        "root:root 666",
    ]
    machine.run("systemctl", "restart", "--no-block", "gputui.service")
    machine.until(lambda: ask(machine, "carol")["owner"]["pid"] != first, "the next service answers")
    assert role(machine, "root") == "operator"
    backup(machine)


def test_a_service_that_runs_gets_users(machine: Machine) -> None:
    machine.install(CONTAINERS)
    with machine.serving():
        printed = machine.install(CONTAINERS, STATE, "--users")
        machine.run("sh", "-c", printed.rpartition("now: ")[2].splitlines()[0])
        assert role(machine, "carol") == "user"
        machine.run("systemctl", "disable", "--now", "gputui.socket", "gputui.service", "gputui-backup.timer")


def test_a_group_has_a_socket_of_its_own(machine: Machine) -> None:
    machine.install(CONTAINERS, STATE, "--users", "gpu")
    machine.run("systemctl", "start", "gputui.socket")
    assert role(machine, "alice") == "user"
    assert "does not admit carol: the socket is closed" in machine.python("carol", ANY, "queue", code=1)
    machine.run("systemctl", "stop", "gputui.socket", "gputui.service")
    assert "the service of this machine does not run" in machine.python("alice", ANY, "queue", code=1)


def test_a_users_host_job_is_a_process_of_his_account(machine: Machine) -> None:
    machine.install("", STATE, "--users")
    machine.run("systemctl", "start", "gputui.socket")
    words = ("submit", "--host", "--workdir", "/", "--", "sh", "-c", "id -un; pwd")
    assert machine.python("carol", ANY, *words) == "1\n"
    machine.python("carol", ANY, "wait", "1")
    assert machine.python("carol", ANY, "logs", "1") == "carol\n/\n"
    assert "job 1: only carol, who submitted it, and operators may read its output" in machine.python(
        "bob", ANY, "logs", "1", code=1
    )
    assert "refused" in {entry["verb"] for entry in audit(machine)}
    assert "\nPID" in machine.python("bob", ANY, "ps")  # below: containers are not known
    assert "its operators keep it" in machine.python("bob", ANY, "state", "verify", code=1)
    assert "the service of this machine schedules" in machine.python("bob", ANY, "serve", code=1)
    assert machine.run("find", "/home/bob", "/home/carol", "-path", "*gputui*") == ""  # no queue of their own


def test_a_hung_service_is_ended(machine: Machine) -> None:
    machine.install(CONTAINERS, STATE, "--users")
    patience = machine.root / UNITS / "gputui.service.d/patience.conf"
    patience.write_text("[Service]\nWatchdogSec=3\nRestartSec=0\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "gputui.socket", "gputui.service")
    hung = str(ask(machine, "root")["owner"]["pid"])
    machine.run("kill", "-STOP", hung)
    assert str(ask(machine, "carol")["owner"]["pid"]) != hung
    assert "watchdog" in machine.run("journalctl", "--no-pager", "--unit=gputui.service")


LOOK_AS = """
from contextlib import ExitStack
from gputui.engine.actions.permissions import file_account
from gputui.engine.actions.permissions import open_source
from gputui.runtime.docker.engine import engine_root
import pwd
for name in ("alice", "carol"):
    with ExitStack() as until:
        account = file_account(pwd.getpwnam(name).pw_uid)
        try:
            print(name, open_source(engine_root("/run/engine.sock"), "/tmp/of-members/hers/inner", until, account).path)
        except PermissionError:
            print(name, "may not")
"""


def test_the_service_opens_what_its_users_may_open(machine: Machine) -> None:
    """The service's sandbox leaves it the rights to do that with theirs, in the tree of files that the engine sees."""
    machine.install(CONTAINERS, STATE, "--users")
    machine.run("install", "-d", "-o", "alice", "-m", "755", "/tmp/of-members")
    machine.run("install", "-d", "-o", "alice", "-m", "700", "/tmp/of-members/hers", "/tmp/of-members/hers/inner")
    (machine.root / "srv/look.py").write_text(LOOK_AS)
    with machine.start(sys.executable, "-c", LISTENER) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        look = f"{sys.executable} /srv/look.py > {STATE}/seen"
        with machine.serving(within=f"PYTHONPATH={ROOT} {look}"):
            assert machine.run("cat", f"{STATE}/seen") == "alice /tmp/of-members/hers/inner\ncarol may not\n"
        engine.kill()


def of_readme() -> tuple[list[str], list[str]]:
    """Return the lines of the README about several users: those of root, and those of anybody."""
    section = (ROOT / "README.md").read_text().partition("\n## Several users\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    first, second = ([line.partition("  #")[0].strip() for line in block.splitlines()] for block in found)
    return first, second


def test_the_lines_of_the_readme_work_as_printed(machine: Machine) -> None:
    """Carol is in no group, and may open no file of the queue."""
    root, anybody = of_readme()
    assert len(root) + len(anybody) < 10
    (machine.root / "etc/gputui").mkdir(exist_ok=True)
    (machine.root / "etc/gputui/config.toml").write_text(CONTAINERS)
    machine.simulate_gpus()
    for line in root:
        words = shlex.split(line.removeprefix("sudo "))
        if words[0] == "gputui":
            machine.run(sys.executable, "-m", *words, "--yes")
        else:
            machine.run(*words)
    printed = {}
    for line in anybody:
        program, *words = shlex.split(line)
        if program == "gputui":
            printed[words[0]] = machine.python("carol", ANY, *words)
        else:
            printed[program] = machine.run("runuser", "-u", "carol", "--", program, *words)
    assert "carol is a user" in printed["doctor"]
    assert printed["submit"] == "1\n"
    assert "carol" in printed["queue"]
    assert json.loads(printed["curl"].splitlines()[-1])["caller"]["user"] == "carol"
    [job] = json.loads(machine.python("carol", ANY, "queue", "--all", "--json"))
    assert (job["id"], job["submitted_by"], job["state"]) == (1, "carol", "CANCELLED")
    assert machine.run("find", "/home/carol", "-name", "*gputui*") == ""
    machine.run("systemctl", "disable", "--now", "gputui.socket", "gputui.service")
    machine.run(sys.executable, "-m", "gputui", "install", "--remove", "--yes")
    assert machine.run("find", f"/{UNITS}", "-name", "gputui.socket*") == ""
