"""Settings from the site's TOML file, a personal one and the environment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from gputui.config.ranges import SIZES, check_range, gpu_names, shown
from gputui.config.toml import read_with_status
from gputui.config.trust import check_trusted
from gputui.domain.errors import InputError
from gputui.domain.settings import (
    ConsoleSettings,
    GpuSettings,
    HookSettings,
    PolicySettings,
    RuntimeSettings,
    SchedulerSettings,
    Settings,
    StoreSettings,
)
from gputui.domain.units import parse_duration, parse_size

TABLES: Mapping[str, type[Any]] = {
    "scheduler": SchedulerSettings,
    "store": StoreSettings,
    "runtime": RuntimeSettings,
    "gpus": GpuSettings,
    "policy": PolicySettings,
    "console": ConsoleSettings,
    "hooks": HookSettings,
}
_GPU_LISTS = frozenset({"share", "prefer", "left_free"})
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


OVERRIDABLE = "overridable"
"""Key at the top of the site's file: the keys, or whole tables, that a personal file may change."""
_ALWAYS_PERSONAL = "console"

Tables: TypeAlias = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """Settings, and those that were asked for in vain."""

    settings: Settings
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Each source (a personal file, the environment) whose keys the site does not let it change, with these keys."""


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Return the settings of one file and the environment, which goes before it; the defaults where neither speaks."""
    return load_merged(None, path, environ).settings


def load_merged(site: Path | None, own: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Return the settings of the site's file, a personal file and the environment; a later one goes before.

    Where there is a site's file, the other two change only `[console]` and the keys that it names as overridable.
    """
    variables = _of_environment(environ)
    if site is None and own is None and not variables:
        return Loaded(Settings())
    tables = _of_file(site) if site else {}
    may_change = _overridable(site, tables) if site else None
    ignored = []
    for source, layer in ((str(own), _of_file(own) if own else {}), ("environment", variables)):
        kept, refused = _split(layer, may_change)
        tables = _laid_over(tables, kept)
        if refused:
            ignored.append((source, refused))
    found = [str(path) for path in (site, own) if path]
    return Loaded(_converted(tables, ", ".join(found) or "environment"), tuple(ignored))


def _overridable(site: Path, tables: Tables) -> frozenset[str]:
    """Take the list of overridable keys out of the site's tables; raises InputError for a name of no setting."""
    where = f"{site}: {OVERRIDABLE}"
    names = cast("object", tables.pop(OVERRIDABLE, []))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("expected a list of keys", where=where, hint='write ["store.lock_timeout"]')
    for name in names:
        table, _, key = name.partition(".")
        fields = _fields(table, where)
        if key and key not in fields:
            raise InputError(f"{shown(name)} is no setting", where=where, hint="known: " + ", ".join(fields))
    return frozenset({*names, _ALWAYS_PERSONAL})


def _split(layer: Tables, may_change: frozenset[str] | None) -> tuple[Tables, tuple[str, ...]]:
    """Return what a personal layer may change, and the names of its other keys."""
    if may_change is None:
        return {table: keys for table, keys in layer.items() if table != OVERRIDABLE}, ()
    kept: Tables = {}
    refused = []
    for table, keys in layer.items():
        if table == OVERRIDABLE:
            refused.append(OVERRIDABLE)
            continue
        for key, value in keys.items():
            if table in may_change or f"{table}.{key}" in may_change:
                kept.setdefault(table, {})[key] = value
            else:
                refused.append(f"{table}.{key}")
    return kept, tuple(refused)


def _laid_over(tables: Tables, layer: Tables) -> Tables:
    """Return the tables with the layer's keys in place of theirs; tables inside tables are merged too."""
    merged = dict(tables)
    for table, keys in layer.items():
        below = dict(merged.get(table, {}))
        for key, value in keys.items():
            both = isinstance(value, dict) and isinstance(below.get(key), dict)
            below[key] = {**below[key], **value} if both else value
        merged[table] = below
    return merged


def _of_file(path: Path) -> Tables:
    """Return the tables of a file, with its durations and sizes read."""
    tables, status = read_with_status(path, str(path))
    if tables.get("hooks"):
        check_trusted(path, status)
    for table, keys in tables.items():
        if table == OVERRIDABLE:
            continue
        fields = _fields(table, where=f"{path}: {table}")
        if not isinstance(keys, dict):
            raise InputError("expected a table", where=f"{path}: {table}", hint=f"write [{table}]")
        for key, value in keys.items():
            where = f"{path}: {table}.{key}"
            if key not in fields:
                raise InputError("unknown key", where=where, hint="known: " + ", ".join(fields))
            keys[key] = _read(key, fields[key], value, where)
    return tables


def _fields(table: str, where: str) -> dict[str, dataclasses.Field[Any]]:
    if table not in TABLES:
        raise InputError("unknown table", where=where, hint="known: " + ", ".join(TABLES))
    return {field.name: field for field in dataclasses.fields(TABLES[table])}


def _read(key: str, field: dataclasses.Field[Any], value: object, where: str) -> object:
    """The value with a duration or a size made of its text; msgspec judges the rest."""
    if "timedelta" in str(field.type):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise InputError("expected a duration", where=where, hint='write "10s", "1h30m" or seconds')
        value = parse_duration(str(value), where=where)
    elif key in SIZES and isinstance(value, str):
        value = parse_size(value, where=where)
    elif key in _GPU_LISTS:
        value = gpu_names(value)
    elif key == "allow":
        from gputui.config.allowed import allowed  # few sites have the table

        value = allowed(value, where)
    elif key == "keys" and isinstance(value, dict):
        value = {name: [keys] if isinstance(keys, str) else keys for name, keys in value.items()}
    check_range(key, value, where)
    return value


def _of_environment(environ: Mapping[str, str]) -> Tables:
    """Return the settings named by GPUTUI_<TABLE>_<KEY>."""
    found: Tables = {}
    for table, kind in TABLES.items():
        for field in dataclasses.fields(kind):
            if (name := f"GPUTUI_{table}_{field.name}".upper()) in environ:
                found.setdefault(table, {})[field.name] = _of_text(field, environ[name], name)
    return found


def _of_text(field: dataclasses.Field[Any], text: str, where: str) -> object:
    """The value that the text of an environment variable stands for."""
    kind = str(field.type)
    value: object = text
    if kind.startswith("tuple"):
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif kind.startswith("Mapping"):
        value = {name: keys.split(",") for name, _, keys in (pair.partition("=") for pair in text.split())}
    elif kind == "AllowSettings":
        from gputui.config.allowed import allowed_of_text

        value = allowed_of_text(text)
    elif kind == "bool":
        if text.lower() not in _BOOLEANS:
            raise InputError("expected true or false", where=where)
        value = _BOOLEANS[text.lower()]
    elif kind.startswith("int") and field.name not in SIZES:
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII):
            raise InputError("expected a whole number", where=where)
        value = int(text)
    elif kind.startswith("float"):
        if not re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text, re.ASCII):
            raise InputError("expected a number", where=where)
        value = float(text)
    return _read(field.name, field, value, where)


def _converted(tables: dict[str, Any], source: str) -> Settings:
    import msgspec

    try:
        return msgspec.convert(tables, Settings)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        where = f"{source}: {path.rstrip('`')}" if path else source
        raise InputError(what[:1].lower() + what[1:], where=where) from error
