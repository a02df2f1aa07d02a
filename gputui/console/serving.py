"""Scheduling without a screen, and the hand-over to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.config import Options
from gputui.console.monitoring import monitor_opener
from gputui.console.own_log import log_to_file, own_log_path
from gputui.domain.errors import NotLeaderError
from gputui.domain.text import plain
from gputui.domain.units import format_duration
from gputui.engine.feed import Feed
from gputui.engine.files.file_modes import new_file
from gputui.engine.files.leadership import Leadership, current_leader
from gputui.engine.process.loop import SchedulingFailedError
from gputui.ports import JobStore

if TYPE_CHECKING:
    from gputui.engine.process.host import Host

log = logging.getLogger(__name__)

ANEW_AFTER = 2.0
"""Seconds before a failed scheduler restarts, so that another console can take over."""
WAIT_ANEW = 10**7
"""Seconds for which it then waits for another scheduler to end; practically for ever."""
HAND_OVER_WAIT = 60
"""Seconds for which the background scheduler tries to take over from the process that started it."""
YIELD_WITHIN = 20.0
"""Seconds within which a background scheduler yields to a service."""


def serve(options: Options, wait: float, *, stands_in: bool = False) -> int:
    """Schedule until SIGTERM or SIGINT; a terminal that closes does not end it.

    One that stands in for a console also ends when a service waits to schedule, or nothing is left to do.
    """
    store = bootstrap.open_store(options)
    if not stands_in and (leader := current_leader(options.state)) is not None and leader.stands_in:
        wait = max(wait, YIELD_WITHIN)
    try:
        log_to_file(options.state, options.settings.log.format)
        where = f"state in {options.state}, log in {own_log_path(options.state)}"
        say(f"{where}; Ctrl-C ends it, jobs keep running")
        if not asyncio.run(_serve(options, store, wait, stands_in=stands_in)):
            leader = current_leader(options.state)
            who = f"{leader.kind} of {leader.user}, pid {leader.pid}" if leader else "another process"
            silence = leader.silent_for if leader else None
            does = f"has not responded for {format_duration(silence)}, and holds the lock" if silence else "schedules"
            hint = "end it, or use --wait to queue up behind it" if silence else "use --wait to queue up behind it"
            raise NotLeaderError(f"{who}, {does} in {options.state} already", hint=hint)
    except SchedulingFailedError as error:
        say(f"{plain(str(error))}; starting again")
        store.close()
        _start_anew(options, stands_in=stands_in)
    finally:
        store.close()
    return 0


def say(sentence: str) -> None:
    """Print on stderr; ignores errors of stderr, such as a full disk, which must not stop the scheduler."""
    with contextlib.suppress(OSError, ValueError):
        print(f"gputui serve: {sentence}", file=sys.stderr, flush=True)


def _start_anew(options: Options, *, stands_in: bool) -> NoReturn:
    """Replace this process by a new `gputui serve` with the same pid, which waits while a console schedules."""
    time.sleep(ANEW_AFTER)
    command = _stand_in(options) if stands_in else _command(options, f"{WAIT_ANEW}s", *options.serve_arguments)
    os.execv(command[0], command)


def _command(options: Options, wait: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "gputui", *options.arguments(), "serve", "--wait", wait, *arguments]


def _stand_in(options: Options) -> list[str]:
    """Return the command of a scheduler that takes over from a console."""
    return _command(options, f"{HAND_OVER_WAIT}s", "--stand-in")


async def _serve(options: Options, store: JobStore, wait: float, *, stands_in: bool) -> bool:
    monitor = monitor_opener(options, store.store_id, say)
    host = hosting.make_host(options, store, Feed(), "serve", open_monitor=monitor, stands_in=stands_in)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, host, number)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    has_led = await host.lead(wait)
    if host.has_run_dry and any(not job.state.is_terminal for job in store.jobs().values()):
        hand_over(options)  # a job was submitted in the moment of the end
    return has_led


def _stop(host: Host, number: signal.Signals) -> None:
    log.info("ended by %s", number.name)
    host.stop()


def hand_over(options: Options) -> None:
    """Start a background scheduler that takes over as soon as this process stops scheduling, unless a service waits."""
    if Leadership(options.state).is_awaited():
        return
    # its stderr is the only place for errors at its start
    errors = errors_file(options.state / "serve.err")
    try:
        subprocess.Popen(
            _stand_in(options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(errors)


def errors_file(path: Path) -> int:
    """Open the file for writing; fall back to /dev/null, as on a full disk or for another user's file."""
    try:
        return new_file(path, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
