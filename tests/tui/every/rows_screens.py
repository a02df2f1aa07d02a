"""Rows of commands of other screens: job, GPU, processes, timeline, what-if panel, submit form."""

from __future__ import annotations

from collections.abc import Callable

from gputui.tui.present.timeline import zoomed
from gputui.tui.screens.process_view import GpuProcessTable
from tests.tui.every import eyes, stages, stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.row import Row
from tests.tui.every.stages_screens import gpu_page
from tests.tui.every.world import foreseen


def _finer(was: float) -> float:
    from datetime import timedelta

    return zoomed(timedelta(seconds=was), 1).total_seconds()


def _coarser(was: float) -> float:
    from datetime import timedelta

    return zoomed(timedelta(seconds=was), -1).total_seconds()


async def on_second_bar(hand: Hand) -> None:
    """Click on the next bar of the row."""
    table = eyes.time_table(hand)
    place = next(p for p in table.placed if p.column.key == "bars")
    await hand.click(table, place.x + table.scale.cell(table.bars[1].start) + 1, table.head)


async def on_first_bar(hand: Hand) -> None:
    """Click on the first bar of the row, where it is in sight."""
    table = eyes.time_table(hand)
    table.action_present()
    place = next(p for p in table.placed if p.column.key == "bars")
    await hand.click(table, place.x + table.scale.cell(hand.console.clock.now()) - 1, table.head)


async def twice_on_bar(hand: Hand) -> None:
    """Double-click on the first bar."""
    table = eyes.time_table(hand)
    place = next(p for p in table.placed if p.column.key == "bars")
    await hand.click(table, place.x + table.scale.cell(hand.console.clock.now()) + 2, table.head, 2)


async def twice_on_process(hand: Hand) -> None:
    """Double-click on the first process."""
    await hand.click(hand.app.screen.query_one(GpuProcessTable), 3, 1, 2)


async def on_title(hand: Hand) -> None:
    """Click on the title of the jobs and containers."""
    table = hand.app.screen.query_one(GpuProcessTable)
    place = next(p for p in table.placed if p.column.key == "what")
    await hand.click(table, place.x + 1, 0)


def _and(number: int) -> Callable[[list[tuple[int, int]]], list[tuple[int, int]]]:
    """Return the signals sent before, and this one."""
    return lambda was: [*was, (22110, number)]


_OPENED_FROM = ((stages_screens.process_view, "Main"), (stages_screens.container, "GpuProcessesScreen"))
ROWS = (
    Row("give_up_work", stages.long_work, eyes.is_given_up, True, footer=False),
    Row(
        "detail",
        stages_screens.timeline,
        eyes.screens,
        ("Main", "TimelineScreen", "Detail"),
        mouse=twice_on_bar,
        make=foreseen,
    ),
    *(
        Row("back", stage, eyes.screen, "Main")
        for stage in (stages_screens.detail, stages_screens.processes, stages_screens.logs)
    ),
    Row("back", gpu_page(0), eyes.screen, "Main"),
    Row("back", stages_screens.timeline, eyes.screen, "Main", make=foreseen),
    *(Row("back", stage, eyes.screen, there) for stage, there in _OPENED_FROM),
    Row("gpu_processes", stages.queue, eyes.screen, "GpuProcessesScreen"),
    Row("open", stages_screens.process_view, eyes.screen, "ContainerScreen", mouse=twice_on_process),
    Row("environment", stages_screens.process_view, eyes.screen, "ProcessPage"),
    *(
        Row(f"end_{name}", stages_screens.process_view, eyes.signals, _and(number), ("y",))
        for name, number in (("term", 15), ("int", 2), ("kill", 9))
    ),
    Row("stop_container", stages_screens.process_view, eyes.stops, lambda was: was + 1, ("y",)),
    Row("stop_container", stages_screens.container, eyes.stops, lambda was: was + 1, ("y",)),
    Row("tree", stages_screens.process_view, eyes.is_tree, True),
    Row("sort_processes", stages_screens.process_view, eyes.process_order, "what", mouse=on_title),
    Row("hold", stages_screens.waiting_detail, eyes.actions, [("hold", "job 107")]),
    Row("cancel", gpu_page(0), eyes.actions, [("cancel", "job 101")], ("y",)),
    Row("drain", gpu_page(0), lambda hand: len(eyes.drained(hand)), 2, ("f", "enter")),
    Row("gpu_next", gpu_page(1), eyes.gpu_shown, 2),
    Row("gpu_before", gpu_page(1), eyes.gpu_shown, 0),
    Row("next_job", gpu_page(2), eyes.job_meant, 111),
    Row("commit", stages_screens.proposed, eyes.actions, [("priority", "job 107")], make=foreseen),
    Row("forget", stages_screens.proposed, eyes.screen, "Main", make=foreseen),
    Row("more", stages_screens.proposed, eyes.thought_of, ("raise", 20), make=foreseen),
    Row("less", stages_screens.proposed, eyes.thought_of, ("raise", 0), make=foreseen),
    Row("drag_down", stages_screens.proposed, eyes.proposes, True, make=foreseen),
    Row("drag_up", stages_screens.proposed, eyes.proposes, True, make=foreseen),
    Row("top_instead", stages_screens.proposed, eyes.thought_of, ("top", 0), make=foreseen),
    Row("zoom_in", stages_screens.timeline, eyes.step_of_time, _finer, make=foreseen),
    Row("zoom_out", stages_screens.timeline, eyes.step_of_time, _coarser, make=foreseen),
    Row("later", stages_screens.timeline, eyes.looks_later, True, make=foreseen),
    Row("earlier", stages_screens.timeline, eyes.looks_earlier, True, make=foreseen),
    Row("now", stages_screens.timeline_later, eyes.looks_later, False, make=foreseen),
    Row("bar_next", stages_screens.timeline, eyes.bar_number, 1, mouse=on_second_bar, make=foreseen),
    Row("bar_before", stages_screens.timeline_later, eyes.bar_number, 0, mouse=on_first_bar, make=foreseen),
    Row("send", stages_screens.form, eyes.jobs_stored, lambda was: was + 1),
    Row("recent", stages_screens.form, eyes.screen, "Choose"),
    Row("older", stages_screens.form, eyes.image, "earlier"),
    Row("older_back", stages_screens.recalled, eyes.image, ""),
    Row("templates", stages_screens.form, eyes.screen, "Choose"),
    Row("editor", stages_screens.form, eyes.said, True),
    Row("more_fields", stages_screens.form, eyes.is_open, True),
    Row("give_up", stages_screens.untouched_form, eyes.screen, "Main"),
)
