"""Why a command could not be run, from the wrapper's words."""

from __future__ import annotations

import errno
import os

from gputui.domain.cause import Cause, CauseCode

CODES = frozenset(
    {CauseCode.COMMAND_NOT_FOUND, CauseCode.COMMAND_NOT_EXECUTABLE, CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR}
)
_STEPS = {
    "workdir": "its working directory",
    "user": "the change to its user",
    "ulimit": "one of its ulimits",
}


def cause_of(refusal: str, command: str) -> Cause:
    """The cause for `STEP ERRNO`."""
    step, _, number = refusal.partition(" ")
    code = int(number) if number.isdigit() else 0
    words = os.strerror(code) if code else "not possible"
    if step == "runner":
        return Cause(CauseCode.RUNTIME_ERROR, "its runner was killed before the command began")
    if step in _STEPS:
        return Cause(CauseCode.BAD_SPEC, f"{_STEPS[step]} was refused: {words}")
    if step != "command":
        return Cause(CauseCode.RUNTIME_ERROR, f"the host could not run it ({step}): {words}")
    if code in {errno.ENOENT, errno.ENOTDIR}:
        return Cause(CauseCode.COMMAND_NOT_FOUND, f"the command {command} was not found on this host")
    return Cause(CauseCode.COMMAND_NOT_EXECUTABLE, f"the command {command} could not be executed: {words}")
