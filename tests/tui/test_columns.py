"""A column of the queue is one row of one table: CONTRIBUTING's list is followed in a copy of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import gputui

ROOT = Path(gputui.__path__[0]).parent
ROW = 'QueueColumn("double", "DOUBLE", 6, "twice its priority", lambda job, _: 2 * job.priority, right=True)'
PROGRAM = """
import asyncio
from gputui.config.settings_file import check_range
from gputui.tui.queue.columns import ChosenColumns
from gputui.tui.widgets.job_table import JobTable
from tests.tui.console import Console

async def look():
    console = Console()
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "vertical_line")
        print(console.screen_text, end="\\f")
        await console.press(pilot, "escape")
        table = console.app.screen.query_one(JobTable)
        table.live.chosen = ChosenColumns.of({}, ["id", "double"])
        table.lay_again()
        await console.press(pilot, "S", "S")
        print(console.screen_text)

check_range("columns", ["id", "double"], "console.columns")
asyncio.run(look())
"""


def steps(title: str) -> str:
    """Return the list of CONTRIBUTING under that title."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"**{title}**")
    return rest.partition("\n\n")[0]


def test_the_list_for_a_column_is_complete(tmp_path: Path) -> None:
    (place,) = re.findall(r"`(gputui/\S+\.py)`", steps("A column of the queue"))
    shutil.copytree(ROOT / "gputui", tmp_path / "gputui", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / place
    source.write_text(source.read_text().replace("\n_ALL = (\n", f"\n_ALL = (\n    {ROW},\n", 1))
    environ = {"PATH": "", "HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    chooser, table = done.stdout.split("\f")
    assert re.search(r"DOUBLE +twice its priority", chooser)
    assert re.search(r"ID +DOUBL", table), table
    assert re.search(r" 101 +100 ", table)
