"""docs/cli.md agrees with the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gputui.cli.main import COMMANDS
from gputui.domain.settings import Settings
from gputui.request import job_file
from gputui.request.job_options import KEYS
from gputui.request.submitter import Submitter
from scripts import _manual as document
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import NOW, job, load_settings

PATH = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_command_reference_is_complete_and_up_to_date() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert document.updated(text) == text, "run python scripts/cli.py"
    text = PATH.read_text(encoding="utf-8")
    assert all(f"### `gputui {name}`" in text for name in COMMANDS)
    assert all(key.option in text for key in KEYS)


def test_the_documented_defaults_are_the_defaults_when_written_into_a_file(tmp_path: Path) -> None:
    lines = []
    for row in list(document.settings())[2:]:
        key, default = (cell.strip().strip("`") for cell in row.strip("|").split("|"))
        if default != "none":
            lines.append(f"{key} = {default}")
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines))
    assert load_settings(file, {}) == Settings()
    assert len(lines) > 15


def test_the_documented_job_file_can_be_submitted(tmp_path: Path) -> None:
    found = re.findall(r"```toml\n(.*?)```", PATH.read_text(encoding="utf-8"), re.DOTALL)
    [example] = [block for block in found if "[[job]]" in block]
    file = tmp_path / "jobs.toml"
    file.write_text(example)
    first, second = job_file.read_jobs(str(file), Submitter("alice", NOW))
    assert (first.spec.gpus.maximum, second.spec.is_host) == (4, True)


def documented(heading: str) -> set[str]:
    """Return the keys in the first column of the table of a section on JSON."""
    section = PATH.read_text(encoding="utf-8").partition(f"{heading}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def test_the_keys_of_an_explanation_are_documented(run: Run, store: KeptStore) -> None:
    put(store, job())
    assert documented("### An explanation: `explain --json` (object)") == set(
        json.loads(run("explain", "1", "--json").out)
    )


def test_the_keys_of_a_replay_are_documented(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("submit_time_s,duration_s,gpus,vc\n0,60,1,a\n10,120,2,b\n")
    arguments = ("--gpus", "2", "--policy", "fifo", "--compare", "half_life=1d", "--json")
    told = json.loads(run("replay", str(trace), *arguments).out)
    named = documented("### A replay: `replay --json` (object)")
    assert named == {*told, "history", "notes"}
    text = PATH.read_text(encoding="utf-8")
    assert [key for key in told["policies"]["fifo"] if f"`{key}`" not in text] == []
