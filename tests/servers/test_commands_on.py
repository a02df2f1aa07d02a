"""`gputui --on SERVER COMMAND` over a real sshd: streams, exit codes, and several servers at once."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.bootstrap.servers import command_on
from gputui.domain.frames import CommandMarks
from gputui.domain.settings import ServerSettings
from tests.cases import cases
from tests.cluster.commands import run
from tests.e2e.terminal import Terminal
from tests.login_shells import talkative
from tests.results import Result
from tests.servers.conftest import PATIENCE, Site
from tests.servers.connections import Connections

__all__ = ["run"]

GPUTUI = [sys.executable, "-P", "-m", "gputui"]
pytestmark = [pytest.mark.ssh, pytest.mark.xdist_group("servers")]


Run = Callable[..., Result]


def table(name: str, address: str, command: str = "gputui") -> str:
    """Return a server's table in the settings."""
    return f'[[servers]]\nname = "{name}"\naddress = "{address}"\ncommand = "{command}"\n'


@pytest.fixture
def config(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the settings that name both servers."""
    path = tmp_path / "config.toml"
    path.write_text("".join(table(each.name, each.address, each.command) for each in site.settings))
    monkeypatch.setenv("GPUTUI_CONFIG", str(path))
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    return path


@pytest.fixture
def gputui(config: Path, run: Run) -> Run:
    """Run a command at a machine whose settings name both servers."""
    assert config.exists()
    return run


def test_words_streams_and_exit_codes_pass(site: Site, gputui: Run) -> None:
    script = 'echo "$0  $1"; echo ready; exec sleep 600'
    submitted = gputui("--on", "gpu1", "submit", "--host", "--", "sh", "-c", script, "it's", "$HOME")
    job = submitted.out.strip()
    assert (submitted.code, job.isdigit()) == (0, True)
    site.until(lambda s: any(each.shown_id == f"gpu1:{job}" and each.started_at for each in s.jobs), "it runs")
    followed = gputui("--on", "gpu1", "exec", job, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (followed.code, followed.out, followed.err) == (7, "out\n", "err\n")
    assert gputui("--on", "gpu1", "logs", job).out.splitlines()[0] == "it's  $HOME"
    assert gputui("--on", "gpu1", "show", "9999").code == 3
    assert "Usage: gputui cancel" in gputui("--on", "gpu1", "cancel", "--help").out
    assert gputui("--on", "gpu1", "cancel", job).code == 0


def test_what_only_reads_runs_on_several(site: Site, gputui: Run) -> None:
    job = site.gpus[1].submit("--hold", "--name", "kept", "--", "true")
    told = gputui("--on", "all", "queue", "--json")
    assert [each["server"] for each in told.json if each["name"] == "kept"] == ["gpu2"]
    plain = gputui("--on", "gpu1", "--on", "gpu2", "gpus")
    assert [line for line in plain.out.splitlines() if line in {"gpu1", "gpu2"}] == ["gpu1", "gpu2"]
    assert plain.out.count("A100") == 4
    refused = gputui("--on", "all", "cancel", str(job))
    assert (refused.code, "gputui cancel is for one server (name one of gpu1, gpu2" in refused.err) == (2, True)
    assert "csv is for one server" in gputui("--on", "all", "report", "--format", "csv").err
    site.gpus[1].run("cancel", str(job))


def test_a_server_that_is_not_reached_leaves_the_others(config: Path, gputui: Run) -> None:
    config.write_text(config.read_text() + table("gone", "ssh://gone"))
    told = gputui("--on", "all", "gpus")
    assert (told.code, told.out.count("A100")) == (255, 4)
    assert "gputui: gone: `ssh gone` must work without a question\n" in told.err
    alone = gputui("--on", "gone", "queue")
    assert (alone.code, "`ssh gone` must work without a question" in alone.err) == (255, True)


def test_lines_of_a_login_shell_drop_no_server(site: Site, config: Path, gputui: Run) -> None:
    speaks = f"echo '[motd] {{welcome}}'; {site.settings[0].command}"
    config.write_text(config.read_text() + table("talks", "ssh://lab", speaks) + table("mute", "ssh://lab", "echo"))
    told = gputui("--on", "gpu1", "--on", "talks", "gpus", "--json")
    assert ({each["server"] for each in told.json}, told.err) == ({"gpu1", "talks"}, "")
    told = gputui("--on", "mute", "--on", "talks", "gpus", "--json")
    assert (told.code, {each["server"] for each in told.json}) == (1, {"talks"})
    assert "gputui: mute: its output is no JSON: 'gpus --json" in told.err


@pytest.fixture
def loud(site: Site, config: Path) -> Iterator[str]:
    """Yield the name of a server that is the first one, behind a login shell that prints lines."""
    with talkative("bash") as sshd:
        here = sshd.directory
        lines = f"Host loud\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {here}/user\n"
        files = [site.sshd.directory / "config", config]
        before = [path.read_text() for path in files]
        files[0].write_text(before[0] + lines + f"  UserKnownHostsFile {here}/known_hosts\n")
        files[1].write_text(before[1] + table("loud", "ssh://loud", site.settings[0].command))
        yield "loud"
        files[0].write_text(before[0])


@pytest.mark.long  # tests above and below have such a shell
def test_lines_of_a_login_shell_are_left_out_of_every_answer(site: Site, gputui: Run, loud: str, config: Path) -> None:
    job = site.gpus[0].submit("--hold", "--name", "kept", "--", "true")
    slow = f"sleep 1; {site.settings[1].command}"
    config.write_text(config.read_text() + table("slow", "ssh://lab", slow) + table("bare", "ssh://lab", "/nowhere/g"))
    told = gputui("--on", "slow", "--on", loud, "--on", "bare", "gpus", "--json")
    assert (told.code, Counter(each["server"] for each in told.json)) == (127, {"slow": 2, loud: 2})
    assert [line.split(": ")[1] for line in told.err.splitlines()] == ["bare"] * 2
    alone = gputui("--on", loud, "show", str(job), "--json")
    assert (alone.code, alone.err, alone.json["name"]) == (0, "", "kept")
    assert gputui("--on", loud, "show", "9999").err == gputui("--on", "gpu1", "show", "9999").err
    several = gputui("--on", loud, "--on", "gpu1", "gpus").out
    assert several.partition("\n\n")[0].replace(loud, "gpu1") == several.partition("\n\n")[2].rstrip()
    warned = gputui("--on", loud, "doctor").err
    assert warned.count("gputui: loud: its login shell prints lines around each command, which are left out: ") == 1
    site.gpus[0].run("cancel", str(job))


def test_a_terminal_behind_such_a_shell_shows_the_command_alone(site: Site, loud: str, config: Path) -> None:
    job = site.gpus[0].submit("--", "sh", "-c", "echo ready; exec sleep 600")
    site.until(lambda s: any(each.shown_id == f"gpu1:{job}" and each.started_at for each in s.jobs), "it runs")
    environ = os.environ | {"GPUTUI_CONFIG": str(config)}
    with Terminal([*GPUTUI, "--on", loud, "exec", "-it", str(job), "sh"], environ, 90, 30) as terminal:
        terminal.until("#")
        terminal.press("stty size; echo $((40+2))", "Enter")
        seen = terminal.until("42")
        terminal.press("exit 4", "Enter")
        terminal.until("EXIT 4")
    assert ("Welcome" in seen, "30 90" in seen) == (False, True)
    site.gpus[0].run("cancel", str(job))


def test_a_console_reads_a_server_behind_such_a_shell(site: Site, loud: str) -> None:
    there = Connections([ServerSettings(loud, "ssh://loud", site.settings[0].command)], PATIENCE)
    there.start()
    try:
        seen = there.until(lambda snapshot: snapshot.servers and not snapshot.servers[0].problem)
        assert len(seen.gpus) == 2
    finally:
        there.there.close(10)


def test_servers_that_are_not_there_are_told(config: Path, gputui: Run) -> None:
    config.write_text(config.read_text() + table("bare", "ssh://lab", "/nowhere/g"))
    told = gputui("--on", "bare", "queue")
    assert (told.code, "there is no `/nowhere/g`: name its path" in told.err) == (127, True)
    config.write_text("")
    assert "there are none in the settings (name them in [[servers]])" in gputui("--on", "all", "queue").err


@cases(
    ("words", "sentence"),
    [
        (["--on", "gpu1", "web"], "gputui web runs on this machine"),
        (["--on", "gpu1", "--state", "/x", "queue"], "[[servers]] has the command of each server"),
        (["--on", "gpu1", "queu"], "did you mean queue?"),
        (["--on", "nosuch", "queue"], "is neither an address nor the name of a server"),
    ],
)
def test_what_is_refused(gputui: Run, words: list[str], sentence: str) -> None:
    refused = gputui(*words)
    assert (refused.code, sentence in refused.err) == (2, True)


def test_the_queue_of_this_machine(gputui: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gputui("--on", "local", "queue").code == 0
    assert command_on(ServerSettings("local"), ["queue"], {}, CommandMarks(), is_tty=True)[:2] == [
        "env",
        "--unset=GPUTUI_CLUSTER",
    ]


def test_ctrl_c_ends_the_log_that_a_terminal_there_follows(site: Site, config: Path) -> None:
    job = site.gpus[0].submit("--", "sh", "-c", "echo ready; exec sleep 600")
    site.until(lambda s: any(each.shown_id == f"gpu1:{job}" and each.started_at for each in s.jobs), "it runs")
    environ = os.environ | {"GPUTUI_CONFIG": str(config)}
    with Terminal([*GPUTUI, "--on", "gpu1", "logs", "-f", str(job)], environ) as terminal:
        terminal.until("ready")
        terminal.press("C-c")
        terminal.until("EXIT 130")
    site.gpus[0].run("cancel", str(job))
