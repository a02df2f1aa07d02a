"""The console's app: passes snapshots to the screens, carries out the changes they ask for, and opens dialogs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from textual import events
from textual.filter import LineFilter
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_history import TakenStep
from gputui.domain.job import Job, JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.telemetry_series import Measured
from gputui.domain.text import plain
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.engine.feed import Feed
from gputui.ports import Clock
from gputui.tui.actions import ActionThread
from gputui.tui.commands import APP_COMMANDS, CHANGING, COMMANDS, WORK_COMMANDS, bindings, place_of
from gputui.tui.input_queue import InputQueue, KeyDone
from gputui.tui.keymap import Keymap
from gputui.tui.log.follower import LogOpener
from gputui.tui.messages import ActionDone, ActionFailed, ActionRequested, ExitChoice, SnapshotTaken, StoreWaits
from gputui.tui.notifications import Notifier
from gputui.tui.pace import Pacer
from gputui.tui.preferences import Preferences
from gputui.tui.present.gpu_look import LookChoice
from gputui.tui.present.gpu_words import index_of
from gputui.tui.progress import ProgressDisplay, TaskStarted
from gputui.tui.screens.main import Main
from gputui.tui.services import FormSources, Hint, JobAccess, NoJobAccess, Pages, Services, ShowsSnapshot
from gputui.tui.suspend import TerminalLoan
from gputui.tui.textual_internals import HookedApp
from gputui.tui.themes.selection import AS_DESIGNED, Appearance
from gputui.tui.theming import Theming

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gputui.tui.commands import Command

READ_ONLY_HINT = "start it without --read-only, and without the setting console.read_only, to change anything"
_PATIENCE = 5.0
"""Seconds that a change under way may take when the console is left."""
_TURN = 0.0005
"""Seconds after which a busy thread makes way. A key goes through three threads to the screen, and a plan for 10,000
jobs on a fourth would keep each of them waiting for Python's usual 5 ms."""


class Gputui(HookedApp[ExitChoice]):
    """App of the console, composed of an input queue, theming, a terminal loan, a keymap, a pacer and a notifier."""

    TITLE = "gputui"
    BINDINGS: ClassVar = [*bindings(APP_COMMANDS), *bindings(WORK_COMMANDS, before_others=True)]
    ENABLE_COMMAND_PALETTE = False  # there is one of our own
    ALLOW_SELECT = False
    """Text selection of Textual is off: version 8.2 fails where the widget under the pointer goes away during a drag.
    The terminal's own selection, usually with Shift, works; and `y` copies."""
    CSS = """
    Toast { max-width: 80; }
    ToastRack { dock: top; align: right top; margin: 1 0 0 0; }
    Dialog {
        ToastRack { margin: 0; overflow: hidden; }
        ToastHolder { display: none; }
        ToastHolder:last-child { display: block; }
        Toast { width: 100%; max-width: 100%; max-height: 2; margin: 0; padding: 0 1; }
    }
    """  # at the top: the newest lines of logs stand at the bottom. Over a dialog the newest alone, above its fields

    theming: Theming
    _is_themed = False
    snapshot: var[Snapshot] = var(EMPTY, always_update=True, init=False)
    """Latest snapshot."""

    def __init__(
        self,
        feed: Feed,
        actions: Actions,
        logs: LogOpener,
        settings: Settings,
        *,
        clock: Clock,
        host: str = "",
        user: str = "",
        preferences: Preferences | None = None,
        look: Appearance = AS_DESIGNED,
        want_pcie: Callable[[str | None], None] = lambda uuid: None,
        past: Callable[[datetime | None], Iterable[Job]] = lambda since: (),
        gpu_past: Callable[[], Iterable[TakenStep]] = lambda: (),
        measured: Callable[[Job], Mapping[int, Measured]] = lambda job: {},
        forms: FormSources | None = None,
        job_access: JobAccess | None = None,
        foreign: ForeignUse | None = None,
        hint: str = "",
    ) -> None:
        super().__init__()
        self._feed = feed
        kept = preferences or Preferences()
        self.services = Services(
            logs,
            settings,
            clock,
            Pages(_detail, _processes),
            host,
            user,
            kept,
            want_pcie=want_pcie,
            past=past,
            gpu_look=LookChoice(settings.console, kept),
            gpu_past=gpu_past,
            measured=measured,
            forms=forms or FormSources(),
            job_access=job_access or NoJobAccess(),
            foreign=foreign,
            hint=Hint(hint),
        )
        self.works = ProgressDisplay(self, max(0.25, self.services.pace.log))
        self.actions = ActionThread(actions, self._tell, self._indices)
        self.notifier = Notifier(self, settings.console, user, clock)
        self.keymap = Keymap.of(settings.console.keys)
        self.keymap.rebind(self)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._taking = threading.Lock()
        self._taken: Snapshot | None = None
        """Latest snapshot that the screen has not taken yet."""
        self._has_recalled = False
        self.pacer = Pacer(self.services.pace, self._show, self.set_timer)
        self.terminal = TerminalLoan(self)
        self.input_queue = InputQueue(self, super().on_event)
        theming = Theming(self, look, self.services.preferences)
        theming.begin()
        self.theming, self._is_themed = theming, True

    def get_default_screen(self) -> Screen[None]:
        """Return the main screen, drawn before anything has answered."""
        return Main(self.services)

    def prepare(self, widget: Widget) -> None:
        """Give a widget its keys as set."""
        super().prepare(widget)
        self.keymap.rebind(widget)

    async def on_event(self, event: events.Event) -> None:
        """Dispatch keys and clicks one at a time."""
        if isinstance(event, events.Key | events.MouseDown):
            self._drop_hint()
        await self.input_queue.handle(event)

    def _drop_hint(self) -> None:
        """Show the line for newcomers no more, and not the next time either."""
        if self.services.hint.text:
            self.services.hint.text = ""
            self.services.preferences.put("hint", {"seen": True})

    def on_key_done(self, message: KeyDone) -> None:
        """Dispatch the next key."""
        self.input_queue.key_done(message)

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's variables; Textual asks for them before there is a theme."""
        variables = super().get_css_variables()
        return self.theming.css_variables(variables) if self._is_themed else variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters that every line goes through."""
        filters = super().get_line_filters()
        return self.theming.line_filters(filters) if self._is_themed else filters

    def watch_theme(self) -> None:
        """Draw everything in another theme."""
        if self._is_themed:
            self.theming.redraw()

    def action_themes(self) -> None:
        """Choose a theme, seeing each."""
        from gputui.tui.screens.themes import Themes

        self.push_screen(Themes(self.theming.kept, self.theming.try_on, self.theming.keep))

    async def before_end(self) -> None:
        """Wait for the terminal where a screen failed while another program has it."""
        if not self.is_exiting:
            await self.terminal.wait_until_back()

    def exit(
        self, result: ExitChoice | None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """End the app, wherever the terminal is."""
        super().exit(result, return_code, message)
        self.terminal.end()

    def send(self, sequence: str) -> None:
        """Write a sequence that draws nothing, unless another program has the terminal."""
        if not self.terminal.is_away:
            self.write_sequence(sequence)

    def bell(self) -> None:
        """Ring the terminal's bell."""
        self.send("\a")

    def on_mount(self) -> None:
        """Follow the feed."""
        sys.setswitchinterval(_TURN)
        self._unsubscribe = self._feed.subscribe(self._take)
        if self._feed.latest is not EMPTY:
            self._tell(SnapshotTaken(self._feed.latest))

    def on_unmount(self) -> None:
        """Stop following the feed."""
        self._unsubscribe()
        self.services.preferences.close()

    def _take(self, snapshot: Snapshot) -> None:
        """Take a snapshot, in the scheduler's thread; only the newest waits while the screen is busy or lent."""
        with self._taking:
            is_told, self._taken = self._taken is not None, snapshot
        if not is_told:
            self._tell(SnapshotTaken(snapshot))

    def _tell(self, message: Message) -> None:
        """Post a message from any thread; after the end it is dropped."""
        self.post_message(message)

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Show the snapshot, or a newer one."""
        with self._taking:
            snapshot, self._taken = self._taken or message.snapshot, None
        self.pacer.take(snapshot)
        self.notifier.take(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if snapshot.gpus and not self._has_recalled:
            self._has_recalled = True
            self.run_worker(self._recall(snapshot.taken_at))

    async def _recall(self, now: datetime) -> None:
        """Add readings from before this console was opened to the graphs of GPUs."""
        earlier = await asyncio.to_thread(lambda: list(self.services.gpu_past()))
        if earlier:
            self.services.gpu_history.begin_with(earlier, now)
            self.snapshot = self.snapshot

    def toast(self, text: str, title: str, severity: Literal["information", "warning", "error"]) -> None:
        """Show a message in a corner for a while."""
        self.notify(plain(text, 300), title=title, severity=severity, markup=False, timeout=8)

    def watch_snapshot(self, snapshot: Snapshot) -> None:
        """Pass the snapshot to the main screen, which keeps it, and to the screens on top of it."""
        if self.is_exiting or not self.is_running:  # the widgets go one after the other: not all are there any more
            return
        for screen in self.screen_stack:
            if hasattr(screen, "show_snapshot"):
                with self.batch_update():
                    cast("ShowsSnapshot", screen).show_snapshot(snapshot)

    def on_action_requested(self, message: ActionRequested) -> None:
        """Carry a change out on the action thread, as the disk may block. A read-only console refuses every change."""
        if self.services.is_read_only:
            self.on_action_failed(ActionFailed(GputuiError("this console is read-only", hint=READ_ONLY_HINT)))
            return
        self.works.watch(self.actions.add(message.call))

    def on_key(self, event: events.Key) -> None:
        """Say why a key that would change something does nothing in a read-only console."""
        if not self.services.is_read_only or isinstance(self.focused, Input):
            return
        told = (self.keymap.told(command) for command in COMMANDS if command.changes)
        command = next((command for command in told if event.key in command.keys), None)
        if command is not None and not self._is_known_elsewhere(event.key):
            self.clear_notifications()
            words = f"{command.title}: not in this console, it is read-only. {READ_ONLY_HINT.capitalize()}."
            self.notify(words, severity="warning", markup=False, timeout=4)

    def _is_known_elsewhere(self, key: str) -> bool:
        """Return whether the key has a command in front that changes nothing, and works now."""
        return key in self.screen.active_bindings and self.screen.active_bindings[key].enabled

    def on_task_started(self, message: TaskStarted) -> None:
        """Show the progress of a long task."""
        self.works.watch(message.work)

    def action_give_up_work(self) -> None:
        """Cancel the task whose progress is shown."""
        self.works.give_up()

    def on_action_done(self, message: ActionDone) -> None:
        """Show that a change was made."""
        self.pacer.hurry()
        words = self.keymap.words(message.text)
        self.notifier.note("information", words)
        self.notify(plain(words, 300), markup=False, timeout=4)

    def tell_wait(self, sentence: str) -> None:
        """Show, from any thread, which process a write waits for."""
        self._tell(StoreWaits(sentence))

    def on_store_waits(self, message: StoreWaits) -> None:
        """Show which process a write waits for; keys go on working, and a write that waits too long fails."""
        self.notifier.note("warning", message.sentence)
        self.notify(plain(message.sentence, 400), severity="warning", markup=False, timeout=10)

    def on_action_failed(self, message: ActionFailed) -> None:
        """Show the error, its place and the hint."""
        error = message.error
        self.notifier.note("error", str(error))
        title = plain(error.where, 80) if error.where else "Not done"
        hint = f"\n{plain(error.hint, 300)}" if error.hint else ""
        self.notify(plain(error.what, 400) + hint, title=title, severity="error", markup=False, timeout=10)

    def _indices(self) -> dict[str, str]:
        return {view.gpu.uuid: index_of(view) for view in self.snapshot.gpus}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide commands that a read-only console has not."""
        del parameters
        if action == "give_up_work":
            return self.works.shown is not None
        return not (action in CHANGING and self.services.is_read_only)

    def action_graph_span(self) -> None:
        """Change the time span of the GPU graphs."""
        choice = self.services.gpu_look
        choice.take(choice.current.with_next_span())
        self._gpus_look(f"GPU graphs: {choice.current.span_words}")

    def action_gpu_colours(self) -> None:
        """Give the colours of GPUs the other meaning."""
        choice = self.services.gpu_look
        choice.take(choice.current.with_next_colours())
        self._gpus_look(f"GPU colours {choice.current.colour_words}")

    def _gpus_look(self, words: str) -> None:
        self.snapshot = self.snapshot  # draws again
        self.clear_notifications()
        self.notify(words, timeout=3)

    def action_notices(self) -> None:
        """Show all notices in full, and what happened before."""
        from gputui.tui.screens.notices import Notices

        now = self.services.clock.now()
        self.clear_notifications()  # all of them are told there
        words = self.keymap.words
        found = self.services.conditions.look(self.snapshot, now)
        told = (replace(condition, text=words(condition.text), todo=words(condition.todo)) for condition in found)
        self.push_screen(Notices(tuple(told), tuple(self.notifier.log), now=now))

    def action_gpu_processes(self) -> None:
        """Show all processes on the GPUs; from the page of a GPU those on it."""
        from gputui.tui.screens.gpu import GpuDetailScreen
        from gputui.tui.screens.gpu_processes import GpuProcessesScreen

        main = self.screen_stack[0]
        if not isinstance(main, Main) or any(isinstance(screen, GpuProcessesScreen) for screen in self.screen_stack):
            return
        view = self.screen.gpu() if isinstance(self.screen, GpuDetailScreen) else None
        words = f"gpu:{index_of(view)}" if view is not None else ""
        self.push_screen(GpuProcessesScreen(self.services, self.snapshot, main.logs.follow, words))

    def action_undo(self) -> None:
        """Undo the last change of this console."""
        self.works.watch(self.actions.undo())

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        from gputui.tui.commands.palette import offers
        from gputui.tui.screens.palette import CommandFinder

        if isinstance(self.screen, CommandFinder):
            return
        offered = offers(self.screen, only_looks=self.services.is_read_only)

        def chosen(number: int | None) -> None:
            if number is not None:
                self.call_later(self._do, offered[number].command)

        self.push_screen(CommandFinder(offered), chosen)

    async def _do(self, command: Command) -> None:
        """Run a command, not by its key: in the focused pane that may mean another command."""
        if place := place_of(command, self.screen):
            await self.run_action(command.action, default_namespace=place)

    def action_help(self) -> None:
        """Show all keys, those of the focused pane first."""
        from gputui.tui.screens.help import Context, Help

        self.push_screen(Help(Context.of(self.screen)))

    def action_leave(self) -> None:
        """Quit; where the scheduler runs here, as the settings say or the operator answers."""
        if not self.snapshot.leads_here:
            self._leave(ExitChoice.PLAIN)
            return
        said = {"always": ExitChoice.HAND_OVER, "never": ExitChoice.STOP}.get(
            self.services.settings.scheduler.hand_over
        )
        if said is not None:
            self._leave(said)
            return
        from gputui.tui.screens.questions import LeaveDialog

        if not any(isinstance(screen, LeaveDialog) for screen in self.screen_stack):
            self.push_screen(LeaveDialog(), self._leave)

    def _leave(self, how: ExitChoice | None) -> None:
        if how is not None:
            self.actions.finish(_PATIENCE)
            self.exit(how)


def _detail(services: Services, snapshot: Snapshot, job_id: JobId, follow: Callable[[JobId], None]) -> Screen[None]:
    from gputui.tui.screens.detail import Detail

    return Detail(services, snapshot, job_id, follow)


def _processes(services: Services, snapshot: Snapshot, job_id: JobId) -> Screen[None]:
    from gputui.tui.screens.processes import ProcessesScreen

    return ProcessesScreen(services, snapshot, job_id)
