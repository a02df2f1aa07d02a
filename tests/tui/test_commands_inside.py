"""Shells in running jobs, their processes, and texts to copy."""

from __future__ import annotations

import shlex
import threading
from datetime import timedelta

from textual.pilot import Pilot

from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import Holder
from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.dialogs import copied
from gputui.tui.screens.main import Main
from gputui.tui.screens.pages import ProcessesScreen
from tests.cases import cases
from tests.factories import GIB, job
from tests.tui.console import Console, on_screen
from tests.tui.sample import busy, rich_snapshot, secret_job, with_job

ROWS = (
    ProcessRow(4001, "root", "sh -c train", 0.0, 3 * 1024**2, timedelta(minutes=9)),
    ProcessRow(4002, "alice", "python \x1b[2Jtrain.py [red]--lr[/]", 3.98, 12 * GIB, timedelta(minutes=9)),
    ProcessRow(4003, "alice", "pt_data_worker", None, None, None),
)


class FakeInside:
    """Fake that records requests and answers them."""

    def __init__(self) -> None:
        self.rows: tuple[ProcessRow, ...] = ROWS
        self.error: GputuiError | None = None
        self.asked: list[tuple[str, int]] = []
        self.answered = threading.Event()

    def shell(self, job_id: JobId) -> Shell:
        self.asked.append(("shell", job_id))
        if self.error:
            raise self.error
        return Shell(("/bin/true",), "nowhere")

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        self.asked.append(("processes", job_id))
        self.answered.set()
        if self.error:
            raise self.error
        return self.rows

    def close(self) -> None:
        pass


async def _settled(pilot: Pilot[ExitChoice], console: Console) -> None:
    """Wait until the workers have their answers."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def test_processes_are_shown_the_users_of_gpu_memory_first() -> None:
    inside = FakeInside()
    node = rich_snapshot().nodes[0]
    holders = tuple(busy(i, 101, holders=(Holder("job", "llama", "alice", 4003, None, 5 * GIB),)) for i in (0, 1))
    snapshot = rich_snapshot(nodes=(node.__class__("node1", (*holders, *node.gpus[2:]), node.probe),))
    async with on_screen(Console(snapshot, inside=inside), (100, 30)) as (console, pilot):
        console.select(101)
        await pilot.press("X")
        await pilot.pause()
        await _settled(pilot, console)
        lines = console.screen_text.splitlines()
        assert isinstance(console.app.screen, ProcessesScreen)
        assert "PROCESSES  #101 llama-7b-sft  3 processes" in lines[0]
        assert lines[2].split()[:6] == ["▌", "4003", "alice", "–", "–", "10G"]
        assert lines[3].split()[:6] == ["4002", "alice", "398%", "12G", "9m00s", "python"]
        assert "[red]--lr[/]" in lines[3]
        assert "\x1b" not in lines[3]
        await console.press(pilot, "escape")
        assert isinstance(console.app.screen, Main)


async def test_the_reason_for_missing_processes_is_shown() -> None:
    inside = FakeInside()
    inside.error = GputuiError("the engine does not answer", hint="is it up?")
    async with on_screen(Console(inside=inside), (100, 30)) as (console, pilot):
        console.select(101)
        await pilot.press("X")
        await pilot.pause()
        await _settled(pilot, console)
        assert "the engine does not answer (is it up?)" in console.screen_text


@cases("size", [(80, 24), (200, 50)])
async def test_the_processes_fit_the_screen(size: tuple[int, int]) -> None:
    async with on_screen(Console(inside=FakeInside()), size) as (console, pilot):
        console.select(101)
        await pilot.press("X")
        await pilot.pause()
        await _settled(pilot, console)
        assert "COMMAND" in console.screen_text
        assert "pt_data_worker" in console.screen_text


async def test_only_a_running_job_has_processes_and_a_shell() -> None:
    inside = FakeInside()
    async with on_screen(Console(inside=inside), (100, 30)) as (console, pilot):
        console.select(107)
        await pilot.press("X", "x")
        await _settled(pilot, console)
        assert isinstance(console.app.screen, Main)
        assert inside.asked == []


async def test_a_terminal_that_cannot_be_suspended_is_reported() -> None:
    inside = FakeInside()
    async with on_screen(Console(inside=inside), (100, 30)) as (console, pilot):
        console.select(101)
        await pilot.press("x")
        await _settled(pilot, console)
        assert inside.asked == [("shell", 101)]
        assert any("cannot be lent to a shell" in told for told in console.told)


async def test_the_reason_for_a_missing_shell_is_shown() -> None:
    inside = FakeInside()
    inside.error = GputuiError("the container has no shell: its image has no sh")
    async with on_screen(Console(inside=inside), (100, 30)) as (console, pilot):
        console.select(101)
        await pilot.press("x")
        await _settled(pilot, console)
        assert any("has no shell" in told for told in console.told)


async def test_a_read_only_console_has_processes_but_no_shell() -> None:
    inside = FakeInside()
    async with on_screen(Console(inside=inside, console=ConsoleSettings(read_only=True)), (100, 30)) as (
        console,
        pilot,
    ):
        console.select(101)
        await pilot.press("x")
        await _settled(pilot, console)
        assert inside.asked == []
        await pilot.press("X")
        await pilot.pause()
        await _settled(pilot, console)
        await pilot.press("x")
        await _settled(pilot, console)
        assert {what for what, _ in inside.asked} == {"processes"}


@cases(("wide", "is_cut"), [(80, True), (200, False)])
async def test_texts_to_copy_are_cut_only_if_they_do_not_fit(wide: int, is_cut: bool) -> None:
    async with on_screen(Console(with_job(rich_snapshot(), [secret_job()])), (wide, 30)) as (console, pilot):
        console.select(101)
        await console.press(pilot, "y")
        [line] = [line for line in console.screen_text.splitlines() if "GPU-0000" in line and "GPUs" in line]
        line = line.split("│")[1]
        assert (copied(secret_job())["GPUs"] not in line) is is_cut
        assert ("…" in line) is is_cut


def test_copied_texts_are_whole_and_harmless() -> None:
    texts = copied(secret_job())
    assert texts["command"] == "torchrun --nproc-per-node=2 train.py"
    assert texts["image"] == "nvcr.io/nvidia/pytorch:24.10-py3"
    assert "hunter2" not in str(texts)
    evil = copied(job(7, name="a\x1b]52;c;x\x07b", command=("echo", "two words\n; rm -rf")))
    assert evil["name"].isprintable()
    assert evil["command"].isprintable()
    assert shlex.split(evil["command"])[0] == "echo"
    assert "g" not in evil
