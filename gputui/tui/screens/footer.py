"""Keys in the last line of the main screen: those of the focused pane come first."""

from __future__ import annotations

from collections.abc import Callable

from gputui.tui.commands import (
    APP_COMMANDS,
    EDIT_COMMANDS,
    GPU,
    GPU_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    PANE_COMMANDS,
    QUEUE_COMMANDS,
    SUBMIT,
    Command,
)

_BY_NAME = {command.name: command for command in (*EDIT_COMMANDS, *PANE_COMMANDS, *LOG_JOB_COMMANDS, *MAIN_COMMANDS)}
_OF_LOG = (_BY_NAME["follow"], *LOG_COMMANDS, _BY_NAME["error"], _BY_NAME["pin_log"])
_OF_GPUS = (GPU, *GPU_COMMANDS, _BY_NAME["follow"], _BY_NAME["reserve"], _BY_NAME["gpu_view"])
_FIRST = {"gpus": _OF_GPUS, "log": tuple(c for c in _OF_LOG if c.in_footer or c.name == "pin_log")}
"""Commands of each pane that come first; in the queue those about jobs do anyway."""
_OTHERS = tuple(c for c in (*MAIN_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS) if c.in_footer and c is not SUBMIT)
_ALWAYS = tuple(c for c in (SUBMIT, *APP_COMMANDS) if c.in_footer)


def footer(pane: str | None, works: Callable[[Command], bool]) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """Return the commands that work while a pane has the focus, and those at the right end, which always do."""
    wanted = dict.fromkeys((*_FIRST.get(pane or "", ()), *_OTHERS))
    return tuple(filter(works, wanted)), tuple(filter(works, _ALWAYS))
