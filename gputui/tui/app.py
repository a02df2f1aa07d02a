"""The console: takes snapshots in, sends wishes out, and pushes screens; nothing else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from textual import events
from textual.dom import DOMNode
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_history import TakenStep
from gputui.domain.job import Job
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import plain
from gputui.engine.actions import Actions
from gputui.engine.feed import Feed
from gputui.ports import Clock
from gputui.tui.action_thread import ActionThread
from gputui.tui.aside import AsideApp
from gputui.tui.commands import APP_COMMANDS, CHANGING, COMMANDS, WORK_COMMANDS, bindings, place_of
from gputui.tui.desk import Desk, ShowsSnapshot
from gputui.tui.interiors import Closed, Interiors
from gputui.tui.keymap import Keymap
from gputui.tui.leave import Leave
from gputui.tui.log.follower import LogOpener
from gputui.tui.messages import SnapshotTaken, StoreWaits, WishDone, WishFailed, WishMade
from gputui.tui.notify import Notifier
from gputui.tui.pace import Pacer
from gputui.tui.present.gpu import index_of
from gputui.tui.present.status import notices
from gputui.tui.remembered import Remembered
from gputui.tui.screens.main import Main
from gputui.tui.styles_cache import OwnStylesCache
from gputui.tui.submission.sources import FormSources
from gputui.tui.theme import AS_DESIGNED, Wish
from gputui.tui.work import WorkBegun
from gputui.tui.works import Works

if TYPE_CHECKING:
    from gputui.tui.commands import Command

READ_ONLY_HINT = "start it without --read-only, and without the setting console.read_only, to change anything"
_PATIENCE = 5.0
"""Seconds a wish under way may take when the console is left."""
_TURN = 0.0005
"""Seconds after which a busy thread makes way. A key goes through three threads to the screen, and a plan for 10,000
jobs on a fourth would keep each of them waiting for Python's usual 5 ms."""


class Gputui(AsideApp[Leave]):
    """The console of one node."""

    TITLE = "gputui"
    BINDINGS: ClassVar = [*bindings(APP_COMMANDS), *bindings(WORK_COMMANDS, before_others=True)]
    ENABLE_COMMAND_PALETTE = False  # there is one of our own
    ALLOW_SELECT = False
    """No text by dragging: Textual 8.2 fails where the widget under the pointer goes away just then. The terminal's own
    selection, with Shift as a rule, has all there is; and `y` copies."""
    CSS = """
    Toast { max-width: 80; }
    ToastRack { dock: top; align: right top; margin: 1 0 0 0; }
    """  # at the top: the newest lines of logs stand at the bottom

    snapshot: var[Snapshot] = var(EMPTY, always_update=True, init=False)
    """The latest picture."""

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
        remembered: Remembered | None = None,
        look: Wish = AS_DESIGNED,
        want_pcie: Callable[[str | None], None] = lambda uuid: None,
        past: Callable[[datetime | None], Iterable[Job]] = lambda since: (),
        gpu_past: Callable[[], Iterable[TakenStep]] = lambda: (),
        forms: FormSources | None = None,
        inside: Interiors | None = None,
    ) -> None:
        super().__init__()
        self._feed = feed
        self._desk = Desk(
            logs,
            settings,
            clock,
            host,
            user,
            remembered or Remembered(),
            want_pcie=want_pcie,
            past=past,
            gpu_past=gpu_past,
            forms=forms or FormSources(),
            inside=inside or Closed(),
        )
        self.works = Works(self, max(0.25, self._desk.pace.log))
        self.wishes = ActionThread(actions, self._tell, self._indices)
        self.notifier = Notifier(self, settings.console, user, clock)
        self.keymap = Keymap.of(settings.console.keys)
        self.keymap.rebind(self._bindings)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._taking = threading.Lock()
        self._taken: Snapshot | None = None
        """The newest picture, from when it came until the screen takes it."""
        self._has_recalled = False
        self.pacer = Pacer(self._desk.pace, self._show, self.set_timer)
        self.dress(look, self._desk.remembered)

    def get_default_screen(self) -> Screen[None]:
        """The main screen, drawn before anything has answered."""
        return Main(self._desk)

    def _register_child(self, parent: DOMNode, child: Widget, before: int | None, after: int | None) -> None:
        """Give what comes onto the screen its keys as set; a test notices if Textual stops calling this."""
        self.keymap.rebind(child._bindings)
        child._styles_cache = OwnStylesCache()  # what it draws goes with it
        super()._register_child(parent, child, before, after)

    def _start_widget(self, parent: Widget, widget: Widget) -> None:
        """As above, of scroll bars, which are nobody's children."""
        widget._styles_cache = OwnStylesCache()
        super()._start_widget(parent, widget)

    def on_mount(self) -> None:
        """Hear of every picture from now on."""
        sys.setswitchinterval(_TURN)
        self._unsubscribe = self._feed.subscribe(self._take)
        if self._feed.latest is not EMPTY:
            self._tell(SnapshotTaken(self._feed.latest))

    def on_unmount(self) -> None:
        """Hear no more."""
        self._unsubscribe()
        self._desk.remembered.close()

    def _take(self, snapshot: Snapshot) -> None:
        """Hear of a picture, in the scheduler's thread; only the newest waits while the screen is busy or lent."""
        with self._taking:
            is_told, self._taken = self._taken is not None, snapshot
        if not is_told:
            self._tell(SnapshotTaken(snapshot))

    def _tell(self, message: Message) -> None:
        """Post from any thread; what comes after the end is dropped."""
        self.post_message(message)

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Show it, or the newest since."""
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
        """Have the graphs of GPUs begin before this console did."""
        earlier = await asyncio.to_thread(lambda: list(self._desk.gpu_past()))
        if earlier:
            self._desk.gpu_history.begin_with(earlier, now)
            self.snapshot = self.snapshot

    def toast(self, text: str, title: str, severity: Literal["information", "warning", "error"]) -> None:
        """Show it in a corner for a while."""
        self.notify(plain(text, 300), title=title, severity=severity, markup=False, timeout=8)

    def watch_snapshot(self, snapshot: Snapshot) -> None:
        """Give it to the main screen, which keeps it, and to the one that is on top of it."""
        if self._exit or not self.is_running:  # the widgets go one after the other: not all are there any more
            return
        for screen in self.screen_stack:
            if hasattr(screen, "show_snapshot"):
                with self.batch_update():
                    cast("ShowsSnapshot", screen).show_snapshot(snapshot)

    def on_wish_made(self, message: WishMade) -> None:
        """Write it down, elsewhere: the disk may block. A console that only looks on writes nothing, whoever asks."""
        if self._desk.is_read_only:
            self.on_wish_failed(WishFailed(GputuiError("this console only looks on", hint=READ_ONLY_HINT)))
            return
        self.works.watch(self.wishes.add(message.call))

    def on_key(self, event: events.Key) -> None:
        """Say why a key that would change something does nothing in a console that only looks on."""
        if not self._desk.is_read_only or isinstance(self.focused, Input):
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

    def on_work_begun(self, message: WorkBegun) -> None:
        """Show how far it is, where it takes long."""
        self.works.watch(message.work)

    def action_give_up_work(self) -> None:
        """Have the work end whose bar is shown."""
        self.works.give_up()

    def on_wish_done(self, message: WishDone) -> None:
        """Say so."""
        self.pacer.hurry()
        words = self.keymap.words(message.text)
        self.notifier.note("information", words)
        self.notify(plain(words, 300), markup=False, timeout=4)

    def tell_wait(self, sentence: str) -> None:
        """Show, from any thread, whom a write waits for."""
        self._tell(StoreWaits(sentence))

    def on_store_waits(self, message: StoreWaits) -> None:
        """Say for whom; keys go on working, and a wish that waits too long fails."""
        self.notifier.note("warning", message.sentence)
        self.notify(plain(message.sentence, 400), severity="warning", markup=False, timeout=10)

    def on_wish_failed(self, message: WishFailed) -> None:
        """Say what, where, and what to do."""
        error = message.error
        self.notifier.note("error", str(error))
        title = plain(error.where, 80) if error.where else "Not done"
        hint = f"\n{plain(error.hint, 300)}" if error.hint else ""
        self.notify(plain(error.what, 400) + hint, title=title, severity="error", markup=False, timeout=10)

    def _indices(self) -> dict[str, str]:
        return {view.gpu.uuid: index_of(view) for view in self.snapshot.gpus}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what may not be done here."""
        del parameters
        if action == "give_up_work":
            return self.works.shown is not None
        return not (action in CHANGING and self._desk.is_read_only)

    def action_notices(self) -> None:
        """Show all notices in full, and what happened before."""
        from gputui.tui.screens.notices import Notices

        now = self._desk.clock.now()
        self.clear_notifications()  # all of them are told there
        told = (replace(notice, text=self.keymap.words(notice.text)) for notice in notices(self.snapshot, now))
        self.push_screen(Notices(tuple(told), tuple(self.notifier.log), now=now))

    def action_undo(self) -> None:
        """Take the last wish of this console back."""
        self.works.watch(self.wishes.undo())

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        from gputui.tui.commands.offers import offers
        from gputui.tui.screens.palette import Palette

        if isinstance(self.screen, Palette):
            return
        offered = offers(self.screen, only_looks=self._desk.is_read_only)

        def chosen(number: int | None) -> None:
            if number is not None:
                self.call_later(self._do, offered[number].command)

        self.push_screen(Palette(offered), chosen)

    async def _do(self, command: Command) -> None:
        """Not by its key: in the pane that has the focus that may mean another command."""
        if place := place_of(command, self.screen):
            await self.run_action(command.action, default_namespace=place)

    def action_help(self) -> None:
        """Show all keys, those of the focused pane first."""
        from gputui.tui.screens.help import Context, Help

        self.push_screen(Help(Context.of(self.screen)))

    def action_leave(self) -> None:
        """Quit; where the scheduler runs here, as the settings say or the operator answers."""
        if not self.snapshot.leads_here:
            self._leave(Leave.PLAIN)
            return
        said = {"always": Leave.HAND_OVER, "never": Leave.STOP}.get(self._desk.settings.scheduler.hand_over)
        if said is not None:
            self._leave(said)
            return
        from gputui.tui.screens.leave import LeaveDialog

        if not any(isinstance(screen, LeaveDialog) for screen in self.screen_stack):
            self.push_screen(LeaveDialog(), self._leave)

    def _leave(self, how: Leave | None) -> None:
        if how is not None:
            self.wishes.finish(_PATIENCE)
            self.exit(how)
