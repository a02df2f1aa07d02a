"""The console's first picture, as it was the last time: on the screen before what draws it is even imported.

It is drawn before anything is known, so it is the same at every start but for the time, which is put in. Where it is
not, for a setting or a program that changed, the console draws over it a moment later, and the next start has it right.
Nothing of Textual may be imported here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import termios
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

from gputui import __version__

OTHER_SCREEN = "\x1b[?1049h"
_ENTER, _LEAVE = f"{OTHER_SCREEN}\x1b[?7l\x1b[?25l", "\x1b[?25h\x1b[?7h\x1b[?1049l"
"""The other screen, where no line is wrapped and no cursor seen, and back again."""
TIME = "\0"
"""What stands for the time."""
MOST = 16
"""Sizes of terminals that are kept."""
_IFLAG, _LFLAG, _CC = 0, 3, 6
_OFF = b"\0"


class Opening:
    """Has the terminal until the console's driver takes it over; gives it back if that never comes."""

    def __init__(self, directory: Path | None, *look: object) -> None:
        """`look`: all that decides what the picture looks like, beside the size."""
        self.size = shutil.get_terminal_size()
        marks = [os.environ.get(name) for name in ("TERM", "COLORTERM", "NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG")]
        self._mark = f"{zlib.crc32(repr((__version__, marks, look)).encode()):08x}"
        self._path = None if directory is None else directory / f"{self.size.columns}x{self.size.lines}"
        self.attributes: list[Any] | None = None
        """Of the terminal, as they were found; None while it is not ours."""

    def __enter__(self) -> Opening:
        """Show it, where there is one and a terminal to show it on."""
        picture = self.kept()
        if picture is not None and self._take():
            _write(_ENTER + picture)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was, if nobody took it over."""
        if self.attributes is not None:
            _write(_LEAVE)
            termios.tcsetattr(0, termios.TCSANOW, self.hand_over())

    def hand_over(self) -> list[Any]:
        """The terminal is another's from now on; what it was like before all this."""
        attributes, self.attributes = self.attributes, None
        assert attributes is not None
        return attributes

    def kept(self) -> str | None:
        """The picture with the time as it is now; None where none was kept that is like this one."""
        if self._path is None:
            return None
        try:
            head, _, body = self._path.read_text("utf-8").partition("\n")
        except (OSError, ValueError):
            return None
        mark, _, form = head.partition(" ")
        return body.replace(TIME, time.strftime(form)) if mark == self._mark else None

    def keep(self, picture: str, form: str) -> None:
        """Have it for the next time, with the form of the time in it. Blocks."""
        text = f"{self._mark} {form}\n{picture}"
        with contextlib.suppress(OSError, ValueError):
            if self._path is not None and not self._is_kept(text):
                self._replace(self._path, text)

    def _is_kept(self, text: str) -> bool:
        return self._path is not None and self._path.exists() and self._path.read_text("utf-8") == text

    def _replace(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        others = sorted(
            (other for other in path.parent.iterdir() if other != path), key=lambda each: each.stat().st_mtime
        )
        for other in others[: max(0, len(others) - MOST + 1)]:
            other.unlink()
        made = path.with_name(f".{path.name}.{os.getpid()}")
        made.touch(0o600)
        made.write_text(text, "utf-8")
        made.replace(path)

    def _take(self) -> bool:
        """Have keys kept for the console and not shown. Ctrl-C ends the start, as long as nobody reads keys."""
        if "TEXTUAL_DRIVER" in os.environ or not (sys.__stdin__ and sys.__stderr__):
            return False
        try:
            if not os.isatty(2) or os.tcgetpgrp(0) != os.getpgrp():
                return False
            attributes, quiet = termios.tcgetattr(0), termios.tcgetattr(0)
            quiet[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON)
            quiet[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            quiet[_CC][termios.VMIN] = 1
            quiet[_CC][termios.VSUSP] = quiet[_CC][termios.VQUIT] = _OFF  # neither can be while the screen is half ours
            termios.tcsetattr(0, termios.TCSANOW, quiet)
        except (OSError, termios.error):
            return False
        self.attributes = attributes
        return True


def _write(text: str) -> None:
    data = text.encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
