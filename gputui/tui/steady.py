"""A driver that a terminal cannot stop: a console on a frozen line still hears that it is to end, and hands over.

Textual's own waits until the terminal has taken the last picture. A terminal that takes nothing any more (a laptop
that was closed, a link that is down: for hours, until TCP gives up) would stop the screen's event loop, which handles
SIGTERM and SIGHUP too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable
from typing import IO

from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver

SHORT = 64
"""Characters up to which it is no picture: modes of the terminal, which are never left out."""
MOST = 20
"""Pictures that may wait for the terminal."""
_PARTING = 1.0
"""Seconds for which the last words may take."""


class SteadyWriter(WriterThread):
    """Writes what it is given; a terminal that is gone is told of, once, and sent nothing more."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        super().__init__(file)
        self._queue.maxsize = 0  # how much may wait is for `takes` to say, and nobody is to wait for it
        self._lost = lost

    def takes(self, text: str) -> bool:
        """Whether that may be given to it now."""
        return len(text) <= SHORT or self._queue.qsize() < MOST

    def run(self) -> None:
        """Write until it is stopped."""
        try:
            super().run()
        except (OSError, ValueError):  # a terminal that was taken away; a file that was closed
            self._lost()
            while self._queue.get() is not None:
                pass

    def stop(self) -> None:
        """Stop, once all is written or the terminal does not take it."""
        self._queue.put(None)
        self.join(_PARTING)


class SteadyDriver(LinuxDriver):
    """Textual's own, which never waits for the terminal, and knows when it is gone."""

    _writer: SteadyWriter | None = None
    _skipped = False
    """The terminal lacks a picture: it needs a whole one."""
    _is_on = False
    """It has the terminal."""
    _is_stopped = False
    """By Ctrl-Z."""

    @property
    def _writer_thread(self) -> SteadyWriter | None:
        return self._writer

    @_writer_thread.setter
    def _writer_thread(self, writer: WriterThread | None) -> None:
        """Textual makes its own, and starts it only then."""
        assert self._file is not None
        self._writer = None if writer is None else SteadyWriter(self._file, hung_up)

    def write(self, data: str) -> None:
        """Hand it over, or leave it out while the terminal takes nothing."""
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
        """Begin, and know so: what failed at half must be undone too."""
        self._is_on = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        """Give the terminal back, if it is ours: while it is lent to another program there is nothing to undo."""
        if self._is_on:
            super().stop_application_mode()
            self._is_on = False

    def close(self) -> None:
        """Write what is left to be written, and end; first give back what is still held, where a start failed."""
        with contextlib.suppress(Exception):
            self.stop_application_mode()
        super().close()

    def _run_input_thread(self) -> None:
        """Read keys; a failure goes where those of the screen go."""
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - a border: the thread's
            self._app.call_later(self._app._handle_exception, error)

    def _sigtstp_application(self, *_: object) -> None:
        self._is_stopped = self._auto_restart
        super()._sigtstp_application()

    def _sigcont_application(self, *_: object) -> None:
        """Go on after Ctrl-Z. The signal comes with a hang-up too, and then there is nothing to go on with."""
        if not self._auto_restart or not is_there(self.fileno):
            return
        if not self._is_stopped:  # somebody else's SIGSTOP: the shell may have set the terminal back meanwhile
            self.suspend_application_mode()
        self._is_stopped = False
        self.resume_application_mode()
        self._app.call_later(self._app.refresh, layout=True)  # the other screen comes back empty


def steady(driver: type[Driver]) -> type[Driver]:
    """The console's own driver for a terminal; that of anything else as it is."""
    return SteadyDriver if driver is LinuxDriver else driver


def is_there(fileno: int) -> bool:
    """Whether that is a terminal still."""
    try:
        termios.tcgetattr(fileno)
    except termios.error:
        return False
    return True


def hung_up() -> None:
    """Tell it as the kernel does as a rule, but not to a program that has no part in its terminal's session."""
    os.kill(os.getpid(), signal.SIGHUP)
