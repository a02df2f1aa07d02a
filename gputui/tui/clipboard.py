"""Copies text to where the user can paste it from, and says where that is: terminals do not confirm a copy."""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from textual.app import App

_PATIENCE = 2.0
"""Seconds that tmux or screen may take."""
_PIECE = 76
"""Characters of a sequence that screen passes on at once."""
SENT = "sent to the terminal's clipboard (OSC 52)"
BETWEEN = f"{SENT}, if tmux or screen between passes it on"
IN_TMUX, IN_SCREEN = "copied to tmux's buffer", "copied to screen's buffer"
NOT_TAKEN = "not copied: this terminal takes no copies, select with Shift and the mouse"


def copy(app: App[Any], text: str, what: str) -> None:
    """Copy text, and tell where it is; `what` names it."""
    if os.environ.get("TMUX"):
        app.run_worker(_copy_in_tmux(app, text, what), group="copy")
    elif session := os.environ.get("STY"):
        app.run_worker(_copy_in_screen(app, text, what, session), group="copy")
    else:
        app.notify(f"{_send(app, text, os.environ)}: {what}")


async def _copy_in_tmux(app: App[Any], text: str, what: str) -> None:
    """Use tmux's own buffer: by default tmux drops OSC 52 of programs, but sends its own to the terminal."""
    for option in (["-w"], []):  # before 3.2 it has no -w
        if await _output("tmux", "load-buffer", *option, "-", text=text) is not None:
            app.copy_to_clipboard(text)  # for fields of the console, and where tmux passes it on
            passes_on = option and await _output("tmux", "show-options", "-sv", "set-clipboard") != "off"
            app.notify(f"{IN_TMUX}, {SENT}: {what}" if passes_on else f"{IN_TMUX}: {what}")
            return
    app.notify(f"{_send(app, text, os.environ)}: {what}")


async def _copy_in_screen(app: App[Any], text: str, what: str, session: str) -> None:
    """Use screen's own buffer as well as the terminal's clipboard."""
    app.write_sequence(through_screen(text))  # type: ignore[attr-defined]  # of our own app
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        await _output("screen", "-S", session, "-X", "readbuf", "-e", "UTF-8", file.name)
        told = await _output("screen", "-S", session, "-Q", "lastmsg")  # it is answered once the file is read
    place = f"{IN_SCREEN}, {SENT}" if told and told.startswith("Slurped") else BETWEEN
    app.notify(f"{place}: {what}")


async def _output(*command: str, text: str = "") -> str | None:
    """Return what the program prints when it gets the text; None if it fails."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=nothing)
    except OSError:
        return None
    try:
        printed, _ = await asyncio.wait_for(process.communicate(text.encode(errors="replace")), _PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return printed.decode(errors="replace").strip() if process.returncode == 0 else None


def _send(app: App[Any], text: str, environ: Mapping[str, str]) -> str:
    """Send the text to the terminal by OSC 52; return what is known of it then."""
    term = environ.get("TERM", "")
    if environ.get("TERM_PROGRAM") == "Apple_Terminal" or term == "linux":
        return NOT_TAKEN
    app.copy_to_clipboard(text)
    return BETWEEN if term.startswith(("screen", "tmux")) else SENT


def through_screen(text: str) -> str:
    """Return OSC 52 as GNU screen passes it on: in short pieces, each in a string of its own."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    pieces = (sequence[start : start + _PIECE] for start in range(0, len(sequence), _PIECE))
    return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
