"""The console's app: passes snapshots to the screens, carries out requested changes, and opens dialogs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from gputui.domain.errors import GputuiError
from gputui.domain.gpu import index_of
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import plain
from gputui.engine.feed import Feed
from gputui.tui.actions import ActionDone, ActionFailed, ActionRequested, ActionThread, ExitChoice, StoreWaits
from gputui.tui.commands import ANYWHERE_COMMANDS, APP_COMMANDS, CHANGING, WORK_COMMANDS, bindings, doer_of, place_of
from gputui.tui.input_queue import InputQueue, KeyDone
from gputui.tui.keymap import Keymap, Lacking, why_key_does_nothing
from gputui.tui.notifications import Notifier
from gputui.tui.present.gpu_rows import COLOURS, Labels
from gputui.tui.progress import Pace, ProgressDisplay, TaskStarted
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.screens.main import Main
from gputui.tui.services import Pages, Services
from gputui.tui.terminal import TerminalLoan
from gputui.tui.textual_internals import HookedApp
from gputui.tui.themes import AS_DESIGNED, Appearance, Theming
from gputui.tui.widgets.status_bars import Messages

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gputui.domain.conditions import Condition
    from gputui.tui.commands import Command
    from gputui.tui.notifications import Notification
    from gputui.tui.screens.help import AlarmPages

LEAVING = "leaving"
_PATIENCE = 5.0
"""Seconds that a current change may take when the console is closed."""
_TURN = 0.0005
"""Interpreter switch interval in seconds.

A key passes through three threads to the screen, and a plan for 10,000 jobs on a fourth would keep each of them waiting
for Python's default 5 ms.
"""


class SnapshotTaken(Message, bubble=False):
    """Message that the feed has a new snapshot."""


class Pacer(Struct, eq=False):
    """Passes on snapshots no more often than the pace allows; never drops the last one, or a requested one."""

    pace: Pace
    show: Callable[[Snapshot], None]
    later: Callable[[float, Callable[[], None]], Timer]
    _shown_at: float = float("-inf")
    _waiting: Snapshot | None = None
    _timer: Timer | None = None

    def take(self, snapshot: Snapshot) -> None:
        self._waiting = snapshot
        wait = self._shown_at + self.pace.pictures - time.monotonic()
        if wait <= 0:
            self._let_through()
        elif self._timer is None:
            self._timer = self.later(wait, self._let_through)

    def hurry(self) -> None:
        self._shown_at = float("-inf")

    def _let_through(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if (snapshot := self._waiting) is not None:
            self._waiting, self._shown_at = None, time.monotonic()
            self.show(snapshot)


class Gputui(HookedApp[ExitChoice], inherit_bindings=False):
    """The console's Textual app: input queue, theming, terminal suspension, keymap, pacer and notifier.

    Textual's own keys of an app are left out: its Ctrl-Q ends the console without a question.
    """

    TITLE = "gputui"
    BINDINGS: ClassVar = [*bindings(APP_COMMANDS), *bindings((*WORK_COMMANDS, *ANYWHERE_COMMANDS), before_others=True)]
    ENABLE_COMMAND_PALETTE = False  # gputui has its own
    ALLOW_SELECT = False
    """Textual's text selection is off: version 8.2 fails if the widget under the pointer disappears during a drag.

    The terminal's own selection, usually with Shift, works; and `y` copies.
    """
    CSS = """
    MessageLine { dock: bottom; height: 1; margin-bottom: 1; }
    ModalScreen MessageLine { margin-bottom: 0; }
    LogPrompt MessageLine { margin-bottom: 1; }
    """  # above the keys of a page, and in their place below a dialog, where they do not work

    theming: Theming
    _is_themed = False
    snapshot: var[Snapshot] = var(EMPTY, always_update=True, init=False)

    def __init__(self, feed: Feed, services: Services, look: Appearance = AS_DESIGNED) -> None:
        super().__init__()
        self._feed = feed
        self.services = services
        settings = services.settings
        self.messages = Messages(self)
        self.works = ProgressDisplay(self, self.messages.show_progress, max(0.25, services.pace.log))
        self.actions = ActionThread(services.backend, self.post_message, lambda: dict(Labels.of(self.snapshot).by_uuid))
        self.notifier = Notifier(self, settings.console, services.about.user, services.clock)
        self.keymap = Keymap.of(settings.console.keys)
        self.keymap.rebind(self)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._has_news = False
        """True if the feed has a snapshot that the screen has not processed yet."""
        self._has_recalled = False
        self._alarms: AlarmPages | None = None
        self._refusal = ""
        """Reason why the present key does nothing; empty if it does something."""
        self.pacer = Pacer(services.pace, self._show, self.set_timer)
        self.terminal = TerminalLoan(self)
        self.input_queue = InputQueue(self, self._dispatch)
        theming = Theming(self, look, services.preferences)
        theming.begin()
        self.theming, self._is_themed = theming, True

    def get_default_screen(self) -> Screen[None]:
        return Main(self.services)

    def prepare(self, widget: Widget) -> None:
        super().prepare(widget)
        self.keymap.rebind(widget)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.MouseDown):
            if self.services.hint.text:
                self.services.hint.text = ""
                self.services.preferences.put("hint", {"seen": True})
            self.messages.note_key(self.services.clock.now())
        await self.input_queue.handle(event)

    @property
    def lacking(self) -> Lacking:
        return self.screen.lacking if isinstance(self.screen, JobScreen) else self.services.lacking

    async def _dispatch(self, event: events.Event) -> None:
        """Dispatch an event whose turn it is; note before a key is handled whether its command is unavailable."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            services = self.services
            self._refusal = why_key_does_nothing(event.key, self.screen, self.lacking, only_looks=services.only_looks)
        await super().on_event(event)

    def notify(self, message: str, *, title: str = "", severity: str = "information", **_: Any) -> None:
        self.notifier.note(severity, f"{title}: {message}" if title else message)

    def say(self, message: Notification) -> None:
        self.messages.say(message)

    def clear_notifications(self) -> None:
        self.messages.clear()

    def on_key_done(self, message: KeyDone) -> None:
        self.input_queue.key_done(message)

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        return self.theming.css_variables(variables) if self._is_themed else variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return self.theming.line_filters(filters) if self._is_themed else filters

    def watch_theme(self) -> None:
        if self._is_themed:
            self.theming.redraw()

    def action_themes(self) -> None:
        from gputui.tui.screens.dialogs import Themes

        self.push_screen(Themes(self.theming.kept, self.theming.try_on, self.theming.keep))

    def doer(self, node: DOMNode, action: str) -> Any:
        return doer_of(node, action)

    async def before_end(self) -> None:
        if not self.is_exiting:
            await self.terminal.wait_until_back()

    def exit(
        self, result: ExitChoice | None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """End the app, even while another program uses the terminal."""
        super().exit(result, return_code, message)
        self.terminal.end()

    def send(self, sequence: str) -> None:
        """Write a sequence that draws nothing, unless another program uses the terminal."""
        if not self.terminal.is_away:
            self.write_sequence(sequence)

    def bell(self) -> None:
        self.send("\a")

    def on_mount(self) -> None:
        sys.setswitchinterval(_TURN)
        self._unsubscribe = self._feed.subscribe(self._take)
        if self._feed.latest is not EMPTY:
            self._take(self._feed.latest)

    def on_unmount(self) -> None:
        self._unsubscribe()
        self.services.preferences.close()

    def _take(self, snapshot: Snapshot) -> None:
        """Announce a snapshot, in the scheduler's thread; only the newest waits while the screen is busy or lent."""
        del snapshot  # the feed keeps the newest
        if not self._has_news:
            self._has_news = True
            self.post_message(SnapshotTaken())

    def on_snapshot_taken(self) -> None:
        self._has_news = False  # first, so that one that comes from here on is announced again
        snapshot = self._feed.latest
        self.pacer.take(snapshot)
        self.notifier.take(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if not snapshot.gpus or self._has_recalled:
            return
        self._has_recalled = True

        async def recall() -> None:
            earlier = await asyncio.to_thread(lambda: list(self.services.gpu_past()))
            if earlier:
                self.services.gpu_history.begin_with(earlier, snapshot.taken_at)
                self.snapshot = self.snapshot

        self.run_worker(recall())

    def watch_snapshot(self, snapshot: Snapshot) -> None:
        if self.is_exiting or not self.is_running:  # widgets are removed one after the other: some may be gone already
            return
        for screen in self.screen_stack:
            if show := getattr(screen, "show_snapshot", None):
                with self.batch_update():
                    show(snapshot)

    def on_action_requested(self, message: ActionRequested) -> None:
        """Carry out a change on the action thread, as the disk may block. A read-only console refuses every change."""
        if hint := self.services.only_looks:
            self.on_action_failed(ActionFailed(GputuiError("this console is read-only", hint=hint)))
            return
        self.works.watch(self.actions.add(message))

    def on_key(self, event: events.Key) -> None:
        if self._refusal and not isinstance(self.focused, Input):
            self.notify(self._refusal)

    def on_task_started(self, message: TaskStarted) -> None:
        self.works.watch(message.work)

    def action_give_up_work(self) -> None:
        self.works.give_up()

    def on_action_done(self, message: ActionDone) -> None:
        self.pacer.hurry()
        self.notify(self.keymap.words(message.text))

    def tell_wait(self, sentence: str) -> None:
        """Show, from any thread, which process a write waits for."""
        self.post_message(StoreWaits(sentence))

    def on_store_waits(self, message: StoreWaits) -> None:
        self.notify(message.sentence, severity="warning")

    def on_action_failed(self, message: ActionFailed) -> None:
        self.notify(str(message.error), severity="error")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "give_up_work":
            return self.works.shown is not None
        return not (action in CHANGING and self.services.is_read_only)

    def action_graph_span(self) -> None:
        gpus = self.services.gpus
        gpus.turn(span=True)
        words, shown = gpus.look.span_words, gpus.look_for(self.snapshot)
        if shown.seconds != gpus.look.seconds:
            words += f" while a GPU is in use; now {shown.span_words}, as none is"
        self._gpus_look(f"GPU graphs: {words}")

    def action_gpu_colours(self) -> None:
        self.services.gpus.turn(colours=True)
        by = self.services.gpus.look.colours
        self._gpus_look(f"GPU colours by {by}: {COLOURS[by]}")

    def _gpus_look(self, words: str) -> None:
        self.snapshot = self.snapshot  # redraws everything
        self.notify(words)

    def action_notices(self) -> None:
        from gputui.tui.screens.help import Notices

        def notices() -> tuple[tuple[Condition, ...], Sequence[Notification], datetime]:
            now, words = self.services.clock.now(), self.keymap.words
            found = self.services.conditions.look(self.snapshot, now)
            shown = (replace(condition, text=words(condition.text), todo=words(condition.todo)) for condition in found)
            return tuple(shown), tuple(self.notifier.log), now

        self.clear_notifications()  # the list contains all of them
        self.push_screen(Notices(notices))

    def action_gpu_processes(self) -> None:
        from gputui.tui.screens.pages import GpuDetailScreen
        from gputui.tui.screens.process_view import GpuProcessesScreen

        main = self.screen_stack[0]
        if not isinstance(main, Main) or any(isinstance(screen, GpuProcessesScreen) for screen in self.screen_stack):
            return
        view = self.screen.gpu() if isinstance(self.screen, GpuDetailScreen) else None
        words = f"gpu:{index_of(view)}" if view is not None else ""
        self.push_screen(GpuProcessesScreen(self.services, self.snapshot, main.logs.follow, words))

    def action_alarm(self) -> None:
        from gputui.tui.screens.help import AlarmPages

        main, now = self.screen_stack[0], self.services.clock.now()
        if not isinstance(main, Main) or self.screen.is_modal:
            return
        self._alarms = self._alarms or AlarmPages(self.services)
        found = self.services.conditions.look(self.snapshot, now)
        if not self._alarms.open_next(self, self.snapshot, found, main.logs.open):
            self.notify("no job, process or GPU needs attention")

    def action_undo(self) -> None:
        self.works.watch(self.actions.add(None))

    def action_command_palette(self) -> None:
        from gputui.tui.screens.dialogs import ask
        from gputui.tui.screens.menu import CommandFinder, offers

        if isinstance(self.screen, CommandFinder):
            return
        offered = offers(self.screen, only_looks=self.services.is_read_only, lacking=self.lacking)

        async def run(command: Command) -> None:
            if place := place_of(command, self.screen):
                await self.run_action(command.action, default_namespace=place)

        ask(self, CommandFinder(offered), lambda number: self.call_later(run, offered[number].command))

    def action_help(self) -> None:
        from gputui.tui.screens.help import Context, Help

        self.push_screen(Help(Context.of(self.screen, self.lacking)))

    def action_leave(self) -> None:
        """Quit; if the scheduler runs here, hand over or stop it as the settings say or the operator answers.

        Asks as well if the input of a form would be lost.
        """
        from gputui.tui.screens.dialogs import LOST_INPUT, Confirm, LeaveDialog

        if any(screen.name == LEAVING for screen in self.screen_stack):
            return
        is_lost = any(getattr(screen, "is_touched", False) for screen in self.screen_stack)
        hand_over = self.services.settings.scheduler.hand_over
        said = {"always": ExitChoice.HAND_OVER, "never": ExitChoice.STOP}.get(hand_over)
        how = said if self.snapshot.leads_here else ExitChoice.PLAIN
        if how is None:
            self.push_screen(LeaveDialog(LOST_INPUT if is_lost else "", name=LEAVING), self._leave)
        elif is_lost:
            self.push_screen(Confirm("Quit?", LOST_INPUT, name=LEAVING), lambda yes: self._leave(how if yes else None))
        else:
            self._leave(how)

    def action_stay_awake(self) -> None:
        why = "jobs would wait for its scheduler" if self.snapshot.leads_here else "others might wait for it"
        words = f"Not stopped: {why}. {self.keymap.key('quit')} quits; for a shell beside it open another terminal."
        self.notify(words)

    def on_paste(self, event: events.Paste) -> None:
        if not isinstance(self.focused, Input) and (text := plain(event.text.strip(), 40)):
            self.notify(f"Pasted text ignored, as only fields take text: {text}", severity="warning")

    def _leave(self, how: ExitChoice | None) -> None:
        if how is not None:
            self.actions.finish(_PATIENCE)
            self.exit(how)


def _detail(services: Services, snapshot: Snapshot, job_id: JobId, follow: Callable[[JobId], None]) -> Screen[None]:
    from gputui.tui.screens.pages import Detail

    return Detail(services, snapshot, job_id, follow)


def _processes(services: Services, snapshot: Snapshot, job_id: JobId) -> Screen[None]:
    from gputui.tui.screens.pages import ProcessesScreen

    return ProcessesScreen(services, snapshot, job_id)


PAGES = Pages(_detail, _processes)
