"""Settings from the site's TOML file, a personal one and the environment."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from msgspec import Struct, ValidationError

from gputui.domain.cluster import check_probe_command, parse_engine
from gputui.domain.decoding import convert
from gputui.domain.errors import InputError
from gputui.domain.job_spec import MAX_PRIORITY
from gputui.domain.settings import (
    EVENTS,
    ServerSettings,
    Settings,
    TenantSettings,
    Window,
    parse_ssh_address,
    parse_weekly,
)
from gputui.domain.text import lacks_unit, parse_duration, parse_size, shown, user_name

MAX_FILE = 1024**2
"""Maximum size in bytes: settings and job files are written by hand, so a larger file is something else."""


def read_toml(path: Path, where: str) -> tuple[dict[str, Any], os.stat_result]:
    """Return the tables of a TOML file, and owner and mode of the same opened file; raise InputError that names it."""
    import tomllib

    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InputError("is larger than 1 MiB", where=where, hint="split it")
        return tomllib.loads(content.decode()), status
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=where, hint="save it as UTF-8") from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=where) from error
    except ValueError as error:  # tomllib's own, and numbers too long for Python's int
        raise InputError(f"is not TOML: {error}", where=where) from error


def _check(path: Path, status: os.stat_result, noun: str) -> None:
    import shlex

    quoted = shlex.quote(str(path))
    why = "so others could run commands as this user through its [hooks]"
    if status.st_uid not in {0, os.geteuid()}:
        what = f"this {noun} belongs to {user_name(status.st_uid, 'uid ')}, {why}"
        raise InputError(what, where=str(path), hint=f"chown {user_name(os.geteuid())} {quoted}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not (noun == "directory" and mode & stat.S_ISVTX):
        what = f"this {noun} has mode {mode:04o} and can be changed by others, {why}"
        raise InputError(what, where=str(path), hint=f"chmod go-w {quoted}")


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
    for name in names:
        if not name.strip() or not name.isprintable():
            what = "has control characters" if name.strip() else "is blank"
            raise InputError(f"{shown(name)} {what}", where=f"{where}.name")
        if names.count(name) > 1:
            raise InputError(f"{shown(name)} is there twice", where=f"{where}.name")


def gpu_names(value: object) -> object:
    listed = value if isinstance(value, list | tuple) else [value]
    return [str(name) if type(name) is int and name >= 0 else name for name in listed]


def check_removed(names: Iterable[str], where: str) -> None:
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
    return InputError("unknown key", where=where, hint="known: " + ", ".join(known))


SIZES = frozenset(
    {"memory_floor", "log_max_size", "disk_floor"}
    | {"logs_max_size", "telemetry_max_size", "history_max_size", "audit_max_size"}
    | {"memory", "shm_size"}
)
_PRIORITIES = frozenset({"standing_priority", "agent_priority"})
_MAY_BE_ZERO = _PRIORITIES.union(
    ("stop_grace", "history_after", "keep_finished", "memory_floor", "disk_floor"),
    ("infrastructure_retries", "fast_failures", "fast_failing_jobs", "promote_after", "newcomer_credit"),
    ("patience", "forecast_jobs", "agent_gpus", "reservation_grace", "preemption_grace", "preemption_min_run"),
    ("idle_below", "idle_gpus_after", "gpu_hour", "kwh"),
)
CHOICES = {
    "hand_over": ("auto", "always", "never"),
    "extend": ("owner", "operator"),
    "what_if": ("always", "off"),
    "log_place": ("auto", "below", "beside"),
    "ascii": ("auto", "always", "never"),
    "toast": ("none", "failed", "all"),
    "bell": ("none", "failed", "all"),
    "desktop": ("none", "failed", "all"),
    "notify_for": ("mine", "all"),
    "format": ("text", "json"),
    "gpu_colours": ("judgement", "intensity"),
    "container": ("docker", "apptainer", "srun"),
    "probe": ("off", "ssh"),
    "cluster_jobs": ("own", "all"),
}
LOOPBACK = "127.0.0.1"


def check_range(key: str, value: object, where: str) -> None:
    if key in {"webhook_events", "mail_events"}:
        _check_listed(value, EVENTS, "an event", where)
    elif key == "columns" and value:
        from gputui.domain.queue_columns import QUEUE_COLUMNS  # commands do not need the columns

        _check_listed(value, tuple(QUEUE_COLUMNS), "a column", where)
    elif isinstance(value, timedelta):
        if not value and key not in _MAY_BE_ZERO:
            raise InputError("expected a duration above 0", where=where, hint='write "10s" or "1h30m"')
    elif isinstance(value, int) and not isinstance(value, bool):
        low = int(key not in _MAY_BE_ZERO)
        high = 2**60 if key in SIZES else MAX_PRIORITY if key in _PRIORITIES else MAX_COUNT
        if not low <= value <= high:
            raise InputError(f"expected {low} to {high}", where=where)
    elif isinstance(value, float):
        if not 0 <= value <= MAX_COUNT or (not value and key not in _MAY_BE_ZERO):
            raise InputError(f"expected a number up to {MAX_COUNT}", where=where)
    elif key in ("tenants", "reservations"):
        check_tables(key, value, where)
    else:
        _check_text(key, value, where)


def _check_text(key: str, value: object, where: str) -> None:
    if key in CHOICES and value not in CHOICES[key]:
        raise InputError("expected " + ", ".join(CHOICES[key]), where=where)
    if key in {"webhook", "endpoint"} and not re.match(r"https?://[^/\s]", str(value)):
        raise InputError("expected an address", where=where, hint="http://... or https://...")
    if key in _PARSED:
        _PARSED[key](str(value), where)
    elif key == "weekly" and value:
        parse_weekly(str(value), where=where)
    elif isinstance(value, str) and not value.isprintable():
        raise InputError("has control characters", where=where)


def listen_address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of `9877`, `127.0.0.1:9877`, `gpu1:9877`, `[::1]:9877` or `:9877` (loopback)."""
    host, _, port = text.strip().rpartition(":")
    named = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_whole = port.isascii() and port.isdigit() and int(port) < 65536 and named.isprintable() and " " not in named
    if not is_whole or (":" in named) != host.startswith("["):
        hint = "write 127.0.0.1:9877, [::1]:9877 or a port alone"
        raise InputError(f"{shown(text)} is not an address with a port", where=where, hint=hint)
    return named or LOOPBACK, int(port)


_PARSED: dict[str, Any] = {"engine": parse_engine, "listen": listen_address, "probe_command": check_probe_command}


def _check_listed(value: object, known: tuple[str, ...], noun: str, where: str) -> None:
    """Raise InputError for an unknown word in a list, which is a tuple if it comes from the environment."""
    unknown = [each for each in value if each not in known] if isinstance(value, (list, tuple)) else []
    if unknown:
        raise InputError(f"{shown(str(unknown[0]))} is not {noun}", where=where, hint="known: " + ", ".join(known))


SERVERS = "servers"
"""Name of the list of tables of servers, at the top of a file."""
TABLES: Mapping[str, type[Any]] = {
    name: type(getattr(Settings(), name)) for name in Settings.__struct_fields__ if name != SERVERS
}
GPU_LISTS = frozenset({"share", "prefer", "left_free"})
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


OVERRIDABLE = "overridable"
"""Key at the top of the site's file that lists the keys or tables which a personal file may change."""
_ALWAYS_PERSONAL = frozenset({"console", "cluster"})
"""Tables that a user may always change: the screen is hers, and a cluster's engine checks her rights itself."""
CLUSTER_VARIABLE = "GPUTUI_CLUSTER"

SettingsTables: TypeAlias = dict[str, dict[str, Any]]


class LoadedSettings(Struct, frozen=True):
    settings: Settings
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Ignored keys, which the site does not let that source (a personal file, the environment) change, by source."""


def load_merged(site: Path | None, own: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Return the settings of the site's file, a personal file and the environment; later ones take precedence.

    Where there is a site's file, the other two change only `[console]` and the keys that it names as overridable.
    """
    variables = _of_environment(environ)
    if site is None and own is None and not variables:
        return LoadedSettings(Settings())
    tables = _of_file(site) if site else {}
    may_change = _overridable(site, tables) if site else None
    ignored = []
    for source, layer in ((str(own), _of_file(own) if own else {}), ("environment", variables)):
        kept, refused = _split(layer, may_change)
        merged = dict(tables)
        for table, keys in kept.items():
            if table == SERVERS:
                merged[SERVERS] = keys
                continue
            below = dict(merged.get(table, {}))
            for key, value in keys.items():
                if not (isinstance(value, dict) and isinstance(below.get(key), dict)):
                    below[key] = value
                elif key == "kubernetes":
                    from gputui.domain import pod_template  # few files have the table

                    below[key] = pod_template.merged(below[key], value)
                else:
                    below[key] = {**below[key], **value}
            merged[table] = below
        tables = merged
        if refused:
            ignored.append((source, refused))
    found = [str(path) for path in (site, own) if path]
    source = ", ".join(found) or "environment"
    converted = {table: _converted_table(table, keys, source) for table, keys in tables.items()}
    return LoadedSettings(Settings(**converted), tuple(ignored))


def _overridable(site: Path, tables: SettingsTables) -> frozenset[str]:
    """Remove and return the list of overridable keys; raises InputError for an unknown name."""
    where = f"{site}: {OVERRIDABLE}"
    names = cast("object", tables.pop(OVERRIDABLE, []))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("expected a list of keys", where=where, hint='write ["store.lock_timeout"]')
    for name in names:
        table, _, key = name.partition(".")
        fields = _annotations(table, where)
        if key and key not in fields:
            raise InputError(f"{shown(name)} is not a setting", where=where, hint="known: " + ", ".join(fields))
    return _ALWAYS_PERSONAL | set(names)


def _split(layer: SettingsTables, may_change: frozenset[str] | None) -> tuple[SettingsTables, tuple[str, ...]]:
    """Return the part that a personal layer may change, and the names of its other keys."""
    if may_change is None:
        return {table: keys for table, keys in layer.items() if table != OVERRIDABLE}, ()
    kept: SettingsTables = {}
    refused = []
    for table, keys in layer.items():
        if table == OVERRIDABLE:
            refused.append(OVERRIDABLE)
            continue
        if table == SERVERS:  # like [console] a matter of the user
            kept[SERVERS] = keys
            continue
        for key, value in keys.items():
            if table in may_change or f"{table}.{key}" in may_change:
                kept.setdefault(table, {})[key] = value
            else:
                refused.append(f"{table}.{key}")
    return kept, tuple(refused)


def _of_file(path: Path) -> SettingsTables:
    tables, status = read_toml(path, str(path))
    if tables.get("hooks"):
        _check(path, status, "file")
        for directory in dict.fromkeys((path.parent, path.resolve().parent)):
            _check(directory, directory.stat(), "directory")
    found = {
        f"{table}.{key}": str(value).strip()
        for table, keys in tables.items()
        if table in TABLES and isinstance(keys, dict)
        for key, value in keys.items()
        if "timedelta" in TABLES[table].__annotations__.get(key, "")
        if isinstance(value, (str, int, float)) and lacks_unit(str(value))
    }
    if found:
        what = "this duration has no unit" if len(found) == 1 else "these durations have no unit"
        lines = ", ".join(f'{name.partition(".")[2]} = "{number}s"' for name, number in found.items())
        hint = f"gputui 0.1 took seconds: write {lines}"
        raise InputError(what, where=f"{path}: " + ", ".join(found), hint=hint)
    for table, keys in tables.items():
        if table == OVERRIDABLE:
            continue
        if table == SERVERS:
            _check_servers(keys, f"{path}: {SERVERS}")
            continue
        fields = _annotations(table, where=f"{path}: {table}")
        if not isinstance(keys, dict):
            raise InputError("expected a table", where=f"{path}: {table}", hint=f"write [{table}]")
        check_removed([f"{table}.{key}" for key in keys], f"{path}: ")
        for key, value in list(keys.items()):
            where = f"{path}: {table}.{key}"
            if f"{table}.{key}" in WITHOUT_EFFECT:
                del keys[key]
                continue
            if key not in fields:
                raise unknown(f"{table}.{key}", where, fields)
            keys[key] = _read(key, fields[key], value, where)
    return tables


def _check_servers(rows: object, where: str) -> None:
    """Raise InputError for what is no list of servers; msgspec checks the types of the rest."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("expected a list of tables", where=where, hint="write [[servers]]")
    fields = ServerSettings.__struct_fields__
    for row in rows:
        for name in row:
            if name not in fields:
                raise unknown(f"{SERVERS}.{name}", f"{where}.{name}", fields)
    names = [row.get("name") for row in rows]
    for row, name in zip(rows, names, strict=True):
        check_server_name(name, f"{where}.name")
        if names.count(name) > 1:
            raise InputError(f"{shown(str(name))} is there twice", where=f"{where}.name")
        if address := row.get("address"):
            parse_ssh_address(str(address), f"{where}.address")


def check_server_name(name: object, where: str) -> None:
    if not isinstance(name, str) or not _SERVER_NAME.fullmatch(name):
        hint = "up to 24 letters, digits, dots, - and _, such as gpu1"
        raise InputError(f"{shown(str(name))} is not a name of a server", where=where, hint=hint)


_SERVER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,23}", re.ASCII)


def _annotations(table: str, where: str) -> dict[str, str]:
    if table not in TABLES:
        raise InputError("unknown table", where=where, hint="known: " + ", ".join(TABLES))
    return TABLES[table].__annotations__


def _read(key: str, annotation: str, value: object, where: str) -> object:
    if "timedelta" in annotation:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):  # numbers for 0, and for the hint
            raise InputError("expected a duration", where=where, hint='write "10s" or "1h30m"')
        value = parse_duration(str(value), where=where)
    elif key in SIZES and isinstance(value, str):
        value = parse_size(value, where=where)
    elif key in GPU_LISTS:
        value = gpu_names(value)
    elif key == "allow":
        value = allowed(value, where)
    elif key == _MOUNTS:
        listed = _roots(list(value) if isinstance(value, tuple) else value, where)
        for path in listed:
            known = path.replace("{user}", "").replace("{uid}", "")
            if "{" in known or "}" in known or ".." in path.split("/"):
                raise InputError(
                    f"{shown(path)} is not a directory", where=where, hint='write "/data" or "/scratch/{user}"'
                )
        value = listed
    elif key == "kubernetes":
        from gputui.domain import pod_template  # few files have the table

        return pod_template.checked(value, where)
    elif key == "keys" and isinstance(value, dict):
        value = {name: [keys] if isinstance(keys, str) else keys for name, keys in value.items()}
    check_range(key, value, where)
    return value


def _of_environment(environ: Mapping[str, str]) -> SettingsTables:
    found: SettingsTables = {}
    check_removed([name for name in GONE if f"GPUTUI_{name}".replace(".", "_").upper() in environ], "the environment: ")
    for table, kind in TABLES.items():
        for key, annotation in kind.__annotations__.items():
            if (name := f"GPUTUI_{table}_{key}".upper()) in environ:
                found.setdefault(table, {})[key] = _of_text(key, annotation, environ[name], name)
    if CLUSTER_VARIABLE in environ:
        engine = _of_text("engine", "str", environ[CLUSTER_VARIABLE], CLUSTER_VARIABLE)
        found.setdefault("cluster", {})["engine"] = engine
    return found


@cache
def _variables() -> tuple[str, ...]:
    names = [f"GPUTUI_{name}".replace(".", "_").upper() for name in GONE]
    names += [f"GPUTUI_{table}_{key}".upper() for table, kind in TABLES.items() for key in kind.__annotations__]
    return (*names, CLUSTER_VARIABLE, "GPUTUI_SITE_CONFIG")


def settings_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _variables() if name in environ}


def value_of_text(kind: type[Any], key: str, text: str, where: str, offered: Sequence[str] = ()) -> Any:
    """Parse the text of a setting's value; `none` unsets a setting that may be unset.

    Raises InputError for a key that the table does not have, and for an invalid value. For a wrong key the error lists
    the keys that are `offered`; without any, all of the table.
    """
    annotation = kind.__annotations__.get(key)
    if annotation is None:
        import difflib  # only needed for an error

        names = list(offered or kind.__annotations__)
        near = difflib.get_close_matches(key, names, 1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(names)
        raise InputError(f"{shown(key)} is not a setting", where=where, hint=hint)
    if text.lower() == "none" and annotation.endswith("| None"):
        return None
    return _of_text(key, annotation, text, where)


def _of_text(key: str, annotation: str, text: str, where: str) -> object:
    value: object = text
    if annotation.startswith("tuple"):
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif annotation.startswith("Mapping"):
        value = {name: keys.split(",") for name, _, keys in (pair.partition("=") for pair in text.split())}
    elif annotation == "AllowSettings":
        words = {"true": True, "false": False}
        pairs = [part.partition("=")[::2] for part in text.split()]
        value = {key: value.split(",") if key in _LISTS else words.get(value, value) for key, value in pairs}
    elif annotation == "bool":
        if text.lower() not in _BOOLEANS:
            raise InputError("expected true or false", where=where)
        value = _BOOLEANS[text.lower()]
    elif annotation.startswith("int") and key not in SIZES:
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII):
            raise InputError("expected a whole number", where=where)
        value = int(text)
    elif annotation.startswith("float"):
        if not re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text, re.ASCII):
            raise InputError("expected a number", where=where)
        value = float(text)
    return _read(key, annotation, value, where)


def _converted_table(table: str, keys: object, source: str) -> Any:
    """Return the settings of one table; msgspec reads in the types of these alone, which takes a while for all."""
    try:
        return convert(keys, tuple[ServerSettings, ...] if table == SERVERS else TABLES[table])
    except ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise InputError(what[:1].lower() + what[1:], where=f"{source}: {table}{path.rstrip('`')}") from error


_MOUNTS, _VOLUMES = _LISTS = ("mounts", "named_volumes")


def allowed(value: object, where: str) -> dict[str, Any]:
    """Return the table as AllowSettings; raises InputError that names the key."""
    from gputui.domain.policy.admission import ALLOWABLE  # few sites have the table

    if not isinstance(value, dict):
        raise InputError("expected a table", where=where, hint="write [policy.allow]")
    options: dict[str, bool] = {}
    for key, switch in value.items():
        if key in _LISTS:
            continue
        if key not in ALLOWABLE:
            import difflib  # only needed for an error

            near = difflib.get_close_matches(str(key), (*ALLOWABLE, *_LISTS), 1)
            hint = f"did you mean {near[0]}?" if near else "an option of submit, with underscores"
            raise InputError("unknown key", where=f"{where}.{key}", hint=hint)
        if not isinstance(switch, bool):
            raise InputError("expected true or false", where=f"{where}.{key}")
        options[key] = switch
    roots, names = value.get(_MOUNTS), value.get(_VOLUMES)
    roots = None if roots is None else _roots(roots, f"{where}.{_MOUNTS}")
    names = names if names is None or isinstance(names, list) else [names]
    for name in names or ():
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9][\w.-]*", name, re.ASCII):
            hint = 'write named_volumes = ["models"]'
            raise InputError("expected names of volumes", where=f"{where}.{_VOLUMES}", hint=hint)
    return {"options": options, _MOUNTS: roots, _VOLUMES: names}


def _roots(value: object, where: str) -> list[str]:
    listed: list[Any] = value if isinstance(value, list) else [value]
    for path in listed:
        if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
            raise InputError("expected absolute paths", where=where, hint='write mounts = ["/data", "/scratch"]')
    return listed
