"""The process view: rows, order, filter, tree, and permitted actions."""

from __future__ import annotations

from time import perf_counter

import pytest
from textual.pilot import Pilot

from gputui.domain.errors import GputuiError
from gputui.domain.gpu import ALL_SHARES, GpuProcess, GpuState
from gputui.domain.gpu_processes import JOB, GpuProcessRow
from gputui.tui.actions import ExitChoice
from gputui.tui.present.process import ProcessOrder, process_page
from gputui.tui.screens.dialogs import Confirm
from gputui.tui.screens.main import Main
from gputui.tui.screens.menu import Menu
from gputui.tui.screens.process_view import ContainerScreen, GpuProcessesScreen, GpuProcessTable, ProcessPage
from tests.factories import sample, snapshot, view
from tests.foreign import JUPYTER, FakeContainers, FakeHost
from tests.machine_load import stretched
from tests.tui.console import Console, until
from tests.tui.occupied import FOREIGN, INSIDE, OURS, occupied, occupied_console


async def opened(pilot: Pilot[ExitChoice], console: Console) -> GpuProcessesScreen:
    """Open the process view, and wait for its rows."""
    await console.begin(pilot)
    await pilot.press("U")
    await until(pilot, lambda: shows(console, "eval.py"))
    screen = console.app.screen
    assert isinstance(screen, GpuProcessesScreen)
    return screen


def shows(console: Console, text: str) -> bool:
    return text in console.screen_text


def pids(screen: GpuProcessesScreen) -> list[str]:
    return [key.split()[0] for key in screen.query_one(GpuProcessTable).keys]


def at(screen: GpuProcessesScreen, pid: int) -> None:
    """Move the cursor to a process."""
    screen.query_one(GpuProcessTable).move_to(pids(screen).index(str(pid)))


async def test_rows_are_sorted_filtered_and_shown_as_a_tree() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        assert shows(it, "3 processes, 2 foreign  by GPU")
        assert shows(it, "jupyter-bob (lab:2)")
        assert shows(it, "150%")
        assert pids(screen) == ["100", "200", "300"]
        await pilot.press("t")
        await until(pilot, lambda: "299" in pids(screen))
        assert pids(screen) == ["100", "200", "299", "300"]
        await pilot.press("t", "slash", *"kind:foreign", "enter")
        await until(pilot, lambda: pids(screen) == ["200", "300"])
        await pilot.press("slash", *" age>x")
        assert shows(it, "age>x cannot be read: as in age>2h")
        await pilot.press("escape")
        assert pids(screen) == ["100", "200", "300"]
        await pilot.press("q")
        assert isinstance(it.app.screen, Main)


async def test_a_signal_names_its_target_asks_and_reports_the_result() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        at(screen, FOREIGN)
        await pilot.press("K")
        assert isinstance(it.app.screen, Confirm)
        for words in ("Send KILL to pid 300?", "pid 300 of bob on GPU 3,4", "python eval.py", "no chance to save"):
            assert shows(it, words)
        await pilot.press("n")
        assert it.host is not None
        assert it.host.sent == []
        await pilot.press("T", "y")
        await until(pilot, lambda: any("ended after 0.2 s" in note.text for note in it.app.notifier.log))
        assert it.host.sent == [(FOREIGN, 15)]
        assert it.audited() == [("signal", "pid 300")] * 2


async def test_the_right_button_lists_the_actions_on_a_row() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        table = screen.query_one(GpuProcessTable)
        row = pids(screen).index(str(FOREIGN))
        await pilot.click(table, offset=(20, table.head + row), button=3)
        await until(pilot, lambda: isinstance(it.app.screen, Menu))
        assert table.row is not None
        assert table.row.pid == FOREIGN
        menu = it.app.screen
        assert isinstance(menu, Menu)
        assert [text.split("  ")[0] for text in menu.texts][:5] == [
            "open",
            "environment",
            "send TERM",
            "send INT",
            "send KILL",
        ]
        await pilot.press(*"jjj", "enter")
        await until(pilot, lambda: shows(it, "Send INT to pid 300?"))


async def test_a_refusal_is_reported() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        assert it.host is not None
        it.host.error = GputuiError("pid 300 belongs to bob", hint="ask bob or root")
        at(screen, FOREIGN)
        await pilot.press("T", "y")
        await until(pilot, lambda: any("ask bob or root" in note.text for note in it.app.notifier.log))


async def test_cancel_is_offered_for_a_process_of_a_job() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        at(screen, OURS)
        assert not screen.check_action("stop_container", ())
        await pilot.press("K")
        assert shows(it, "belongs to job #101")
        await pilot.press("y")
        await until(pilot, lambda: it.audited() == [("cancel", "job 101")])
        assert it.host is not None
        assert it.host.sent == []
        await pilot.press("enter")
        assert type(it.app.screen).__name__ == "Detail"


async def test_a_container_has_a_page_with_its_log_and_is_stopped() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        at(screen, INSIDE)
        await pilot.press("enter")
        await until(pilot, lambda: shows(it, "kernel busy") and shows(it, "/data/bob → /work (read-only)"))
        for words in ("running for 3h", "lab:2", "8888/tcp on 127.0.0.1:18888", "jupyter lab --no-browser"):
            assert shows(it, words)
        assert isinstance(it.app.screen, ContainerScreen)
        await pilot.press("X", "y")
        await until(pilot, lambda: any("killed" in note.text for note in it.app.notifier.log))
        assert it.containers is not None
        assert it.containers.stopped == [(JUPYTER.id, 7)]


async def test_the_environment_or_the_reason_for_its_absence_is_shown() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        at(screen, FOREIGN)
        await pilot.press("e")
        await until(pilot, lambda: shows(it, "WANDB_MODE=offline"))
        assert isinstance(it.app.screen, ProcessPage)
        there = ProcessPage(GpuProcessRow(7, JOB, job_id=5, machine="gpu1"), it.app.services.foreign)
        it.app.push_screen(there)
        await until(pilot, lambda: shows(it, "processes of gpu1 cannot be read from here"))
    refused = process_page(GpuProcessRow(7, "foreign"), None, "the environment of pid 7 belongs to bob", 80)
    assert "belongs to bob" in "".join(text for text, _ in refused[-1])


async def test_shares_of_all_gpus_are_read_while_the_view_is_open() -> None:
    wanted: list[str | None] = []
    it = Console(occupied(), host=FakeHost(), containers=FakeContainers(), want_pcie=wanted.append)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.begin(pilot)
        await pilot.press("U")
        await until(pilot, lambda: shows(it, "3 processes"))
        assert set(wanted) == {ALL_SHARES}
        await pilot.press("escape")
        await until(pilot, lambda: wanted[-1] is None)


async def test_a_read_only_console_only_shows_processes() -> None:
    it = occupied_console(read_only=True)
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, it)
        at(screen, FOREIGN)
        await pilot.press("K", "X", "T")
        assert it.app.screen is screen
        assert it.audited() == []


async def test_from_the_page_of_a_gpu_its_own_processes_are_shown() -> None:
    it = occupied_console()
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.begin(pilot)
        main = it.app.screen
        assert isinstance(main, Main)
        main.grid.focus()
        main.grid.move_to(4)
        await pilot.press("i")
        await until(pilot, lambda: "U GPU users" in it.screen_text.splitlines()[-1])
        await pilot.press("U")
        await until(pilot, lambda: shows(it, "1 of 3 processes"))
        screen = it.app.screen
        assert isinstance(screen, GpuProcessesScreen)
        await until(pilot, lambda: pids(screen) == ["300"])


def test_unknown_values_come_last_whatever_the_order() -> None:
    rows = [GpuProcessRow(1, "foreign"), GpuProcessRow(2, "foreign", memory=5), GpuProcessRow(3, "foreign", memory=9)]
    order = ProcessOrder().by("memory")
    assert [row.pid for row in order.sorted(rows)] == [3, 2, 1]
    assert [row.pid for row in order.by("memory").sorted(rows)] == [2, 3, 1]
    assert order.by("memory").by("memory") == order


def test_every_column_can_be_sorted_by() -> None:
    rows = [GpuProcessRow(pid, "foreign", gpus=(str(pid),), user="bob" if pid else None) for pid in range(3)]
    order = ProcessOrder()
    for _ in range(10):
        order = order.next()
        assert len(order.sorted(rows)) == 3
    assert order == ProcessOrder()


@pytest.mark.timeout(60)
async def test_keys_stay_fast_with_thousands_of_processes() -> None:
    many = tuple(GpuProcess(pid, pid, "bob", f"worker {pid}", ticks=5) for pid in range(2, 5002))
    base = snapshot((), gpus=(view(0, GpuState.FOREIGN, sample=sample(0, processes=many)),))
    it = Console(base, host=FakeHost(), containers=FakeContainers())
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.begin(pilot)
        await pilot.press("U")
        await until(pilot, lambda: shows(it, "5000 processes"))
        began = perf_counter()
        await pilot.press("j")
        assert perf_counter() - began < stretched(2)  # a hundred times what it takes, on a busy machine
