"""`--dry-run`: what a change would do to everybody's start, printed instead of done."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime

from gputui import bootstrap
from gputui.cli.session import Session
from gputui.domain.policy.whatif import Change, Shift, what_if
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain
from gputui.ports import JobStore


def show(session: Session, store: JobStore, change: Change) -> None:
    """Print which waiting jobs would start earlier or later."""
    snapshot = bootstrap.current_snapshot(session.options, store)
    shifts = what_if(snapshot, change, session.options.settings, bootstrap.clock().now())
    sys.stdout.writelines(f"{line}\n" for line in lines(snapshot, shifts))


def lines(snapshot: Snapshot, shifts: Iterable[Shift]) -> list[str]:
    """A line for each job that would start at another time."""
    names = {job.id: job.spec.name for job in snapshot.jobs}
    found = [
        f"{shift.job_id:>6}  {fit(plain(names.get(shift.job_id, 'the new job')), 24)}  "
        f"{_time(shift.before):>19} -> {_time(shift.after):<19}  {_by(shift)}".rstrip()
        for shift in shifts
    ]
    return [f"{'ID':>6}  {'NAME':<24}  {'STARTS':>19} -> {'WOULD START':<19}", *found] if found else ["nothing shifts"]


def _time(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else "not known"


def _by(shift: Shift) -> str:
    if shift.before is None or shift.after is None:
        return ""
    seconds = round((shift.after - shift.before).total_seconds())
    return f"{'+' if seconds > 0 else '-'}{abs(seconds)}s"
