"""What values a setting may have; msgspec judges the types."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from gputui.domain.errors import InputError
from gputui.domain.settings import EVENTS, QUEUE_COLUMNS

SIZES = frozenset({"memory_floor", "log_max_size", "disk_floor"})
_MAY_BE_ZERO = frozenset(
    {
        "stop_grace",
        "history_after",
        "memory_floor",
        "disk_floor",
        "keep_finished",
        "infrastructure_retries",
        "fast_failures",
        "fast_failing_jobs",
        "class_weight",
        "age_weight",
        "age_cap",
        "duration_weight",
        "duration_cap",
        "fair_weight",
        "patience",
        "forecast_jobs",
        "standing_priority",
        "reservation_grace",
        "preemption_grace",
        "preemption_min_run",
    }
)
_WHETHER = ("auto", "always", "never")
_TOLD = ("none", "failed", "all")
_CHOICES = {
    "hand_over": _WHETHER,
    "what_if": ("always", "off"),
    "ascii": _WHETHER,
    "toast": _TOLD,
    "bell": _TOLD,
    "desktop": _TOLD,
    "notify_for": ("mine", "all"),
}
_WORDS = {"webhook_events": (EVENTS, "event"), "mail_events": (EVENTS, "event"), "columns": (QUEUE_COLUMNS, "column")}
_MAX_COUNT = 2**31 - 1


def check_range(key: str, value: object, where: str) -> None:
    if key in _WORDS:
        _check_words(value, *_WORDS[key], where)
    elif isinstance(value, timedelta):
        if not value and key not in _MAY_BE_ZERO:
            raise InputError("expected a duration above 0", where=where)
    elif isinstance(value, int) and not isinstance(value, bool):
        low, high = int(key not in _MAY_BE_ZERO), 2**60 if key in SIZES else _MAX_COUNT
        if not low <= value <= high:
            raise InputError(f"expected {low} to {high}", where=where)
    elif isinstance(value, float):
        if not 0 <= value <= _MAX_COUNT or (not value and key not in _MAY_BE_ZERO):
            raise InputError(f"expected a number up to {_MAX_COUNT}", where=where)
    elif key in ("tenants", "reservations"):
        _check_tables(key, value, where)
    elif key in _CHOICES and value not in _CHOICES[key]:
        raise InputError("expected " + ", ".join(_CHOICES[key]), where=where)
    elif key == "webhook" and not re.match(r"https?://[^/\s]", str(value)):
        raise InputError("expected an address", where=where, hint="http://... or https://...")
    elif isinstance(value, str) and not value.isprintable():
        raise InputError("has control characters", where=where)


def _check_words(value: object, known: tuple[str, ...], noun: str, where: str) -> None:
    """Also of a list that the environment gave, which msgspec has made a tuple of by then."""
    unknown = [each for each in value if each not in known] if isinstance(value, (list, tuple)) else []
    if unknown:
        raise InputError(f"{shown(str(unknown[0]))} is no {noun}", where=where, hint="known: " + ", ".join(known))


def _check_tables(key: str, value: object, where: str) -> None:
    """Raise InputError where a tenant or a reservation says what cannot be; msgspec judges the types."""
    for row in value if isinstance(value, list) else ():
        if not isinstance(row, dict):
            continue
        if key == "reservations" and "gpus" in row:
            row["gpus"] = gpu_names(row["gpus"])
        for name, cell in row.items():
            if isinstance(cell, (int, float)) and not isinstance(cell, bool) and not 0 <= cell <= _MAX_COUNT:
                raise InputError(f"expected 0 to {_MAX_COUNT}", where=f"{where}.{name}")
        start, end = row.get("start"), row.get("end")
        if key == "reservations" and isinstance(start, datetime) and isinstance(end, datetime):
            if start.tzinfo is None or end.tzinfo is None:
                hint = "write 2026-03-02T14:00:00Z"
                raise InputError("expected times with their offset from UTC", where=where, hint=hint)
            if start >= end:
                raise InputError("ends before it starts", where=f"{where}.{row.get('name', '')}")


def gpu_names(value: object) -> object:
    """GPUs as a list of texts: `6` is as good as `"6"`, and one alone as a list of one."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [str(name) if type(name) is int and name >= 0 else name for name in listed]


def shown(text: str) -> str:
    """A short quotation without anything a terminal would act on."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")
