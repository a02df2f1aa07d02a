"""Completion scripts, and the completions that shells get from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.cli.main import cli
from gputui.domain.settings import Window
from gputui.domain.snapshot import Controls
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import NOW, job, running


def completed(words: str, place: int) -> list[str]:
    """Return bash's completions of the word at `place`."""
    from click.shell_completion import BashComplete

    before, incomplete = words.split()[1:place], [*words.split(), ""][place]
    found = BashComplete(cli, {}, "gputui", "_GPUTUI_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in found]


@cases("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(run: Run, shell: str) -> None:
    result = run("completions", shell)
    assert (result.code, result.err) == (0, "")
    assert f"_GPUTUI_COMPLETE={shell}_complete" in result.out
    if shutil.which(shell):
        subprocess.run([shutil.which(shell) or shell, "-n"], input=result.out, text=True, check=True)


def test_servers_are_completed_and_nothing_of_this_machine_after_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    assert run("submit", "--hold", "--host", "--", "true").out == "1\n"
    assert completed("gputui show ", 2) == ["1"]
    assert completed("gputui --on gpu1 show ", 4) == []
    assert completed("gputui --on l", 2) == ["local"]
    config = tmp_path / "servers.toml"
    config.write_text('[[servers]]\nname = "lab1"\naddress = "ssh://lab1"\n')
    monkeypatch.setenv("GPUTUI_CONFIG", str(config))
    assert completed("gputui --on l", 2) == ["lab1", "local"]
    assert completed("gputui --on ", 2) == ["lab1", "local", "all"]
    assert completed("gputui --on lab1 qu", 3) == ["queue"]


def test_commands_and_options_are_completed() -> None:
    assert completed("gputui cron re", 2) == ["remove", "resume"]
    assert "list" in completed("gputui cron ls ", 3), "an unknown command is no error while a line is typed"
    assert completed("gputui qu", 1) == ["queue"]
    assert completed("gputui submit --gpu", 2) == ["--gpus", "--gpu-memory", "--gpu-model", "--gpu-memory-step"]
    assert completed("gputui completions z", 2) == ["zsh"]


def test_ids_of_live_jobs_are_completed(store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, job(), running(), running(name="\x1b[2J"))
    assert completed("gputui cancel", 2) == ["1", "2", "3"]
    assert completed("gputui show 2", 2) == ["2"]


def test_gpus_and_their_models_are_completed(store: KeptStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUTUI_PROBE", "sim:2:H100")
    for command in ("drain", "resume", "reserve add --gpu"):
        assert completed(f"gputui {command}", len(command.split()) + 1) == ["0", "1"]
    [first, second] = completed("gputui drain G", 2)
    assert first.startswith("GPU-")
    assert completed(f"gputui drain {second[:20]}", 2) == [second]
    assert completed("gputui submit --gpu-model h", 3) == ["h100", "hbm3"]


def test_states_tenants_and_reservations_are_completed(store: KeptStore) -> None:
    put(store, job(), job(2, tenant="zoe"))
    window = Window("r1", NOW, NOW + timedelta(hours=1), count=1)
    with store.transaction() as transaction:
        transaction.set_controls(Controls(reservations=(window,)))
    assert completed("gputui queue --state c", 3) == ["CONFIGURING", "COMPLETING", "COMPLETED", "CANCELLED"]
    assert completed("gputui queue --state pd,r", 3) == ["PD,RUNNING"]
    assert completed("gputui queue --tenant z", 3) == ["zoe"]
    assert completed("gputui submit --tenant z", 3) == ["zoe"]
    assert completed("gputui reserve remove", 3) == ["r1"]


def test_completing_a_word_creates_no_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GPUTUI_PROBE", "sim:1")
    assert completed("gputui cancel", 2) == []
    assert completed("gputui drain", 2) == ["0"]
    assert list(tmp_path.iterdir()) == []


def test_fish_gets_descriptions_with_their_commas(run: Run) -> None:
    script = run("completions", "fish").out
    assert 'string split --max 1 "," $completion' in script
    assert 'string split "," $completion' not in script


def test_a_store_that_cannot_be_read_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_STATE", "/proc/nowhere")
    assert completed("gputui cancel", 2) == completed("gputui drain", 2) == completed("gputui reserve remove", 3) == []
    monkeypatch.setenv("GPUTUI_CONFIG", "/missing")
    assert completed("gputui cancel", 2) == []


def test_the_installed_program_answers_a_shell(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "_GPUTUI_COMPLETE": "bash_complete",
        "COMP_WORDS": "gputui dr",
        "COMP_CWORD": "1",
        "GPUTUI_STATE": str(tmp_path / "state"),
    }
    done = subprocess.run([sys.executable, "-m", "gputui"], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("plain,drain\n", "")
