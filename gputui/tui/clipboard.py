"""Copies text to where the user can paste it from, and says where that is: terminals do not confirm a copy."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from typing import Any

from textual.app import App

_PATIENCE = 2.0
"""Seconds that tmux may take."""
_PIECE = 76
"""Characters of a sequence that screen passes on at once."""
IN_TMUX = "copied to tmux's buffer"
SENT = "sent to the terminal's clipboard"
BETWEEN = "sent to the terminal, if tmux or screen between passes it on"
NOT_TAKEN = "not copied: this terminal takes no copies, select with Shift and the mouse"


def copy(app: App[Any], text: str, what: str) -> None:
    """Copy text, and tell where it is; `what` names it."""
    if os.environ.get("TMUX"):
        app.run_worker(_copy_in_tmux(app, text, what), group="copy")
    else:
        _tell(app, _send(app, text, os.environ), what)


async def _copy_in_tmux(app: App[Any], text: str, what: str) -> None:
    """Use tmux's own buffer: by default tmux drops OSC 52 of programs, but sends its own to the terminal."""
    for option in (["-w"], []):  # before 3.2 it has no -w
        if await _loaded(["tmux", "load-buffer", *option, "-"], text):
            app.copy_to_clipboard(text)  # for fields of the console, and where tmux passes it on
            _tell(app, IN_TMUX, what)
            return
    _tell(app, _send(app, text, os.environ), what)


async def _loaded(arguments: list[str], text: str) -> bool:
    """Return whether the program took the text."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=nothing, stderr=nothing)
    except OSError:
        return False
    try:
        await asyncio.wait_for(process.communicate(text.encode()), _PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
    return process.returncode == 0


def _send(app: App[Any], text: str, environ: Mapping[str, str]) -> str:
    """Send the text to the terminal by OSC 52; return what is known of it then."""
    term = environ.get("TERM", "")
    if environ.get("TERM_PROGRAM") == "Apple_Terminal" or term == "linux":
        return NOT_TAKEN
    if environ.get("STY"):
        app.write_sequence(through_screen(text))  # type: ignore[attr-defined]  # of our own app
        return BETWEEN
    app.copy_to_clipboard(text)
    return BETWEEN if term.startswith(("screen", "tmux")) else SENT


def through_screen(text: str) -> str:
    """Return OSC 52 as GNU screen passes it on: in short pieces, each in a string of its own."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    pieces = (sequence[start : start + _PIECE] for start in range(0, len(sequence), _PIECE))
    return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)


def _tell(app: App[Any], place: str, what: str) -> None:
    app.notify(f"{place}: {what}", markup=False, timeout=4)
