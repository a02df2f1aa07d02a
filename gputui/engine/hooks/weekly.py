"""The weekly report: created by a worker once a week, and sent to the hooks that receive it.

The time of the last report is kept in a file, so that the next scheduler does not send it again.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from gputui.domain.errors import GputuiError
from gputui.domain.event import PAGE, Event, weekly_report
from gputui.domain.settings import Settings, WeeklyTime, parse_weekly
from gputui.domain.text import plain
from gputui.engine.files.file_modes import read_file, replace_file

log = logging.getLogger(__name__)

FILE = "weekly-report"
REPORT_WITHIN = 300.0
"""Maximum seconds for creating a report."""
TRY_AGAIN = timedelta(minutes=10)
"""Time after which a report that could not be made is tried again."""
MakeReport: TypeAlias = Callable[[datetime, datetime], Mapping[str, Any]]
"""Returns the report of a period: `report`, as its JSON, `table`, as text, and `page`, as HTML.

Takes seconds; raises GputuiError.
"""


class WeeklyReport:
    """Creates reports that are due. `update` is called at every tick and never blocks."""

    def __init__(
        self,
        directory: Path,
        at: WeeklyTime,
        max_age: timedelta,
        make: MakeReport,
        workers: Executor,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """A report that was due longer than `max_age` ago is skipped."""
        self._path = directory / FILE
        self._at = at
        self._max_age = max_age
        self._make = make
        self._workers = workers
        self._wake = wake
        self._made: Event | None = None
        self._begun: datetime | None = None
        """Time of the report that is being created, or was created last."""
        self._failed_at: datetime | None = None

    def update(self, now: datetime) -> Event | None:
        """Return the report that is ready to be sent; start the one that is due."""
        made, self._made = self._made, None
        due = self._at.last(now)
        if self._is_to_begin(due, now) and now - due <= self._max_age:
            self._begun, self._failed_at = due, None
            self._workers.submit(self._work, due, now)
        return made

    def _is_to_begin(self, due: datetime, now: datetime) -> bool:
        failed_at = self._failed_at
        return due != self._begun or (failed_at is not None and not failed_at <= now < failed_at + TRY_AGAIN)

    def close(self) -> None:
        """Start no further report."""
        self._workers.shutdown(wait=False)

    def _work(self, due: datetime, now: datetime) -> None:
        try:
            if _read(self._path) != due.isoformat():
                self._made = weekly_report(self._make(self._at.before(due), due), due)
                self._keep(due)
        except (GputuiError, OSError) as error:
            log.warning("the weekly report cannot be made: %s; it is tried again", error)
            self._failed_at = now
        except Exception:  # the border of a worker
            log.exception("making the weekly report")
        self._wake()

    def _keep(self, due: datetime) -> None:
        """Record that the report was made; where that fails, the next scheduler sends it again."""
        try:
            replace_file(self._path, f"{due.isoformat()}\n".encode())
        except OSError as error:
            log.warning("the time of the weekly report is not kept: %s", error)


def weekly_of(
    settings: Settings, directory: Path, make: MakeReport, workers: Executor, wake: Callable[[], None] = lambda: None
) -> WeeklyReport | None:
    """Return the creator of the weekly reports that the settings ask for; None if they are off."""
    if not settings.report.weekly:
        return None
    at, max_age = parse_weekly(settings.report.weekly), settings.hooks.max_age
    return WeeklyReport(directory, at, max_age, make, workers, wake)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode(errors="replace").strip()
    except OSError:
        return ""


def made_report(options: Sequence[str], since: datetime, until: datetime) -> Mapping[str, Any]:
    """Return the report of a period, created by other processes, which take no time from this one."""
    period = ("report", "--since", since.isoformat(), "--until", until.isoformat())
    table, report, page = (_output_of(*options, *period, "--format", form) for form in ("table", "json", "html"))
    return {"table": table, "report": json.loads(report), PAGE: page}


def _output_of(*words: str) -> str:
    """Return the output of a command of gputui; raises GputuiError."""
    command = (sys.executable, "-P", "-m", "gputui", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REPORT_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GputuiError(str(error)) from error
    if done.returncode:
        raise GputuiError(plain(done.stderr.strip(), 200))
    return done.stdout
