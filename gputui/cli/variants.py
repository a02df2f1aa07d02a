"""Changed policy settings of a replay: `--set SETTING=VALUE` and `--compare SETTING=A,B`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.config import value_of_text
from gputui.domain.errors import InputError
from gputui.domain.settings import PolicySettings, TenantSettings
from gputui.domain.text import plain

MOST = 64
"""Maximum number of variants in one comparison."""
NOT_REPLAYED = frozenset(
    {
        "allow",
        "extend",
        "forecast_jobs",
        "left_free",
        "operators",
        "patience",
        "prefer",
        "reservation_grace",
        "reservations",
        "share",
        "share_jobs",
        "tenants",
    }
)
"""Settings without effect in a replay, since jobs of a trace ask for nothing but a number of GPUs."""
_TABLE, _TENANT = "policy.", "tenants."
_OF_TENANT = ("weight", "gpus", "running")
_SHOWN = 60


class Variant(Struct, frozen=True):
    """The policy with some settings changed."""

    name: str
    """Changes as typed: `age_unit=12h half_life=7d`."""
    changes: Mapping[str, str]
    """Text of the value by the setting's full name."""
    settings: PolicySettings


def changed(settings: PolicySettings, texts: Sequence[str]) -> Variant:
    """Return the policy with each `SETTING=VALUE` of `--set`; a later one overrides an earlier one."""
    pairs = [_pair(text, "--set") for text in texts]
    return _variant(settings, dict(pairs), "--set")


def compared(settings: PolicySettings, texts: Sequence[str]) -> list[Variant]:
    """Return the policy with each value of each `SETTING=A,B` of `--compare`, in all combinations."""
    pairs = [_pair(text, "--compare") for text in texts]
    choices = [[(key, value.strip()) for value in values.split(",")] for key, values in pairs]
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"{twice[0]} is given twice", where="--compare", hint=f"{twice[0]}=A,B,C")
    count = math.prod(map(len, choices))
    if count > MOST:
        raise InputError(f"{count:,} combinations are more than {MOST}", where="--compare", hint="compare fewer values")
    return [_variant(settings, dict(each), "--compare") for each in product(*choices)] if choices else []


def values_of(settings: PolicySettings, keys: Iterable[str]) -> dict[str, Any]:
    """Return the values that these settings have, by full name."""
    return {key: _value(settings, key.removeprefix(_TABLE)) for key in keys}


def as_json(settings: PolicySettings, keys: Iterable[str]) -> dict[str, Any]:
    """Return these values as JSON; durations in seconds."""
    values = values_of(settings, keys)
    return {key: value.total_seconds() if isinstance(value, timedelta) else value for key, value in values.items()}


def replayed() -> list[str]:
    """Return the names of the settings that affect a replay."""
    return [name for name in PolicySettings.__struct_fields__ if name not in NOT_REPLAYED]


def _pair(text: str, where: str) -> tuple[str, str]:
    """Return full name and value of `policy.SETTING=VALUE`; the table's name may be omitted."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        found = plain(text, _SHOWN)
        raise InputError(f"expected SETTING=VALUE, found {found!r}", where=where, hint="such as half_life=7d")
    return _TABLE + key.strip().removeprefix(_TABLE), value.strip()


def _variant(settings: PolicySettings, changes: Mapping[str, str], option: str) -> Variant:
    for key, value in changes.items():
        settings = _with(settings, key.removeprefix(_TABLE), value, option)
    name = " ".join(f"{key.removeprefix(_TABLE)}={value}" for key, value in changes.items())
    return Variant(plain(name), changes, settings)


def _with(settings: PolicySettings, key: str, text: str, option: str) -> PolicySettings:
    where = f"{option} {plain(key, _SHOWN)}"
    if key.startswith(_TENANT):
        return _with_tenant(settings, key, text, where)
    if key in NOT_REPLAYED:
        hint = "those that do: " + ", ".join([*replayed(), f"{_TENANT}NAME.weight"])
        raise InputError("changes nothing in a replay", where=where, hint=hint)
    return replace(settings, **{key: value_of_text(PolicySettings, key, text, where, replayed())})


def _with_tenant(settings: PolicySettings, key: str, text: str, where: str) -> PolicySettings:
    """Return the policy with `tenants.NAME.weight`, `.gpus` or `.running` changed; the tenant need not be set yet."""
    name, _, field = key.removeprefix(_TENANT).rpartition(".")
    if not name or field not in _OF_TENANT:
        raise InputError("is not a setting of a tenant", where=where, hint=f"{_TENANT}NAME.weight, .gpus or .running")
    known = {tenant.name: tenant for tenant in settings.tenants}
    value = value_of_text(TenantSettings, field, text, where)
    known[name] = replace(known.get(name, TenantSettings(name)), **{field: value})
    return replace(settings, tenants=tuple(known.values()))


def _value(settings: PolicySettings, key: str) -> Any:
    if not key.startswith(_TENANT):
        return getattr(settings, key)
    name, _, field = key.removeprefix(_TENANT).rpartition(".")
    tenant = next((tenant for tenant in settings.tenants if tenant.name == name), TenantSettings(name))
    return getattr(tenant, field)
