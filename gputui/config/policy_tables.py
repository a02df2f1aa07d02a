"""Checks of `[[policy.tenants]]` and `[[policy.reservations]]`, and of unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.job_spec import MAX_PRIORITY
from gputui.domain.settings import TenantSettings, Window

MAX_COUNT = 2**31 - 1
"""Maximum of numbers without another one."""
_LONGEST = "a job without a limit is planned as the longest allowed: policy.max_time, else scheduler.max_time, else 72h"
_STRICT = "a job of higher priority always goes first now, and policy.promote_after keeps others from waiting for ever"
_SCORE = "policy.age_unit and policy.newcomer_credit order jobs of equal priority now"
GONE: Mapping[str, str] = {
    **{f"policy.limit_{name}": f"remove it: {_LONGEST}" for name in ("low", "normal", "high")},
    "policy.class_weight": f"remove it: {_STRICT}",
    **{f"policy.{name}": f"remove it: {_SCORE}" for name in ("age_weight", "age_cap", "fair_weight")},
    **{f"policy.{name}": f"remove it: {_SCORE}" for name in ("duration_weight", "duration_cap")},
}
"""Settings of older versions, each with its replacement."""
WITHOUT_EFFECT = frozenset(
    f"console.{name}" for name in ("fold_ended_after", "memory_full", "power_high", "temperature_limit")
)
"""Settings of older versions that only changed how something looks: ignored, so that they stop no service."""
_ROWS: Mapping[str, type[Struct]] = {"tenants": TenantSettings, "reservations": Window}
"""Lists of tables in `[policy]`."""


def check_tables(key: str, value: object, where: str) -> None:
    """Raise InputError for unknown keys or impossible values of a tenant or reservation; msgspec checks the types."""
    fields = _ROWS[key].__struct_fields__
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    _check_names([name for row in rows if isinstance(name := row.get("name"), str)], where)
    for row in rows:
        for name in row:
            if name not in fields:  # msgspec would ignore it, and a cap with a mistyped name would be no cap
                raise unknown(name, f"{where}.{name}", fields)
        if key == "reservations" and "gpus" in row:
            row["gpus"] = gpu_names(row["gpus"])
        for name, cell in row.items():
            most = MAX_PRIORITY if name == "max_priority" else MAX_COUNT
            if isinstance(cell, (int, float)) and not isinstance(cell, bool) and not 0 <= cell <= most:
                raise InputError(f"expected 0 to {most}", where=f"{where}.{name}")
        start, end = row.get("start"), row.get("end")
        if key == "reservations" and isinstance(start, datetime) and isinstance(end, datetime):
            if start.tzinfo is None or end.tzinfo is None:
                hint = "write 2026-03-02T14:00:00Z"
                raise InputError("expected times with their offset from UTC", where=where, hint=hint)
            if start >= end:
                raise InputError("ends before it starts", where=f"{where}.{row.get('name', '')}")


def _check_names(names: Sequence[str], where: str) -> None:
    """Raise InputError for a blank name, one that no command can give, and one that is there twice."""
    for name in names:
        if not name.strip() or not name.isprintable():
            what = "has control characters" if name.strip() else "is blank"
            raise InputError(f"{shown(name)} {what}", where=f"{where}.name")
        if names.count(name) > 1:
            raise InputError(f"{shown(name)} is there twice", where=f"{where}.name")


def gpu_names(value: object) -> object:
    """Return GPUs as a list of texts: accepts `6` for `"6"`, and a single value for a list of one."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [str(name) if type(name) is int and name >= 0 else name for name in listed]


def shown(text: str) -> str:
    """Return a short quotation without control characters."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def check_removed(names: Iterable[str], where: str) -> None:
    """Raise one InputError that names all settings of older versions among these, each with its replacement."""
    removed: dict[str, list[str]] = {}
    for name in names:
        if name in GONE:
            removed.setdefault(GONE[name].removeprefix("remove it: "), []).append(name)
    if not removed:
        return
    found = [name for some in removed.values() for name in some]
    what = "this setting no longer exists" if len(found) == 1 else "these settings no longer exist"
    hint = "; ".join(removed)
    raise InputError(what, where=where + ", ".join(found), hint=f"remove {'it' if len(found) == 1 else 'them'}: {hint}")


def unknown(name: str, where: str, known: Iterable[str]) -> InputError:
    """Return the error for a key that is not a setting."""
    return InputError("unknown key", where=where, hint="known: " + ", ".join(known))
