"""Marks in the output of a command that runs elsewhere: where its own output begins, and its exit code at the end.

Programs on the way to it, such as srun and ssh, write messages of their own and have exit codes of their own. The mark
has a key that nobody can guess, and is a control string that terminals ignore.
"""

from __future__ import annotations

import os
import re

_LONGEST_CODE = 8


class CommandMarks:
    """Finds the marks of one command in its output; with `ends_line` each mark is a line of its own.

    srun passes on the output of a command without a terminal line by line.
    """

    def __init__(self, *, ends_line: bool) -> None:
        self.key = os.urandom(12).hex()
        self.has_begun = False
        self.code: int | None = None
        """Exit code of the command; None: it has not ended."""
        self.words = ""
        """Output before the beginning: messages of the programs on the way."""
        self._start = b"\x1b_gputui:" + self.key.encode() + b":"
        self._mark = re.compile(re.escape(self._start) + rb"(begin|\d{1,3})\x1b\\" + (b"\n" if ends_line else b""))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the part of further output that is the command's; the beginning of a mark is held back."""
        text, passed = self._held + data, b""
        while (match := self._mark.search(text)) is not None:
            passed += self._own(text[: match.start()])
            if match[1] == b"begin":
                self.has_begun = True
            else:
                self.code = int(match[1])
            text = text[match.end() :]
        kept = self._unfinished(text)
        self._held = text[len(text) - kept :]
        return passed + self._own(text[: len(text) - kept])

    def rest(self) -> bytes:
        """Return what was held back, at the end of the output."""
        held, self._held = self._held, b""
        return self._own(held)

    def _own(self, text: bytes) -> bytes:
        if not self.has_begun:
            self.words += text.decode(errors="replace")
        return text if self.has_begun and self.code is None else b""

    def _unfinished(self, text: bytes) -> int:
        """Return the length of the end of the text that may be the beginning of a mark."""
        at = text.rfind(b"\x1b")
        if at < 0:
            return 0
        inside = text.rfind(self._start)
        if inside >= 0 and len(text) - inside <= len(self._start) + _LONGEST_CODE:
            return len(text) - inside
        return len(text) - at if self._start.startswith(text[at:]) else 0
