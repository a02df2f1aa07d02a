"""CONTRIBUTING's lists are complete: each is followed in a copy of the package, and what it adds works there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gputui

ROOT = Path(gputui.__path__[0]).parent


def files_of(title: str) -> list[str]:
    """Return the files of the package in CONTRIBUTING's list of that title."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"**{title}**")
    return re.findall(r"`(gputui/\S+\.py)`: ", rest.partition("\n\n")[0])


class Copy:
    """A copy of the package, in which nothing but the files of one list may be changed."""

    def __init__(self, directory: Path, title: str) -> None:
        self.directory = directory
        self.untouched = files_of(title)
        shutil.copytree(ROOT / "gputui", directory / "gputui", ignore=shutil.ignore_patterns("__pycache__"))
        self.environ = {"HOME": str(directory), "LANG": "C.UTF-8", "PYTHONPATH": f"{directory}:{ROOT}"}
        self.environ |= {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    def edit(self, place: str, *changes: tuple[str, str]) -> None:
        """Replace texts of the next file of the list; each has to occur in it."""
        assert place == self.untouched.pop(0)
        source = self.directory / place
        text = source.read_text()
        for old, new in changes:
            assert old in text, f"{place}: {old}"
            text = text.replace(old, new, 1)
        source.write_text(text)

    def write(self, place: str, name: str, text: str) -> None:
        """Write the next file of the list, in a new folder that gets this name."""
        assert place == self.untouched.pop(0)
        source = self.directory / place.replace("NAME", name)
        source.parent.mkdir()
        (source.parent / "__init__.py").touch()
        source.write_text(text)

    def run(self, *words: str) -> list[str]:
        """Run Python with these arguments once all files of the list are edited; return its pages."""
        assert not self.untouched
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environ, capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr
        return (done.stdout + done.stderr).split("\f")


COLUMN = 'QueueColumn("double", "DOUBLE", 6, "twice its priority", lambda job, _: 2 * job.priority, right=True)'
LOOK_AT_COLUMN = """
import asyncio
from gputui.config.settings_file import check_range
from gputui.tui.widgets.queue_rows import ChosenColumns
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


def test_a_column_is_one_row(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "A column of the queue")
    copy.edit("gputui/domain/queue_columns.py", ("\n_ALL = (\n", f"\n_ALL = (\n    {COLUMN},\n"))
    chooser, table = copy.run("-c", LOOK_AT_COLUMN)
    assert re.search(r"DOUBLE +twice its priority", chooser)
    assert re.search(r"ID +DOUBL", table), table
    assert re.search(r" 101 +100 ", table)


ACTION = '''class Sink(_JobAction, frozen=True, tag="sink"):
    """Put waiting jobs at the end of the queue."""

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        return _ranked(job, job.prioritised(0), by)


class EditJobs('''
ROW = """JOB_VERBS: tuple[Verb[Job], ...] = (
    Verb(
        name="sink",
        keys=("N",),
        label="sink",
        help="Put the waiting job at the end of the queue.",
        group=JOBS,
        needs="a waiting job",
        may=_is_waiting,
        wish=Sink,
        done="{subject} is at the end of the queue",
        done_many="{subject} are at the end of the queue",
        proposal="{title}: to the end of the queue",
        proposal_many="to the end of the queue",
        shell="sink ID...",
        shell_help="Put waiting jobs at the end of the queue.",
        shell_done="sunk {}",
    ),
"""
LOOK_AT_VERB = """
import asyncio
from gputui.cli.main import run
from tests.tui.foresight import opened, watched

async def look():
    console = watched()
    async with console.app.run_test(size=(120, 60)) as pilot:
        def page():
            print(console.screen_text, end="\\f", flush=True)
        await console.begin(pilot)
        await console.press(pilot, "question_mark")
        await console.press(pilot, *"abyss")
        page()
        await console.press(pilot, "escape", "escape", "colon")
        await console.press(pilot, *"abyss")
        page()
        await console.press(pilot, "escape", "escape")
        console.select(107)
        await opened(console, pilot, "N")
        page()
        await console.press(pilot, "enter")
        assert console.store.get(107).priority == 0
        print(*console.told, end="\\f", flush=True)
        await console.press(pilot, "u")
        assert console.store.get(107).priority > 0
        print(*console.told, end="\\f", flush=True)

def shell(*words):
    assert run(["--state", "state", "--probe", "sim:1", *words]) == 0, words
    print(end="\\f", flush=True)

asyncio.run(look())
shell("--help")
shell("submit", "--host", "sleep", "9")
shell("sink", "1", "--dry-run")
assert run(["--state", "state", "sink", "1"]) == 0
shell("queue", "--json")
"""


@pytest.mark.long  # the other lists are shorter, and are followed in the same way
def test_a_verb_is_its_action_and_one_row(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "A verb")
    copy.edit(
        "gputui/domain/action.py", ("class EditJobs(", ACTION), ("| Top | EditJobs\n", "| Top | EditJobs | Sink\n")
    )
    copy.edit(
        "gputui/domain/verbs.py",
        ("    Signal,\n", "    Signal,\n    Sink,\n"),
        ("JOB_VERBS: tuple[Verb[Job], ...] = (\n", ROW),
        ("MEANINGS = (\n", 'MEANINGS = (\n    Meaning("abyss", "sink", "sink"),\n'),
    )
    copy.edit(
        "gputui/cli/main.py",
        ('    "Jobs": {\n', '    "Jobs": {\n        "sink": "put jobs at the end",\n'),
        ('"hold release', '"sink hold release'),
    )
    keys, palette, panel, done, undone, commands, submitted, foreseen, queue, said = copy.run("-c", LOOK_AT_VERB)
    assert re.search(r" N +sink +Put the waiting job at the end", keys)
    assert re.search(r"abyss.*\n.*\n.* Jobs: sink +N ", palette)
    assert "whisper-finetune: to the end of the queue" in panel
    assert re.search(r"107 whisper-finetune .* later", panel)
    assert "job 107 is at the end of the queue" in done
    assert "undone: job 107 is as before the sink" in undone
    assert "sink         put jobs at the end" in commands
    assert submitted.strip() == "1"
    assert "would sink: job 1" in foreseen
    assert '"priority": 0,' in queue
    assert "sunk job 1" in said


RUNTIME = """
from msgspec.structs import replace
from gputui.runtime.process.runtime import ProcessRuntime

class BareRuntime(ProcessRuntime):  # runs commands of images without their files
    name = "bare"

    def create(self, launch):
        return super().create(replace(launch, spec=replace(launch.spec, image=None)))
"""
PLACES = """    if options.runtime == "bare":
        from gputui.runtime.bare.runtime import BareRuntime

        runtimes.append(BareRuntime(store_id, options.state, settings.runtime, bootstrap.clock()))
    return tuple(runtimes)"""
EXECS = """    if options.runtime == "bare":
        found["bare"] = ProcessExec(store_id, options.state)
    return found"""
RUN_A_JOB = """
import subprocess, sys, time
from pathlib import Path
from gputui.cli.main import run

Path("alone.toml").write_text("[scheduler]\\nhost_jobs = false\\n")
OPTIONS = ["--state", "state", "--config", "alone.toml", "--probe", "sim:2", "--runtime", "bare"]

def shell(*words):
    assert run([*OPTIONS, *words]) == 0, words
    print(end="\\f", flush=True)

serve = subprocess.Popen([sys.executable, "-m", "gputui", *OPTIONS, "serve"], stderr=subprocess.DEVNULL)
try:
    gate = Path("go").absolute()  # jobs begin in the home of their user
    script = f"echo it runs; while [ ! -e {gate} ]; do sleep 0.02; done"
    shell("submit", "--gpus", "1", "any/image", "sh", "-c", script)
    deadline = time.monotonic() + 30
    while run([*OPTIONS, "exec", "1", "sh", "-c", "echo inside: $CUDA_VISIBLE_DEVICES"]) != 0:  # it does not run yet
        assert time.monotonic() < deadline
        time.sleep(0.05)
    print(end="\\f", flush=True)
    gate.touch()
    shell("wait", "1")
    shell("logs", "1")
    shell("doctor")
finally:
    serve.terminate()
    serve.wait()
"""


def test_a_runtime_is_its_folder_and_its_places(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "A runtime")
    copy.write("gputui/runtime/NAME/runtime.py", "bare", RUNTIME)
    copy.edit("gputui/domain/job_spec.py", ('"process": True', '"process": True, "bare": False'))
    copy.edit("gputui/bootstrap/adapters.py", ("    return tuple(runtimes)", PLACES), ("    return found", EXECS))
    submitted, entered, ended, lines, checks, _ = copy.run("-c", RUN_A_JOB)
    assert submitted.strip() == "1"
    assert entered.startswith("inside: GPU-")
    assert "Job 1 image" in ended
    assert " completed in " in ended
    assert lines.strip() == "it runs"
    assert re.search(r"ok +bare ", checks)
