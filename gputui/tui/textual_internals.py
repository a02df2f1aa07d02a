"""Holds every use of Textual's private API; tests/tui/test_internals.py sees to it that no other module has one.

Each use: its reason; the test that fails when Textual changes what it leans on; the public way that would replace it.

- `HookedApp.prepare` (`_register_child`): widgets get their keys before they are mounted;
  tests/tui/test_commands_keys.py; an event before a widget is mounted.
- `HookedApp.before_end` (`_process_messages_loop`, `_exit`, `_driver`): the app must not end while another program has
  the terminal; tests/e2e/test_failing_screen.py; an `App.suspend` that the app waits for.
- `HookedApp.doer` (`_dispatch_action`): parts of a screen that are no widgets carry out actions, so that the screen
  need not forward them; tests/tui/test_internals.py; action targets that a screen can add.
- `HookedApp.fail` (`_handle_exception`, `_exception`, `_return_code`, `_close_messages_no_wait`): Textual draws all
  variables of a screen that failed; tests/e2e/test_failing_screen.py; a public `App.on_exception`.
- `bindings_of` and its like (`_bindings`): keys of the user's own; tests/tui/test_internals.py; `App.set_keymap`.
- `key_of_character` (`_character_to_key`): names of keys in the settings file; tests/tui/test_commands_keys.py; same.
- `PasteInput` (`_on_paste`): a pasted command line fills the whole form; tests/tui/test_form_screen.py; `Input.paste`.
- `ExactCompositor` (`_compositor`, `_get_renders`, `_dirty_regions`): bytes over SSH, and the cost of a key;
  tests/tui/test_compositor.py; partial updates that are cut at both ends.
- `SeenThrough` (`_compositor_refresh`, `_dirty_regions`, `_dirty_widgets`, `_set_dirty`, `_layout_cache`): what
  changes behind a dialog; tests/tui/test_behind_dialogs.py; partial updates of background screens. (`_extend_compose`):
  a line of messages on every screen; tests/tui/test_messages.py; a hook after `compose`.
- `StylesCache.get_inner_outer`: memory; tests/tui/test_lasting.py; a cache that goes with its widget.
- `NonblockingDriver` (`_writer_thread`, `_file`, `_run_input_thread`): a frozen terminal;
  tests/e2e/test_frozen_line.py; a driver that drops frames. (`_sigtstp_application`, `_loop`, `_auto_restart`):
  Ctrl-Z at any moment; tests/e2e/test_console.py; a driver that handles its signals in the event loop.
- `NonblockingDriver.run_input_thread` (`XTermParser`, `_timeout_time`, `_debug`): ten wake-ups a second; every test on
  a real terminal; a driver that waits for input without a timeout.
- `EscapeParser` (`_sequence_to_key_events`): a key pressed right after Escape; tests/tui/test_input_thread.py; an
  event that tells Escape and a key from Alt with that key.

`App.set_keymap` is not enough for `console.keys`: it ignores a command that should have no key, and takes a shared key
(pause and unpause) from both commands when one is rebound. We keep our own palette because Textual's cannot show
unavailable commands: the name of one would find another, and Enter would run it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, Compositor
from textual._styles_cache import StylesCache
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.binding import Binding
from textual.color import Color
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import Screen
from textual.strip import Strip
from textual.style import Style as CellStyle
from textual.widget import Widget
from textual.widgets import Input

from gputui.domain.text import is_narrow
from gputui.tui.input_queue import KeyAfterEscape, Pastes, read_together
from gputui.tui.terminal import hang_up, has_terminal


class _Look(NamedTuple):
    """Parameters of the sequence that sets a style: attributes, foreground and background."""

    attributes: str = ""
    ink: str = "39"
    ground: str = "49"


_RESET = "\x1b[0m"
_USUAL = _Look()
_SHORT = 16
"""Maximum cells of a run that may be written out of order, beside others with its colours."""


class Pen:
    """Collects runs of cells, and omits colours and positions that the terminal already has.

    Short runs, such as figures and the ends of bars, are written by colour: a cursor move costs less than a change of
    colours.
    """

    def __init__(self, system: ColorSystem | None) -> None:
        self._system = system
        self._short: dict[_Look, list[tuple[int, int, str]]] = {}
        """Short pieces as (x, y, text), by style."""
        self._written: list[str] = []
        self._look = _USUAL
        self._at = (-1, -1)

    def run(self, x: int, y: int, segments: Iterable[Segment]) -> None:
        pieces = [(text, style or Style.null()) for text, style, control in segments if text and not control]
        if sum(cell_len(text) for text, _ in pieces) > _SHORT or any(style.link for _, style in pieces):
            for text, style in pieces:
                shown = text
                if style.link:
                    self._change(_USUAL)
                    shown = style.render(text, color_system=self._system)
                self._put(x, y, shown, _USUAL if style.link else _look_of(style, self._system), cell_len(text))
                x += cell_len(text)
            return
        for text, style in pieces:
            self._short.setdefault(_look_of(style, self._system), []).append((x, y, text))
            x += cell_len(text)

    def text(self) -> str:
        for look, pieces in self._short.items():
            for x, y, text in pieces:
                self._put(x, y, text, look)
        self._short = {}
        self._change(_USUAL)
        return "".join(self._written)

    def _put(self, x: int, y: int, text: str, look: _Look, cells: int | None = None) -> None:
        if (x, y) != self._at:
            self._written.append(f"\x1b[{x + 1}G" if y == self._at[1] else f"\x1b[{y + 1};{x + 1}H")
        self._change(look)
        self._written.append(text)
        is_plain = text.isascii() and cells is None
        self._at = (x + len(text) if is_plain else x + (cell_len(text) if cells is None else cells), y)

    def _change(self, look: _Look) -> None:
        before, self._look = self._look, look
        if look == before:
            return
        if look == _USUAL:
            self._written.append(_RESET)
        elif before.attributes and look.attributes != before.attributes:
            parts = (look.attributes, look.ink if look.ink != "39" else "", look.ground if look.ground != "49" else "")
            self._written.append(f"\x1b[{';'.join(['0', *filter(None, parts)])}m")
        else:
            pairs = zip(before, look, strict=True)
            self._written.append(f"\x1b[{';'.join(after for was, after in pairs if was != after)}m")


@lru_cache(4096)
def _look_of(style: Style, system: ColorSystem | None) -> _Look:
    if system is None:
        return _Look(_attributes(style))
    ink = style.color.downgrade(system).get_ansi_codes(foreground=True) if style.color else ("39",)
    ground = style.bgcolor.downgrade(system).get_ansi_codes(foreground=False) if style.bgcolor else ("49",)
    return _Look(_attributes(style), ";".join(ink), ";".join(ground))


def _attributes(style: Style) -> str:
    sequence, _, _ = style.without_color.render(".", color_system=ColorSystem.STANDARD).partition(".")
    return sequence.removeprefix("\x1b[").removesuffix("m")


def cut(strip: Strip, x: int, parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[Segment]]]:
    """Yield parts of a strip that begins at `x`, from the left, each with its start, in one pass over its segments."""
    segments = [(segment, cell_len(segment.text)) for segment in strip if segment.text and not segment.control]
    place = 0
    for start, end in parts:
        piece: list[Segment] = []
        while place < len(segments) and x < end:
            segment, cells = segments[place]
            first, last = max(0, start - x), min(cells, end - x)
            if x + cells > start:
                if last - first < cells and is_narrow(segment.text):
                    piece.append(Segment(segment.text[first:last], segment.style))
                elif last - first < cells:  # half of a wide character is a space
                    piece.append(segment.split_cells(first)[1].split_cells(last - first)[0])
                else:
                    piece.append(segment)
            if x + cells > end:
                break  # the next part may begin in this segment too
            place, x = place + 1, x + cells
        yield start, piece


def covers(front: Iterable[Region], seen: Region) -> bool:
    return any(region.x <= seen.x and seen.right <= region.right for region in front)


def runs(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of rows that follow one another; one row between two is cheaper drawn than left."""
    first = last = -1
    for row in rows:
        if first < 0:
            first = row
        elif row > last + 2:
            yield first, last
            first = row
        last = row
    if first >= 0:
        yield first, last


class PipedEvent(threading.Event):
    """Event that a selector can wait for too; its files are open from then on until they are closed."""

    _files: tuple[int, ...] = ()
    _is_written = False

    def fileno(self) -> int:
        if not self._files:
            self._files = os.pipe()
        return self._files[0]

    def set(self) -> None:
        if not self.is_set():
            super().set()
            if self._files:
                os.write(self._files[1], b".")
                self._is_written = True

    def clear(self) -> None:
        super().clear()
        if self._is_written:
            os.read(self._files[0], 1)
            self._is_written = False

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files, self._is_written = (), False


# The app

T = TypeVar("T")


class HookedApp(App[T]):
    """An app that prepares its widgets, decides when its loop ends, and handles its own failures."""

    def prepare(self, widget: Widget) -> None:
        """Change a widget before it is mounted."""

    def update_styles(self, node: DOMNode, animate: bool = True) -> None:
        """Style a node and its descendants again; a node that is not mounted yet is styled when it is mounted.

        Textual 8.2 styles a compact line of text while it is constructed, five styles each: a third more work for the
        form.
        """
        if not isinstance(node, Widget) or node.is_attached:
            super().update_styles(node, animate)

    async def before_end(self) -> None:
        """Wait for tasks that must end before the app's loop does."""

    def doer(self, node: DOMNode, action: str) -> Any:
        """Return what has the method of an action: the node, or a part of it that need not be a widget."""
        return node

    async def _dispatch_action(self, namespace: DOMNode, action_name: str, params: Any) -> bool:
        return await super()._dispatch_action(self.doer(namespace, action_name), action_name, params)

    def _register_child(self, parent: DOMNode, child: Widget, before: int | None, after: int | None) -> None:
        self.prepare(child)
        super()._register_child(parent, child, before, after)

    async def _process_messages_loop(self) -> None:
        await super()._process_messages_loop()
        await self.before_end()

    @property
    def is_exiting(self) -> bool:
        return self._exit

    @property
    def failing(self) -> asyncio.Event:
        return self._exception_event

    def write_sequence(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    def close_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def fail(self, error: Exception) -> None:
        super()._handle_exception(error)

    def _handle_exception(self, error: Exception) -> None:
        self.fail(error)

    def end_by(self, error: Exception) -> None:
        """End the app with exit code 1 without drawing anything."""
        self._return_code = 1
        self._exception = error
        self._close_messages_no_wait()
        self.failing.set()


# Keys


def bindings_of(node: DOMNode) -> list[Binding]:
    return [binding for found in node._bindings.key_to_bindings.values() for binding in found]


def bindings_to(node: DOMNode, key: str) -> Sequence[Binding]:
    return node._bindings.key_to_bindings.get(key, ())


def replace_bindings(node: DOMNode, bindings: Iterable[Binding]) -> None:
    node._bindings.key_to_bindings = {}
    for binding in bindings:
        node._bindings.key_to_bindings.setdefault(binding.key, []).append(binding)


def bind_if_free(node: DOMNode, binding: Binding) -> None:
    node._bindings.key_to_bindings.setdefault(binding.key, [binding])


def key_of_character(character: str) -> str:
    from textual.keys import _character_to_key

    return _character_to_key(character)


class PasteInput(Input):
    def pasted(self, event: events.Paste) -> bool:
        return False

    def _on_paste(self, event: events.Paste) -> None:
        if self.pasted(event):
            event.stop()
        else:
            super()._on_paste(event)
        event.prevent_default()


# Drawing


class ExactUpdate(ChopsUpdate):
    """Partial update that sends exactly the cells that changed.

    Textual 8.2 sends a changed part of a line from its start: up to 700 bytes a digit, all that an idle console costs.
    """

    def render_segments(self, console: Console) -> str:
        pen = Pen(console._color_system)
        for y, spans in groupby(self.spans, key=itemgetter(0)):
            ranges = [(x1, x2) for _, x1, x2 in spans]
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                parts = [(max(x, x1), min(end, x2)) for x1, x2 in ranges if x1 < end and x2 > x]
                if strip is None or not parts:
                    continue
                for start, part in cut(strip, x, parts):
                    pen.run(start, y, part)
        return pen.text()


class ExactCompositor(Compositor):
    """Compositor whose partial updates are exact, and that renders no unchanged lines.

    For one changed line Textual's compositor processes all lines of all widgets, which is half the cost of a cursor
    key.
    """

    _changed: list[int] | None = None
    """Rows of the screen to draw, from the top; None for all."""

    def render_partial_update(self) -> ChopsUpdate | None:
        self._changed = sorted({row for region in self._dirty_regions for row in region.line_range})
        try:
            update = super().render_partial_update()
        finally:
            self._changed = None
        return None if update is None else ExactUpdate(update.chops, update.spans, update.chop_ends)

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """Yield each widget's region, the part of it that is drawn, and its lines there."""
        if self._changed is None:
            yield from super()._get_renders(crop)
            return
        covered: dict[int, list[Region]] = {}
        """Regions of the widgets before, by row: from front to back, and each draws all its cells."""
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            rows = [row for row in self._changed if seen.y <= row < seen.bottom] if seen.width else []
            rows = [row for row in rows if not covers(covered.setdefault(row, []), seen)]
            for row in rows:
                covered[row].append(seen)
            for first, last in runs(rows):
                part = Region(seen.x, first, seen.width, last - first + 1)
                yield region, part, widget.render_lines(part.translate(-region.offset))


if TYPE_CHECKING:
    from textual.screen import Screen as Base
else:
    Base = Generic  # styles are inherited from the first widget base, which a mixin must not be


class SeenThrough(Base[T]):
    """Screen that sends exactly the cells that changed, also while it is behind dialogs.

    For each change behind a dialog Textual 8.2 draws the whole screen, and drops what changes in the dialog meanwhile.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._compositor = ExactCompositor()
        replace_bindings(self, [each for each in bindings_of(self) if each.action != "screen.copy_text"])

    def edge(self) -> Iterable[Widget]:
        return ()

    def _extend_compose(self, widgets: list[Widget]) -> None:
        widgets.extend(self.edge())  # in place of Textual's toasts and tooltip, which nothing here uses

    @property
    def is_in_sight(self) -> bool:
        """Return whether it is in front, or behind dialogs alone: they leave it visible, so that it must go on."""
        return self.is_attached and all(screen.is_modal for screen in self._in_front)

    @property
    def _in_front(self) -> Sequence[Screen[Any]]:
        """The screens in front of this one, the nearest first; itself if it is closed."""
        stack = self.app.screen_stack
        return stack[stack.index(self) + 1 :] if self in stack else stack[:1]

    def render(self) -> Any:
        stack, ground = self.app.screen_stack, self.styles.background
        place = stack.index(self) if self in stack else 0
        return BackgroundScreen(stack[place - 1], ground) if place and ground.a < 1 else super().render()

    def _compositor_refresh(self) -> None:
        front = next(iter(self._in_front), None)
        if front is None or not self.is_in_sight:
            super()._compositor_refresh()
            return
        regions = self._compositor._dirty_regions
        if regions:
            front._layout_cache.clear()
            front._set_dirty(*regions)
            front._dirty_widgets.add(front)
            front.check_idle()
            regions.clear()


@lru_cache(1024)
def _inner_outer(base_background: Color, background: Color) -> tuple[CellStyle, CellStyle]:
    """Return the background inside a widget's border, and that around it.

    Textual 8.2 caches them by the object that holds a widget's lines: closed screens stayed in memory.
    """
    return CellStyle(background=base_background + background), CellStyle(background=base_background)


StylesCache.get_inner_outer = staticmethod(_inner_outer)  # type: ignore[assignment]

# The terminal

SHORT = 64
"""Maximum characters of a write that sets a terminal mode rather than drawing, and is never dropped."""
MOST = 20
"""Maximum number of frames that may wait for the terminal."""
_PARTING = 1.0
"""Seconds that the last writes may take."""
_HALF_READ = 0.05
"""Seconds between two looks whether the rest of a key's sequence is overdue: Escape alone begins all of them."""


class NonblockingWriter(WriterThread):
    """Thread that writes to the terminal; reports once that it is gone, and writes nothing after that."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        super().__init__(file)
        self._queue.maxsize = 0  # `takes` limits the queue: no thread may block on it
        self._lost = lost

    def takes(self, text: str) -> bool:
        return len(text) <= SHORT or self._queue.qsize() < MOST

    def run(self) -> None:
        try:
            super().run()
        except (OSError, ValueError):  # a terminal that was removed; a closed file
            self._lost()
            while self._queue.get() is not None:
                pass

    def stop(self) -> None:
        """Stop once everything is written, or after a second if the terminal does not accept it."""
        self._queue.put(None)
        self.join(_PARTING)


class EscapeParser(XTermParser):
    """Parser that marks keys which came with an Escape before them.

    Textual 8.2 takes Escape and a letter in one read for Alt with that letter, and drops an Escape before other keys:
    over a slow line Escape and Enter would commit what Escape alone leaves. Escape and Tab stay Shift-Tab, which the
    kernel's own console sends so.
    """

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        found = super()._sequence_to_key_events(sequence, alt)
        is_pair = len(sequence) == 2 and sequence[0] == "\x1b" and sequence != "\x1b\t"
        if not alt and not is_pair:
            return found
        alone = super()._sequence_to_key_events(sequence[-1])
        return [KeyAfterEscape(*pair) for pair in zip(found, alone, strict=False)]


class NonblockingDriver(LinuxDriver):
    """Driver that never waits for the terminal, detects when it is gone, and sleeps until there is a key.

    Textual's own driver waits until the terminal has accepted the last frame. One that no longer accepts any (a closed
    laptop: for hours, until TCP gives up) would stop the event loop, which also handles SIGTERM and SIGHUP.
    """

    _writer: NonblockingWriter | None = None
    _skipped = False
    """True if a frame was dropped, so that the terminal needs a full redraw."""
    _is_on = False
    _is_stopped = False
    _stopping: asyncio.Handle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ending = self.exit_event = PipedEvent()
        # In the loop: a handler that interrupts any code would wait for ever for a lock which that code holds.
        self._loop.add_signal_handler(signal.SIGTSTP, self._plan_stop)
        self._loop.add_signal_handler(signal.SIGCONT, self._continue)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the app begins with.

        Textual takes another one for a terminal that reports none (0 x 0), and would switch between the two for ever.
        """
        return self._app.console.size

    @property
    def _writer_thread(self) -> NonblockingWriter | None:
        return self._writer

    @_writer_thread.setter
    def _writer_thread(self, writer: WriterThread | None) -> None:
        assert self._file is not None
        self._writer = None if writer is None else NonblockingWriter(self._file, hang_up)

    def write(self, data: str) -> None:
        """Queue the data, or drop it while the terminal accepts nothing."""
        writer = self._writer
        assert writer is not None, "not in application mode"
        if not writer.takes(data):
            self._skipped = True
            return
        writer.write(data)
        if self._skipped and len(data) > SHORT:
            self._skipped = False
            self._app.call_later(self._app.refresh, layout=True)

    def start_application_mode(self) -> None:
        self._is_on = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        """Restore the terminal, unless it is lent to another program."""
        if self._is_on:
            super().stop_application_mode()
            self._is_on = False

    def close(self) -> None:
        """Write the queued data, and end; restores the terminal after a failed start."""
        with contextlib.suppress(Exception):
            self.stop_application_mode()
        super().close()
        self._ending.close()

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - a border: the thread's
            self._app.call_later(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """Pass keys on until input is disabled. Textual's own looks ten times a second whether it is."""
        parser, decode = EscapeParser(self._debug), getincrementaldecoder("utf-8")().decode
        pastes = Pastes()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._ending, selectors.EVENT_READ)
            while not self._ending.is_set():
                is_half_read = parser._timeout_time is not None
                ready = {key.fileobj for key, _ in selector.select(_HALF_READ if is_half_read else None)}
                if self.fileno in ready:
                    data = read_together(self.fileno, selector)
                    if not data:  # the terminal is gone: there is nothing to wait for but the end
                        selector.unregister(self.fileno)
                    for message in pastes.read(parser.feed(decode(data)) if data else (), time.monotonic()):
                        self.process_message(message)
                    continue  # the rest of a sequence may be there by now: a slow machine must not read it as keys
                for message in parser.tick():
                    self.process_message(message)

    def _plan_stop(self) -> None:
        def stop() -> None:
            self._is_stopped = self._auto_restart
            self._sigtstp_application()

        self._stopping = self._loop.call_soon(stop)

    def _continue(self) -> None:
        """Continue after Ctrl-Z, or do not stop. The signal also comes with a hang-up: then nothing can continue."""
        if self._stopping is not None:
            self._stopping.cancel()
        if not self._auto_restart or not has_terminal(self.fileno):
            return
        if not self._is_stopped:  # another SIGSTOP: the shell may have reset the terminal meanwhile
            self.suspend_application_mode()
        self._is_stopped = False
        self.resume_application_mode()
        self._app.call_later(self._app.refresh, layout=True)  # the alternate screen is empty afterwards


def nonblocking(driver: type[Driver]) -> type[Driver]:
    """Return the console's own driver in place of Textual's for a terminal; any other driver unchanged."""
    return NonblockingDriver if driver is LinuxDriver else driver
