"""Settings from a TOML file and the environment, and the options every command shares."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gputui.domain.errors import InputError
from gputui.domain.settings import (
    EVENTS,
    QUEUE_COLUMNS,
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

SITE_CONFIG = Path("/etc/gputui/config.toml")
ROOT_STATE = Path("/var/lib/gputui")
RUNTIMES = ("docker", "process")
MAX_SIMULATED = 256
MAX_FILE = 1024**2
"""Bytes: a settings or job file is written by hand, so a larger one is not one."""

_PROBE = re.compile(r"sim:(\d{1,6})(?::([^\x00-\x1f\x7f]{1,80}))?", re.ASCII)


@dataclass(frozen=True)
class ProbeSpec:
    """Where readings of GPUs come from."""

    simulated: int | None = None
    """How many simulated GPUs; None: the driver's own."""
    model: str | None = None
    """What the simulated ones are."""

    def __str__(self) -> str:
        if self.simulated is None:
            return "nvml"
        return f"sim:{self.simulated}" + (f":{self.model}" if self.model else "")


@dataclass(frozen=True)
class Options:
    """What every command shares, resolved once from options, environment and settings file."""

    state: Path
    config: Path | None = None
    """None: there is no settings file."""
    probe: ProbeSpec = ProbeSpec()
    runtime: str = "docker"
    """`docker` or `process`."""
    settings: Settings = Settings()

    def arguments(self) -> list[str]:
        """The options by which another gputui process gets the same ones."""
        config = ["--config", str(self.config)] if self.config else []
        return ["--state", str(self.state), *config, "--probe", str(self.probe), "--runtime", self.runtime]


def resolve(
    *,
    state: str | None = None,
    config: str | None = None,
    probe: str | None = None,
    runtime: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """The options of this process: what was given, else GPUTUI_…, else the defaults."""
    path = _config_path(config or environ.get("GPUTUI_CONFIG") or None)
    return Options(
        state=_state_path(state or environ.get("GPUTUI_STATE") or None),
        config=path,
        probe=parse_probe(probe or environ.get("GPUTUI_PROBE") or "nvml"),
        runtime=parse_runtime(runtime or environ.get("GPUTUI_RUNTIME") or "docker"),
        settings=load_settings(path, environ),
    )


def parse_probe(text: str) -> ProbeSpec:
    """The probe meant by `nvml`, `sim:8` or `sim:8:MODEL`."""
    if text == "nvml":
        return ProbeSpec()
    match = _PROBE.fullmatch(text)
    if not match or not 1 <= int(match[1]) <= MAX_SIMULATED:
        hint = f"write nvml, sim:8 or sim:8:H100, with 1 to {MAX_SIMULATED} GPUs"
        raise InputError(f"{_shown(text)} is not a probe", where="--probe", hint=hint)
    return ProbeSpec(int(match[1]), match[2])


def parse_runtime(text: str) -> str:
    """`docker` or `process`."""
    if text not in RUNTIMES:
        raise InputError(f"{_shown(text)} is not a runtime", where="--runtime", hint="docker or process")
    return text


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of the file, over which the environment goes; the defaults where neither speaks."""
    wanted = _of_environment(environ)
    if path is None and not wanted:
        return Settings()
    tables = _of_file(path) if path else {}
    for (table, key), value in wanted.items():
        tables = {**tables, table: {**tables.get(table, {}), key: value}}
    return _converted(tables, str(path) if path else "environment")


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """What a TOML file holds; raises InputError, naming it, where it holds no such thing."""
    import tomllib

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InputError("is larger than 1 MiB", where=where, hint="split it")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=where, hint="save it as UTF-8") from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=where) from error
    except ValueError as error:  # tomllib's own, and numbers too long for Python's int
        raise InputError(f"is not TOML: {error}", where=where) from error


TABLES: Mapping[str, type[Any]] = {
    "scheduler": SchedulerSettings,
    "store": StoreSettings,
    "runtime": RuntimeSettings,
    "gpus": GpuSettings,
    "policy": PolicySettings,
    "console": ConsoleSettings,
    "hooks": HookSettings,
}
SIZES = frozenset({"memory_floor", "log_max_size", "disk_floor"})
_GPU_LISTS = frozenset({"share", "prefer", "left_free"})
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
        value = _gpu_names(value)
    elif key == "keys" and isinstance(value, dict):
        value = {name: [keys] if isinstance(keys, str) else keys for name, keys in value.items()}
    _check_range(key, value, where)
    return value


def _gpu_names(value: object) -> object:
    """GPUs as a list of texts: `6` is as good as `"6"`, and one alone as a list of one."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [str(name) if type(name) is int and name >= 0 else name for name in listed]


def _check_range(key: str, value: object, where: str) -> None:
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
        raise InputError(f"{_shown(str(unknown[0]))} is no {noun}", where=where, hint="known: " + ", ".join(known))


def _check_tables(key: str, value: object, where: str) -> None:
    """Raise InputError where a tenant or a reservation says what cannot be; msgspec judges the types."""
    for row in value if isinstance(value, list) else ():
        if not isinstance(row, dict):
            continue
        if key == "reservations" and "gpus" in row:
            row["gpus"] = _gpu_names(row["gpus"])
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


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _converted(tables: dict[str, Any], source: str) -> Settings:
    import msgspec

    try:
        return msgspec.convert(tables, Settings)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        where = f"{source}: {path.rstrip('`')}" if path else source
        raise InputError(what[:1].lower() + what[1:], where=where) from error


def _state_path(given: str | None) -> Path:
    if given is not None:
        return _path(given, "--state")
    if os.geteuid() == 0:
        return ROOT_STATE
    import platformdirs

    return Path(platformdirs.user_state_dir("gputui"))


def _config_path(given: str | None) -> Path | None:
    if given is not None:
        return _path(given, "--config")
    import platformdirs

    own = Path(platformdirs.user_config_dir("gputui")) / "config.toml"
    return next((path for path in (own, SITE_CONFIG) if path.exists()), None)


def templates_path() -> Path:
    """Where this user's templates of jobs are."""
    import platformdirs

    return Path(platformdirs.user_config_dir("gputui")) / "templates"


def _path(text: str, where: str) -> Path:
    if not text.isprintable() or len(text) > 4096:
        raise InputError("not a path", where=where, hint="it has control characters or is too long")
    return Path(text).expanduser().absolute()


def _shown(text: str) -> str:
    """A short quotation without anything a terminal would act on."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")
