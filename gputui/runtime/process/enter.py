"""Becomes a command inside a host job: `python -I -m gputui.runtime.process.enter FOLDER tty|pipes TERM COMMAND...`.

FOLDER is an open descriptor of the attempt's directory. The command gets the job's environment, working directory,
limits, control groups and user, as specified in its plan. Standard library only, like the wrapper.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from typing import NoReturn

from gputui.runtime.process import wrapper

NOT_RUN = 126
NOT_FOUND = 127


def main() -> None:
    """Run the command in place of this process; exit with 126 or 127 if it cannot be run."""
    try:
        descriptor, streams, term, *command = sys.argv[1:]
        place = int(descriptor)
        os.set_inheritable(place, False)  # the command gets none of our descriptors
        owner = os.fstat(place)
    except (ValueError, OSError) as error:
        _refuse(f"wrong arguments: {error}", NOT_RUN)
    if not command or streams not in {"tty", "pipes"}:
        _refuse("wrong arguments: FOLDER tty|pipes TERM COMMAND... are wanted", NOT_RUN)
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        _refuse("another user could have written the plan of this job", NOT_RUN)
    try:
        plan = wrapper.read_plan(place)
    except OSError as error:
        _refuse(f"the plan of this job cannot be read: {error.strerror}", NOT_RUN)
    plan[b"arg"] = [os.fsencode(word) for word in command]
    os.setsid()  # otherwise the command could type into the caller's terminal
    if streams == "tty":
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        plan[b"env"] = [*plan[b"env"], b"TERM=" + os.fsencode(term)]
    step = [b"start"]
    try:
        wrapper.become(plan, step)
    except FileNotFoundError:
        _refuse(f"{command[0]}: command not found", NOT_FOUND)
    except (OSError, ValueError) as error:
        what = command[0] if step == [b"command"] else step[0].decode()
        _refuse(f"{what}: {getattr(error, 'strerror', None) or error}", NOT_RUN)


def _refuse(words: str, code: int) -> NoReturn:
    os.write(2, f"gputui exec: {words}\n".encode(errors="replace"))
    os._exit(code)


if __name__ == "__main__":
    main()
