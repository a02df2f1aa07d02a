"""Marks around the output of a command that runs elsewhere: where its own output begins, and its exit code at the end.

Programs on the way, such as login shells, ssh and srun, have lines and exit codes of their own. A mark has a key that
nobody can guess, and is a control string that terminals ignore.
"""

from __future__ import annotations

import os
import re

from gputui.domain.text import plain

SHELL_SAYS = "its login shell prints lines around each command, which are left out: {!r}"
_LONGEST_CODE = 8
_MOST_WORDS = 4096
"""Characters of what others print that are kept: the last ones, since errors come last."""
_AROUND = """{{ set +xv; }} 2>/dev/null
gputui_mark() {{ printf '\\033_gputui:{key}:%s\\033\\134\\n' "$1"; }}
trap : INT QUIT
gputui_mark begin; gputui_mark begin >&2
(
{script}
)
set -- $?; gputui_mark "$1"; gputui_mark "$1" >&2; exit "$1"
"""
"""Ctrl-C reaches these lines too, which have to outlive the command to tell its exit code."""


class CommandMarks:
    """Finds the marks of one command in a stream of its output; with `ends_line` each mark is a line of its own.

    srun passes on the output of a command without a terminal line by line.
    """

    def __init__(self, *, ends_line: bool = True, key: str = "") -> None:
        """`key` is that of the marks of another stream of the same command."""
        self.key = key or os.urandom(12).hex()
        self.has_begun = False
        self.code: int | None = None
        """Exit code of the command; None: it has not ended."""
        self.words = ""
        """The last of the output before the beginning: messages of the programs on the way."""
        self._after = ""
        self._start = b"\x1b_gputui:" + self.key.encode() + b":"
        self._mark = re.compile(re.escape(self._start) + rb"(begin|\d{1,3})\x1b\\" + (rb"\r?\n" if ends_line else b""))
        self._held = b""

    def around(self, script: str) -> str:
        """Return lines of sh that run these between marks on standard output and standard error."""
        return _AROUND.format(key=self.key, script=script)

    def before(self, script: str) -> str:
        """Return lines of sh that run these after a mark on standard output, which stays without an end."""
        return f"printf '\\033_gputui:{self.key}:begin\\033\\134\\n'; {script}"

    def whole(self, output: bytes) -> bytes:
        """Return the part of all output that is the command's; a terminal on the way changes its ends of line."""
        own = self.feed(output) + self.rest()
        return own.replace(b"\r\n", b"\n") if self._start + b"begin\x1b\\\r\n" in output else own

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

    def first(self, data: bytes) -> bytes:
        """Return the command's part of further output, with nothing held back once it has begun."""
        own = self.feed(data)
        return own + self.rest() if self.has_begun else own

    def rest(self) -> bytes:
        """Return what was held back, at the end of the output."""
        held, self._held = self._held, b""
        return self._own(held)

    def told(self, most: int = 60) -> str:
        """Return the last line of what programs on the way printed; empty if they printed nothing."""
        lines = [line for line in f"{self._after}\n{self.words}".splitlines() if line.strip()]
        return plain(lines[-1].strip(), most) if lines else ""

    def _own(self, text: bytes) -> bytes:
        if self.has_begun and self.code is None:
            return text
        words = text[-4 * _MOST_WORDS :].decode(errors="replace")
        if self.has_begun:
            self._after = (self._after + words)[-_MOST_WORDS:]
        else:
            self.words = (self.words + words)[-_MOST_WORDS:]
        return b""

    def _unfinished(self, text: bytes) -> int:
        """Return the length of the end of the text that may be the beginning of a mark."""
        at = text.rfind(b"\x1b")
        if at < 0:
            return 0
        inside = text.rfind(self._start)
        if inside >= 0 and len(text) - inside <= len(self._start) + _LONGEST_CODE:
            return len(text) - inside
        return len(text) - at if self._start.startswith(text[at:]) else 0
