"""Reads the frames that a browser sends: textual-serve's protocol, a JSON list with a type in front."""

from __future__ import annotations

import json
from typing import Any

from gputui.tui.web.viewer import Viewer


class BadFrameError(Exception):
    """A frame that no page of ours sends."""


def parse(text: str) -> tuple[str, Any]:
    """Return type and content of a frame; the content of a type that is not known is not looked at."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrameError("not JSON") from error
    if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
        raise BadFrameError("expected a list that begins with a type")
    kind, content = frame[0], frame[1] if len(frame) > 1 else None
    if kind == "stdin" and not isinstance(content, str):
        raise BadFrameError("expected a text")
    if kind == "resize":
        content = _size(content)
    return kind, content


def _size(content: object) -> tuple[int, int]:
    width, height = (content.get("width"), content.get("height")) if isinstance(content, dict) else (None, None)
    if type(width) is not int or type(height) is not int:
        raise BadFrameError("expected a width and a height")
    return width, height


async def obey(kind: str, content: Any, viewer: Viewer) -> None:
    """Pass a frame on to the console."""
    if kind == "stdin":
        await viewer.send_bytes(content.encode("utf-8", "replace"))
    elif kind == "resize":
        await viewer.set_terminal_size(*content)
    elif kind == "blur":
        await viewer.blur()
    elif kind == "focus":
        await viewer.focus()
