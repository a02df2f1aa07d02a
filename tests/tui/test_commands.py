"""Commands: each is declared once, works somewhere, and is documented."""

from __future__ import annotations

from pathlib import Path

from gputui.tui.app import Gputui
from gputui.tui.commands import COMMANDS, DIALOG, Command
from gputui.tui.screens.dialogs import Choose, ColumnChooser, ColumnTable, Confirm, CopyDialog, LeaveDialog
from gputui.tui.screens.forms import DraftLoader, Submit
from gputui.tui.screens.help import Help
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.logs import LogController
from gputui.tui.screens.main import Main, ServerChoice
from gputui.tui.screens.pages import Detail, GpuDetailScreen
from gputui.tui.screens.panes import Panes
from gputui.tui.screens.process_view import GpuProcessesScreen
from gputui.tui.screens.queue_pane import QueueController, QueueEditor
from gputui.tui.screens.timeline import TimelineScreen, TimelineTable
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.gpu_grid import GpuCards
from gputui.tui.widgets.job_table import JobTable
from scripts.keys import keys_document
from tests.cases import cases

KEYS = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_keys_page_is_up_to_date() -> None:
    assert KEYS.read_text(encoding="utf-8") == keys_document(), "run: python scripts/keys.py"


@cases("command", COMMANDS)
def test_every_command_can_be_carried_out_and_is_explained(command: Command) -> None:
    assert any(
        hasattr(place, f"action_{command.action_name}")
        for place in (
            Main,
            QueueController,
            QueueEditor,
            LogController,
            Panes,
            ServerChoice,
            Detail,
            GpuDetailScreen,
            WhatIf,
            ColumnChooser,
            ColumnTable,
            Submit,
            DraftLoader,
            TimelineScreen,
            TimelineTable,
            GpuProcessesScreen,
            Gputui,
            JobTable,
            GpuCards,
            LogPane,
            Confirm,
            LeaveDialog,
            Choose,
            CopyDialog,
            Help,
        )
    )
    assert command.help.endswith(".")
    assert f"| {command.title} | {command.help} |" in keys_document()


def test_only_opposites_share_a_key() -> None:
    places: dict[str, list[str]] = {}
    for command in COMMANDS:
        for key in command.keys if command.group != DIALOG else ():  # they stand over all others
            places.setdefault(key, []).append(command.action)
    shared = {frozenset(actions) for actions in places.values() if len(actions) > 1}
    allowed = [
        {"copy", "copy_lines"},
        {"drain", "resume"},
        {"pause", "unpause"},
        {"verb('suspend')", "verb('unsuspend')"},
        {"leave", "back"},
        {"clear_filter", "clear_marks", "clear_log", "back", "forget", "give_up", "give_up_work"},
        {"filter", "search"},
        {"detail", "commit", "take", "open"},
        {"fold", "zoom_time(-1)"},
        {"mark", "toggle_pause", "toggle_column"},
        {"sort", "save_log", "sort_processes"},
        {"recur", "error(-1)"},
        {"edit", "error(1)", "environment"},
        {"timeline", "end_process('TERM')"},
        {"signal", "end_process('INT')"},
        {"processes", "stop_container"},
        {"verb('hold')", "pause_recurring"},
        {"verb('release')", "resume_recurring"},
        {"verb('cancel')", "remove"},
        {"move(1)", "shift(1)", "drag(1)"},
        {"move(-1)", "shift(-1)", "drag(-1)", "end_process('KILL')"},
        {"verb('raise')", "further('raise')"},
        {"verb('lower')", "further('lower')"},
        {"verb('top')", "further('top')", "tree"},
        {"bar(1)", "sideways(1)", "beside(1)", "other_gpu(1)", "shift(1)"},
        {"bar(-1)", "sideways(-1)", "beside(-1)", "other_gpu(-1)", "shift(-1)"},
        {"pane(1)", "next_job"},
        {"gpu", "zoom_time(1)"},
        {"undo", "usual"},
    ]
    assert [actions for actions in shared if not any(actions <= pair for pair in allowed)] == []
