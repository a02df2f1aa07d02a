"""Records a session of `gputui demo` at a terminal of its own, as screenshots/demo.cast; with --check, plays it back.

The file is an asciicast, version 2 (docs.asciinema.org/manual/asciicast/v2): a header, then one line for each piece of
output with its second. `asciinema play screenshots/demo.cast` shows it. A recording is never the same twice, so what is
checked is that it is whole and shows what it is meant to.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CAST = ROOT / "screenshots" / "demo.cast"
COLUMNS, LINES = 120, 36
QUIET = 1.5
"""Maximum seconds of a pause in the recording; longer ones are shortened."""
SCRIPT: tuple[tuple[float, bytes, str], ...] = (
    (12.0, b"", "GPUs, queue and a log"),
    (2.0, b"M", "GPU graphs over 10 minutes"),
    (2.0, b"M", "and over an hour"),
    (1.0, b"M", "back to the last minute"),
    (1.5, b"jjjjj", "a job that waits"),
    (1.5, b"+", "what would a higher priority change?"),
    (2.0, b"+", "and a higher one still"),
    (2.5, b"\r", "commit"),
    (2.0, b"u", "take it back"),
    (3.0, b"T", "what is planned"),
    (1.0, b"\x1b", "back"),
    (3.0, b"\r", "everything about the job, and why it waits"),
    (1.0, b"\x1b", "back"),
    (3.0, b"i", "the GPU of a running job"),
    (1.0, b"\x1b", "back"),
    (3.0, b"U", "all processes on the GPUs"),
    (1.0, b"\x1b", "back"),
    (0.5, b"/", "only some jobs"),
    (2.0, b"state:r gpus>=2", "a filter"),
    (1.5, b"\r", "take it"),
    (1.0, b"\x1b", "all again"),
    (2.5, b"?", "all keys"),
    (1.0, b"\x1b", "back"),
    (1.5, b"q", "quit"),
    (1.5, b"", "the end"),
)
SHOWN = ("scheduling", "UTL", "What if", "Timeline", "GPU USERS", "state:r gpus>=2")
"""Texts that a complete recording shows somewhere."""
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|[\]PX^_].*?(?:\x1b\\|\x07)|[ -/]*[0-~])", re.DOTALL)


def record(python: Path) -> Iterator[tuple[float, str]]:
    """Return the pieces of output with their times in seconds."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT), "TZ": "UTC"}
        os.execv(python, [str(python), "-m", "gputui", "demo"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    began = time.monotonic()
    kept = b""
    for pause, keys, _ in SCRIPT:
        if keys:
            os.write(terminal, keys)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            if not select.select([terminal], [], [], left)[0]:
                continue
            try:
                kept += os.read(terminal, 65536)
            except OSError:  # the console has gone
                break
            text, kept = _whole(kept)
            yield time.monotonic() - began, text
    os.waitpid(pid, 0)


def _whole(data: bytes) -> tuple[str, bytes]:
    """Return the decoded text and the incomplete character at its end."""
    for cut in range(min(4, len(data)) + 1):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


def shortened(events: Iterator[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Return the pieces with long pauses shortened."""
    before = lost = 0.0
    for at, text in events:
        lost += max(0.0, at - before - QUIET)
        before = at
        yield at - lost, text


def write() -> None:
    """Record a session and write the file."""
    header = {
        "version": 2,
        "width": COLUMNS,
        "height": LINES,
        "title": "gputui demo",
        "env": {"TERM": "xterm-256color"},
    }
    lines = [json.dumps(header)]
    with tempfile.TemporaryDirectory(prefix="gputui-") as place:  # by a name that tells nothing of this machine
        (venv := Path(place) / "venv").symlink_to(sys.prefix)
        pieces = shortened(record(venv / "bin" / "python"))
        lines += [json.dumps([round(at, 3), "o", text]) for at, text in pieces]
    CAST.write_text("\n".join(lines) + "\n")


def faults(text: str) -> Iterator[str]:
    """Return the faults of a recording."""
    header, *rows = [json.loads(line) for line in text.splitlines()]
    if (header["version"], header["width"], header["height"]) != (2, COLUMNS, LINES):
        yield "its header is another one"
    yield from _disorder(rows)
    words = _SEQUENCE.sub(" ", "".join(row[2] for row in rows))
    squeezed = re.sub(r"\s+", "", words)
    yield from (f"it never shows {wanted!r}" for wanted in SHOWN if re.sub(r"\s+", "", wanted) not in squeezed)
    if str(ROOT) in words:
        yield "it names the place it was made at"


def _disorder(rows: list[Any]) -> Iterator[str]:
    times = [row[0] for row in rows]
    if len(rows) < 50 or times[-1] < 15:
        yield "it is too short"
    if times != sorted(times) or any(row[1] != "o" for row in rows):
        yield "its pieces are out of order"


def main(check: bool) -> int:
    """Record a session, or check the existing recording."""
    if not check:
        write()
    found = list(faults(CAST.read_text()))
    print(f"{CAST.name}: {'; '.join(found) or 'whole'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
