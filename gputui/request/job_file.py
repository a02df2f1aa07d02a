"""Drafts as job files, and JSON schemas of job and settings files, for editors and other programs.

A job file is a form's contents as a file that `gputui submit -f` accepts, and vice versa.
"""

from __future__ import annotations

import datetime
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, structs

from gputui.config.settings_file import CHOICES, GPU_LISTS, OVERRIDABLE, SERVERS, SIZES, TABLES, read_toml
from gputui.domain.errors import InputError
from gputui.domain.job_spec import Submission
from gputui.domain.pod_template import KubernetesSettings
from gputui.domain.settings import Settings
from gputui.domain.text import format_limit, format_size, quoted
from gputui.request import caller
from gputui.request.draft import Draft, check_further, filled_texts
from gputui.request.job_options import BY_NAME, KEYS, JobOption, OptionKind
from gputui.request.submitter import Submitter, raised, submission

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def draft_as_toml(draft: Draft, *, with_others: bool = False) -> str:
    """Return the job file; `with_others` adds a commented-out line for each unused key."""
    check_further(draft)
    texts = filled_texts(draft)
    lines = ["[[job]]", f"image = {_toml_text(texts['image'])}" if "image" in texts else "host = true"]
    lines += [f"command = {_list(_words(texts['command']))}"] if "command" in texts else []
    lines += [f"{name} = {_toml_value(name, text)}" for name, text in texts.items() if name in BY_NAME]
    if with_others:
        lines += ["", "# Further options:"]
        empty = {OptionKind.FLAG: "true", OptionKind.MANY: "[]", OptionKind.PAIRS: "{}", OptionKind.ONE: '""'}
        lines += [f"# {key.name} = {empty[key.kind]}  # {key.help}" for key in KEYS if key.name not in texts]
    return "\n".join(lines) + "\n"


def _toml_value(name: str, text: str) -> str:
    kind = BY_NAME[name].kind
    if kind is OptionKind.FLAG:
        return "true"
    if kind is OptionKind.ONE:
        return text if re.fullmatch(r"0|[1-9]\d{0,8}", text, re.ASCII) else _toml_text(text)
    words = _words(text)
    pairs = [word.partition("=") for word in words]
    is_table = all(equals for _, equals, _ in pairs) and len({name for name, _, _ in pairs}) == len(pairs)
    if kind is not OptionKind.PAIRS or not is_table:  # a list can express more
        return _list(words)
    inner = (f"{name if _BARE.fullmatch(name) else _toml_text(name)} = {_toml_text(value)}" for name, _, value in pairs)
    return "{" + ", ".join(inner) + "}"


def _list(listed: list[str]) -> str:
    return "[" + ", ".join(map(_toml_text, listed)) + "]"


def _toml_text(text: str) -> str:
    """Return a basic string: TOML's escapes are those of JSON, except that DEL needs one too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _words(text: str) -> list[str]:
    """Return the words; of a text with an open quotation, its parts between blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def read_draft(path: Path, by: Submitter) -> dict[str, str]:
    """Return the draft in a file of one job; raises InputError that names file, job and key."""
    jobs = tables(str(path))
    if len(jobs) != 1:
        hint = f"gputui submit -f {path} submits them all"
        raise InputError(f"has {len(jobs)} jobs, and a form takes one", where=str(path), hint=hint)
    read_jobs(str(path), by)
    table, place = jobs[0]
    draft = {
        name: shlex.join(option_texts(value, f"{place}.{name}", has_lists=name in BY_NAME and BY_NAME[name].has_lists))
        for name, value in table.items()
        if _many(name)
    }
    for name, value in table.items():
        if not _many(name):
            flag = "yes" if value else ""
            draft[name] = flag if isinstance(value, bool) else option_texts(value, f"{place}.{name}")[0]
    return filled_texts(draft)


def _many(name: str) -> bool:
    return name == "command" or (name in BY_NAME and BY_NAME[name].kind in {OptionKind.MANY, OptionKind.PAIRS})


_BESIDES = ("image", "host", "command")


def read_jobs(path: str, submitter: Submitter) -> tuple[Submission, ...]:
    return tuple(job_of(table, place, submitter) for table, place in tables(path))


def tables(path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the unparsed tables of a file, each with its name for errors."""
    if "\0" in path:
        raise InputError("has a NUL character", where="--file")
    caller.check_here()
    whole, _ = read_toml(Path(path), path)
    for key in whole:
        if key != "job":
            raise InputError("unknown key", where=f"{path}: {_shown(key)}", hint="jobs are [[job]] tables")
    jobs = whole.get("job")
    if not isinstance(jobs, list) or not jobs:
        raise InputError("expected at least one [[job]] table", where=f"{path}: job")
    places = [f"{path}: job[{number}]" for number in range(1, len(jobs) + 1)]
    for table, place in zip(jobs, places, strict=True):
        if not isinstance(table, dict):
            raise InputError("expected a table", where=place, hint="write [[job]]")
    return list(zip(jobs, places, strict=True))


def job_of(table: dict[str, Any], place: str, submitter: Submitter) -> Submission:
    """Return the submission of one table; `place` is its name for errors."""

    def where(key: str) -> str:
        return f"{place}.{_shown(key)}"

    import difflib  # few files are read

    known = (*_BESIDES, *BY_NAME)
    faults: list[InputError] = []
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            faults.append(
                InputError("unknown key", where=where(key), hint=f"did you mean {near[0]}?" if near else None)
            )
    values: dict[str, object] = {}
    for name, value in table.items():
        if name in BY_NAME:
            try:
                values[name] = _value(BY_NAME[name], value, where(name))
            except InputError as error:
                faults.append(error)
    raised(faults)
    command = _texts(table.get("command", []), where("command"))
    host, image = table.get("host", False), table.get("image")
    if not isinstance(host, bool):
        raise InputError("expected true or false", where=where("host"))
    if image is not None and not isinstance(image, str):
        raise InputError("expected text", where=where("image"))
    if host and image is not None:
        raise InputError("a host job has no image", where=where("image"))
    if not host and image is None:
        raise InputError("is missing", where=where("image"), hint="or write host = true")
    return submission(values, image, command, submitter, where)


def _value(key: JobOption, value: object, where: str) -> object:
    if key.kind is OptionKind.FLAG:
        if not isinstance(value, bool):
            raise InputError("expected true or false", where=where)
        return value
    if key.kind is OptionKind.PAIRS and not isinstance(value, dict | list):
        raise InputError("expected a table", where=where, hint='write {NAME = "value"}')
    if key.kind is OptionKind.ONE:
        return key.read(_text(value, where), where)
    if isinstance(value, dict) and key.kind is not OptionKind.PAIRS:
        raise InputError("expected text or a number", where=where)
    return tuple(key.read(text, where) for text in option_texts(value, where, has_lists=key.has_lists))


def option_texts(value: object, where: str, *, has_lists: bool = False) -> tuple[str, ...]:
    """Return a value, a list or a table of pairs in the notation of an option.

    `has_lists` allows lists in that table: `{lr = [0.1, 0.2]}`.
    """
    if isinstance(value, dict):
        texts = []
        for name, inner in value.items():
            at = f"{where}.{_shown(name)}"
            if has_lists and isinstance(inner, list):
                from gputui.domain.sweep import quoted_list

                texts.append(f"{name}={quoted_list(_texts(inner, at))}")
            else:
                texts.append(f"{name}={_text(inner, at)}")
        value = texts
    return _texts(value if isinstance(value, list) else [value], where)


def _text(value: object, where: str) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError("expected text or a number", where=where)
    try:
        return str(value)
    except ValueError as error:  # Python refuses to print numbers with thousands of digits
        raise InputError("is too large a number", where=where) from error


def _texts(values: object, where: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise InputError("expected a list of texts", where=where, hint='write ["python", "train.py"]')
    return tuple(_text(value, f"{where}[{number}]") for number, value in enumerate(values, 1))


def _shown(key: str) -> str:
    return key if key.isidentifier() and key.isascii() and len(key) <= 40 else quoted(key)


Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION: Schema = {"anyOf": [{"type": "string"}, {"const": 0}], "description": "10s, 1h30m, 2d, 2-12:00:00, or 0"}
SIZE: Schema = {"type": ["string", "integer"], "description": "bytes, or 512m, 16g"}
_NAMES: Schema = {"type": ["array", "string", "integer"], "items": {"type": ["string", "integer"]}}
"""GPUs by index or UUID; one may stand alone."""
_KEYS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "array"], "items": {"type": "string"}}}
_ALLOW: Schema = {
    "type": "object",
    "properties": {
        name: {"type": ["array", "string"], "items": {"type": "string"}} for name in ("mounts", "named_volumes")
    },
    "additionalProperties": {"type": "boolean"},
}
_TEXT: Schema = {"type": ["string", "number"]}


def settings_schema() -> Schema:
    made = msgspec.json.schema(Settings)
    defined: dict[str, Schema] = made["$defs"]
    properties: dict[str, Schema] = {}
    for table, kind in TABLES.items():
        properties[table] = closed = _closed(defined[kind.__name__])
        for field in structs.fields(kind):
            closed["properties"][field.name] = _of_field(field, closed["properties"][field.name])
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


def _of_field(field: structs.FieldInfo, made: Schema) -> Schema:
    name, default = field.name, field.default
    shown = {} if default is NODEFAULT or default is None or isinstance(default, Struct) else {"default": default}
    if "timedelta" in str(field.type):
        return DURATION | ({"default": format_limit(default)} if isinstance(default, timedelta) else {})
    if name in SIZES:
        return SIZE | ({"default": format_size(default).lower()} if isinstance(default, int) else {})
    if name in CHOICES:
        return {"enum": list(CHOICES[name])} | shown
    if name in GPU_LISTS:
        return _NAMES
    if name == "keys":
        return _KEYS
    if name == "allow":
        return _ALLOW
    if name == "kubernetes":
        return {"$ref": "#/$defs/KubernetesSettings"}
    # TOML has no null
    kinds = [kind for kind in made.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in made.items() if key != "anyOf" and value is not None}
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds}) if kinds else rest


def _closed(made: Schema) -> Schema:
    return {**made, "properties": dict(made["properties"]), "additionalProperties": False}


def job_schema() -> Schema:
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
