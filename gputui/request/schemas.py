"""JSON schemas of the settings file and of job files, for editors and other programs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, structs

from gputui.config import SIZES, TABLES
from gputui.config.settings_file import CHOICES, OVERRIDABLE, SERVERS
from gputui.domain.pod_template import KubernetesSettings
from gputui.domain.settings import Settings
from gputui.domain.units import format_duration, format_size
from gputui.request.job_options import KEYS, JobOption, OptionKind

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION: Schema = {"anyOf": [{"type": "string"}, {"const": 0}], "description": "10s, 1h30m, 2d, 2-12:00:00, or 0"}
SIZE: Schema = {"type": ["string", "integer"], "description": "bytes, or 512m, 16g"}
_NAMES: Schema = {"type": ["array", "string", "integer"], "items": {"type": ["string", "integer"]}}
"""GPUs by index or UUID; one may stand alone."""
_GPU_LISTS = frozenset({"share", "prefer", "left_free"})
_KEYS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "array"], "items": {"type": "string"}},
}
_ALLOW: Schema = {
    "type": "object",
    "properties": {
        name: {"type": ["array", "string"], "items": {"type": "string"}} for name in ("mounts", "named_volumes")
    },
    "additionalProperties": {"type": "boolean"},
}
_TEXT: Schema = {"type": ["string", "number"]}


def settings_schema() -> Schema:
    """Return the schema of a settings file."""
    made = msgspec.json.schema(Settings)
    defined: dict[str, Schema] = made["$defs"]
    properties: dict[str, Schema] = {table: _of_table(kind, defined) for table, kind in TABLES.items()}
    names = [f"{table}.{field.name}" for table, kind in TABLES.items() for field in structs.fields(kind)]
    properties[OVERRIDABLE] = {
        "description": "in the site's file: keys, or whole tables, that personal files may change",
        "type": "array",
        "items": {"enum": [*TABLES, *names]},
    }
    properties[SERVERS] = {"type": "array", "items": {"$ref": "#/$defs/ServerSettings"}}
    used = {name: _closed(defined[name]) for name in ("ServerSettings", "TenantSettings", "Window")}
    used["Window"]["properties"]["gpus"] = _NAMES
    used |= msgspec.json.schema(KubernetesSettings)["$defs"]
    return _document("gputui settings", properties) | {"$defs": used}


def _of_table(kind: type[Struct], defined: dict[str, Schema]) -> Schema:
    found = _closed(defined[kind.__name__])
    found["properties"] = {
        field.name: _of_field(field, found["properties"][field.name]) for field in structs.fields(kind)
    }
    return found


def _of_field(field: structs.FieldInfo, made: Schema) -> Schema:
    name, default = field.name, field.default
    shown = {} if default is NODEFAULT or default is None or isinstance(default, Struct) else {"default": default}
    if "timedelta" in str(field.type):
        return DURATION | ({"default": format_duration(default)} if isinstance(default, timedelta) else {})
    if name in SIZES:
        return SIZE | ({"default": format_size(default).lower()} if isinstance(default, int) else {})
    if name in CHOICES:
        return {"enum": list(CHOICES[name])} | shown
    if name in _GPU_LISTS:
        return _NAMES
    if name == "keys":
        return _KEYS
    if name == "allow":
        return _ALLOW
    if name == "kubernetes":
        return {"$ref": "#/$defs/KubernetesSettings"}
    return _without_null(made)


def _without_null(made: Schema) -> Schema:
    """Return the schema without null, which TOML has not."""
    kinds = [kind for kind in made.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in made.items() if key != "anyOf" and value is not None}
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds}) if kinds else rest


def _closed(made: Schema) -> Schema:
    return {**made, "properties": dict(made["properties"]), "additionalProperties": False}


def job_schema() -> Schema:
    """Return the schema of a job file, as `gputui submit -f` takes it."""
    one: Schema = {
        "type": "object",
        "properties": {
            "image": {"type": "string", "description": "image of the container; a host job has none"},
            "host": {"type": "boolean", "description": "true for a job of processes on this host"},
            "command": {"type": "array", "items": _TEXT},
            **{option.name: _of_option(option) for option in KEYS},
        },
        "additionalProperties": False,
        "oneOf": [{"required": ["image"]}, {"required": ["host"], "properties": {"host": {"const": True}}}],
    }
    return _document("gputui job file", {"job": {"type": "array", "minItems": 1, "items": one}}) | {"required": ["job"]}


def _of_option(option: JobOption) -> Schema:
    about: Schema = {"description": option.help}
    if option.kind is OptionKind.FLAG:
        return about | {"type": "boolean"}
    several: Schema = {"type": ["string", "number", "array"], "items": _TEXT}
    if option.kind is OptionKind.MANY:
        return about | several
    if option.kind is OptionKind.PAIRS:
        inner = {"type": ["string", "number", "array"], "items": _TEXT} if option.has_lists else _TEXT
        return about | several | {"type": [*several["type"], "object"], "additionalProperties": inner}
    return about | (DURATION if option.metavar == "DURATION" else _TEXT) | about


def _document(title: str, properties: dict[str, Schema]) -> Schema:
    return {
        "$schema": DIALECT,
        "title": title,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


SCHEMAS = {"settings": settings_schema, "job": job_schema}
"""Makers of the schemas by name."""
