"""Pulls of images in processes of their own: a pull that hangs, for hours if need be, can be ended at any moment.

docker-py waits without a limit for a registry that does not answer, and a call that blocks in a thread cannot be
ended. The engine gives a pull up as soon as the connection that asked for it is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.domain.units import format_duration

_LOOK_EVERY = 0.2
"""Seconds between two looks whether the pull is still wanted."""
_TELL_STALL_AFTER = 60.0
"""Seconds without progress after which the words tell of it."""
_SAY_EVERY = 1.0
"""Seconds between two signs of progress that change no word."""


class Asked(msgspec.Struct):
    """The question to the process, as a line of JSON."""

    image: str
    settings: RuntimeSettings


class Said(msgspec.Struct, omit_defaults=True):
    """Answer of the pull process, as a line of JSON; an empty one is a sign of progress."""

    words: str | None = None
    cause: Cause | None = None
    """The cause of its failure: the last answer."""
    hint: str | None = None
    is_done: bool = False
    """The image is here: the last answer."""


class PullProcess:
    """Pull of one image by a process of its own."""

    def __init__(self, image: str, settings: RuntimeSettings) -> None:
        self._image = image
        self._settings = settings
        self._words = "pulling"
        self._moved_at = time.monotonic()
        self._told = ""

    def run(self, tell: Callable[[str], None], cancelled: threading.Event) -> None:
        """Pull, and return once the image is here.

        Raises RuntimeFault when the engine or the registry refuses, when there is no progress for
        `RuntimeSettings.pull_stall`, and when `cancelled` is set.
        """
        process = self._start()
        try:
            self._follow(process, tell, cancelled)
        finally:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a json.py in the directory where gputui was started is not to be imported instead of Python's own
        command = [sys.executable, "-P", "-m", "gputui.runtime.docker_pull_process"]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0, start_new_session=True)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(Asked(self._image, self._settings)) + b"\n")
        return process

    def _follow(
        self, process: subprocess.Popen[bytes], tell: Callable[[str], None], cancelled: threading.Event
    ) -> None:
        assert process.stdout is not None
        descriptor, rest = process.stdout.fileno(), b""
        while True:
            if cancelled.is_set():
                raise RuntimeFault(Cause(CauseCode.CANCELLED, f"the pull of {self._image} was cancelled"))
            if select.select([descriptor], [], [], _LOOK_EVERY)[0]:
                if not (data := os.read(descriptor, 65536)):
                    raise self._failed(f"the pull ended with code {process.wait()}")
                *lines, rest = (rest + data).split(b"\n")
                if any(self._hear(line) for line in lines):
                    return
            self._tell(tell)

    def _hear(self, line: bytes) -> bool:
        """Take one answer; return whether the image is here. Raises the RuntimeFault that it tells of."""
        said = msgspec.json.decode(line, type=Said)
        self._moved_at = time.monotonic()
        self._words = said.words or self._words
        if said.cause is not None and said.cause.code is CauseCode.RUNTIME_UNAVAILABLE:
            raise RuntimeUnavailableError(said.cause.text, hint=said.hint)
        if said.cause is not None:
            raise RuntimeFault(said.cause, hint=said.hint)
        return said.is_done

    def _tell(self, tell: Callable[[str], None]) -> None:
        """Tell the progress where it changed; raises RuntimeFault where there is none for too long."""
        idle = time.monotonic() - self._moved_at
        if idle > self._settings.pull_stall.total_seconds():
            raise self._failed(f"no progress for {format_duration(self._settings.pull_stall)}")
        words = self._words
        if idle >= _TELL_STALL_AFTER:
            words = f"{words}, no progress for {format_duration(timedelta(seconds=idle // 10 * 10))}"
        if words != self._told:
            self._told = words
            tell(words)

    def _failed(self, why: str) -> RuntimeFault:
        cause = Cause(CauseCode.PULL_FAILED, f"cannot pull {self._image}: {why}")
        return RuntimeFault(cause, hint="does the registry answer?")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and the ssh that it may have begun; collect it without waiting for long."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:  # it is stuck in the kernel
        threading.Thread(target=process.wait, name="pull-undertaker", daemon=True).start()


def main() -> None:
    """Pull one image for the process that started this one; end with it."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    said_at = 0.0

    def tell(words: str | None) -> None:
        nonlocal said_at
        if words is not None or time.monotonic() - said_at >= _SAY_EVERY:
            said_at = time.monotonic()
            _say(Said(words))

    _say(_pulled(asked, tell))


def _pulled(asked: Asked, tell: Callable[[str | None], None]) -> Said:
    """Pull; return the last answer."""
    from gputui.runtime.docker_connection import Connection
    from gputui.runtime.docker_pull import pull

    try:
        Connection(asked.settings).call(lambda client: pull(client, asked.image, tell), patient=False, is_long=True)
    except RuntimeFault as fault:
        return Said(cause=fault.cause, hint=fault.hint)
    except Exception as error:  # noqa: BLE001 - a border: of this process
        text = f"cannot pull {asked.image}: {type(error).__name__}: {error}"
        return Said(cause=Cause(CauseCode.PULL_FAILED, text))
    return Said(is_done=True)


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    """End as soon as nobody holds the other end of standard input."""
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
