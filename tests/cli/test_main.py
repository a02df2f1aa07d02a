"""Common behaviour of all commands: help, errors as one sentence, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from gputui import __version__, bootstrap
from gputui.cli.main import COMMANDS, GROUPS, LazyGroup, cli
from gputui.config import Options
from gputui.domain.errors import GputuiError, InputError, NotFoundError, StoreFullError
from tests.cases import cases
from tests.cli.conftest import Run


@cases("command", COMMANDS)
def test_every_command_has_its_name_and_help(run: Run, command: str) -> None:
    found = LazyGroup().get_command(click.Context(LazyGroup()), command)
    assert found is not None
    assert found.name == command
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: gputui {command}")
    assert len(result.out.splitlines()[2]) > 10


def test_help_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert run("-h").out == out
    assert run("--version").out == f"gputui {__version__}\n"
    assert cli.list_commands(click.Context(cli)) == list(COMMANDS)


def test_help_groups_commands_and_has_each_on_one_line_of_80_cells(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sections = run("--help").out.split("\n\n")[-len(GROUPS) :]
    shown = [(heading, [line.split()[0] for line in lines]) for heading, *lines in map(str.splitlines, sections)]
    assert shown == [(f"{heading}:", list(commands)) for heading, commands in GROUPS.items()]
    assert [heading for heading, _ in shown] == ["Jobs:", "GPUs:", "Operate:", "Cluster:", "Tools:"]


def test_help_needs_no_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_CONFIG", "/does/not/exist")
    assert run("submit", "--help").code == 0
    result = run("queue")
    assert (result.code, result.out) == (2, "")


@cases(
    "arguments",
    [["quue"], ["--nope"], ["queue", "extra"], ["queue", "--state"], ["completions", "tcsh"], ["\x1b[2J"], [""]],
)
def test_bad_usage_exits_with_2_and_prints_one_plain_line(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("gputui: error: ")
    assert result.err.count("\n") == 1
    assert "\x1b" not in result.err


@cases(
    ("words", "told"),
    [
        (("serve", "--nonsense"), "no such option '--nonsense' (gputui serve --help shows more)"),
        (("serve", "--stand"), "no such option '--stand' (gputui serve --help shows more)"),
        (("serve", "--metric"), "no such option '--metric' (did you mean --metrics?)"),
        (("queue", "--stat"), "no such option '--stat' (did you mean --state or --tenant?)"),
        (("remot",), "no such command 'remot' (gputui --help lists the commands)"),
    ],
)
def test_what_is_hidden_is_not_suggested(run: Run, words: tuple[str, ...], told: str) -> None:
    assert told in run(*words).err


@cases("group", ["tenant", "cron", "state"])
def test_a_group_without_a_command_prints_its_help(run: Run, group: str) -> None:
    result = run(group)
    assert (result.code, result.out, result.err) == (2, "", run(group, "--help").out)


@cases(
    ("word", "meant"),
    [
        ("quue", "queue"), ("ls", "queue"), ("list", "queue"), ("status", "queue"),
        ("stop", "cancel or suspend or pause"), ("kill", "cancel"), ("KILL", "cancel"), ("rerun", "requeue"),
        ("thaw", "unsuspend"), ("sbatch", "submit"), ("nvidia-smi", "gpus"),
    ],
)  # fmt: skip
def test_a_mistyped_command_or_one_of_other_programs_gets_a_hint(run: Run, word: str, meant: str) -> None:
    assert f"(did you mean {meant}?)" in run(word).err


@cases(
    ("error", "code", "sentence"),
    [
        (GputuiError("it did not work", hint="try again"), 1, "it did not work (try again)"),
        (InputError("is wrong", where="--x"), 2, "--x: is wrong"),
        (NotFoundError("there is no job 7"), 3, "there is no job 7"),
        (StoreFullError("no space left", where="/state"), 1, "/state: no space left"),
        (PermissionError(13, "Permission denied", "/state"), 1, "/state: Permission denied"),
        (GputuiError("\x1b[2Jevil\nlines"), 1, "evil lines"),
        (MemoryError(), 1, "the system gives this process no more memory or threads (raise its limits: ulimit -v"),
        (RuntimeError("can't start new thread"), 1, "the system gives this process no more memory or threads"),
        (KeyboardInterrupt(), 130, None),
        (BrokenPipeError(), 0, None),
        (
            ZeroDivisionError("division by zero"),
            1,
            "this should not have happened: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_errors_become_a_sentence_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str | None
) -> None:
    def fail(options: object, waiting: object = None) -> None:
        raise error

    monkeypatch.setattr(bootstrap, "open_store", fail)
    monkeypatch.setattr("gputui.cli.terminal.discard_stdout", lambda: None)
    result = run("queue")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"gputui: error: {sentence}") if sentence else not result.err.strip()
    assert "Traceback" not in result.err


def test_debug_mode_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_DEBUG", "1")
    monkeypatch.setattr(bootstrap, "open_store", lambda options, waiting=None: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("queue")


def test_without_a_command_the_console_opens(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[Options] = []

    def open_console(options: Options, *, may_lead: bool, **_: object) -> int:
        assert may_lead
        opened.append(options)
        return 5

    monkeypatch.setenv("TEXTUAL_DRIVER", "none")  # no terminal is asked for
    monkeypatch.setitem(sys.modules, "gputui.console.console", SimpleNamespace(run=open_console))
    monkeypatch.delattr("gputui.console.console", raising=False)  # the real one, where another test imported it
    assert run("--state", str(tmp_path), "--probe", "sim:4", "--runtime", "process").code == 5
    [options] = opened
    assert (options.state, str(options.probe), options.runtime) == (tmp_path, "sim:4", "process")


def test_serve_passes_on_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "gputui.console.serving", SimpleNamespace(serve=lambda options, wait, **_: int(wait))
    )
    assert run("serve", "--wait", "7s").code == 7
    assert run("serve").code == 0
    assert run("serve", "--wait", "long").code == 2
    assert "add --metrics" in run("serve", "--hpc-job-mapping-dir", "x").err


@cases("option", [["--probe", "sim:x"], ["--probe", "sim:2:VOODOO"], ["--runtime", "podman"], ["--config", "/missing"]])
def test_bad_shared_options_are_refused_by_name(run: Run, option: list[str]) -> None:
    result = run(*option, "submit", "busybox")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gputui: error: {option[0] if option[0] != '--config' else option[1]}")


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    program = "from gputui.__main__ import main; import sys; sys.argv = ['gputui', 'completions', 'bash']; main()"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_commands_iterate_over_a_large_queue_only_once() -> None:
    """Walks while the command runs or at exit: 100,000 elements would take seconds."""
    report = "atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 1000))"
    program = f"import atexit, gc, sys; {report}; sys.argv = ['gputui', '--version']"
    command = [sys.executable, "-c", f"{program}; from gputui.__main__ import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["200000 True"]


def test_a_terminal_without_unicode_gets_an_ascii_table(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "GPUTUI_STATE": str(tmp_path / "state")}
    for arguments in (["submit", "--name", "训练", "busybox"], ["queue"]):
        command = [sys.executable, "-m", "gputui", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[:4] == ["1", "PD", "50", "??"]


@pytest.mark.needs("root", "readers")
def test_a_user_without_account_and_home_names_a_queue() -> None:
    uid, environ = 3_999_999_999, {"PATH": os.defpath, "GPUTUI_PROBE": "sim:1", "GPUTUI_RUNTIME": "process"}

    def gputui(*words: str, **more: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "gputui", *words]
        who: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
        done = subprocess.run(command, **who, env=environ | more, cwd="/", capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    for words in (["queue"], ["submit", "--host", "--", "true"]):
        code, out, err = gputui(*words)
        assert (code, out) == (2, "")
        assert "no home directory that could have a queue (name one: --state DIR, or GPUTUI_STATE=DIR)" in err
        assert "no home directory" not in gputui(*words, GPUTUI_SOCKET="/run/another.sock")[2]  # it is the service's
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, uid, uid)
        assert gputui("submit", "--host", "--", "true", GPUTUI_STATE=f"{place}/state") == (0, "1\n", "")
        assert str(uid) in gputui("queue", GPUTUI_STATE=f"{place}/state")[1]
