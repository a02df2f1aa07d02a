"""What a wish may ask for at most."""

from __future__ import annotations

from dataclasses import replace

from gputui.domain.errors import InputError
from gputui.domain.job import MAX_PRIORITY, JobSpec
from gputui.domain.settings import SchedulerSettings
from gputui.domain.units import format_duration


def limited(spec: JobSpec, settings: SchedulerSettings) -> JobSpec:
    """The spec within the site's longest time; raises InputError when it asks for more, or for a warning in vain."""
    longest, limit = settings.max_time, spec.time_limit
    if longest is not None and limit is not None and limit > longest:
        text = f"{format_duration(limit)} is more than a job may take here"
        hint = f"at most {format_duration(longest)}: the setting scheduler.max_time"
        raise InputError(text, where="--time-limit", hint=hint)
    if limit is None and longest is not None and settings.limit_all:
        limit = longest
        spec = replace(spec, time_limit=limit)
    if spec.warning is not None and limit is None:
        raise InputError("announces a time limit, and there is none", where="--signal", hint="add --time-limit")
    if spec.warning is not None and limit is not None and spec.warning.before >= limit:
        text = f"{format_duration(spec.warning.before)} before the end is before the start"
        raise InputError(text, where="--signal", hint=f"the time limit is {format_duration(limit)}")
    return spec


def check_priority(value: int) -> None:
    """Raise InputError outside 0 to 100."""
    if not 0 <= value <= MAX_PRIORITY:
        raise InputError(f"{value} is out of range", where="priority", hint=f"0 to {MAX_PRIORITY}")
