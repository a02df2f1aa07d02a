"""Settings from a TOML file, over which the environment goes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.config.ranges import SIZES, check_range, gpu_names
from gputui.config.toml import read_toml
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


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of the file, over which the environment goes; the defaults where neither speaks."""
    wanted = _of_environment(environ)
    if path is None and not wanted:
        return Settings()
    tables = _of_file(path) if path else {}
    for (table, key), value in wanted.items():
        tables = {**tables, table: {**tables.get(table, {}), key: value}}
    return _converted(tables, str(path) if path else "environment")


def _of_file(path: Path) -> dict[str, Any]:
    """The tables of the file, with its durations and sizes read."""
    tables = read_toml(path, str(path))
    for table, keys in tables.items():
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
    elif key == "keys" and isinstance(value, dict):
        value = {name: [keys] if isinstance(keys, str) else keys for name, keys in value.items()}
    check_range(key, value, where)
    return value


def _of_environment(environ: Mapping[str, str]) -> dict[tuple[str, str], object]:
    """Settings named by GPUTUI_<TABLE>_<KEY>."""
    return {
        (table, field.name): _of_text(field, environ[name], name)
        for table, kind in TABLES.items()
        for field in dataclasses.fields(kind)
        if (name := f"GPUTUI_{table}_{field.name}".upper()) in environ
    }


def _of_text(field: dataclasses.Field[Any], text: str, where: str) -> object:
    """The value that the text of an environment variable stands for."""
    kind = str(field.type)
    value: object = text
    if kind.startswith("tuple"):
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif kind.startswith("Mapping"):
        value = {name: keys.split(",") for name, _, keys in (pair.partition("=") for pair in text.split())}
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
