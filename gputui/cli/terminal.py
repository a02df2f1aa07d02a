"""Whether there is a terminal for a console to be on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gputui.domain.errors import GputuiError

_HINT = "gputui top prints one picture, gputui serve schedules without a screen"


def check_terminal(environ: Mapping[str, str] = os.environ) -> None:
    """Raise where nobody could see the console, or quit it: its keys come from file 0, its pictures go to file 2."""
    if environ.get("TEXTUAL_DRIVER"):
        return  # somebody drives it who is no terminal: the browser's server
    if not (os.isatty(0) and os.isatty(2)):
        raise GputuiError("the console needs a terminal (over ssh: ssh -t)", hint=_HINT)
    if environ.get("TERM", "") == "dumb":
        raise GputuiError("this terminal cannot move its cursor (TERM=dumb)", hint=_HINT)
