"""Options of `docker run` in the words of the engine's API: --mount, --volume, --ulimit."""

from __future__ import annotations

import csv
from typing import Any

from gputui.domain.errors import InputError
from gputui.domain.units import parse_size
from gputui.runtime.docker_faults import bad_spec

_ALIASES = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_FLAGS = {"readonly", "bind-nonrecursive", "volume-nocopy"}


def mount(text: str) -> dict[str, Any]:
    """The API's Mount of `type=bind,source=/a,target=/b,readonly`."""
    fields = _fields(text)
    kind = fields.pop("type", "volume")
    if kind not in {"bind", "volume", "tmpfs"}:
        raise bad_spec("--mount", f"type is bind, volume or tmpfs, not {kind!r}")
    target = fields.pop("target", "")
    if not target:
        raise bad_spec("--mount", f"{text!r} has no target")
    made: dict[str, Any] = {"Type": kind, "Target": target}
    source = fields.pop("source", "")
    if kind == "bind" and not source.startswith("/"):
        raise bad_spec("--mount", f"the source of a bind mount is an absolute path, not {source!r}")
    if source:
        made["Source"] = source
    if _is_true(fields.pop("readonly", "false")):
        made["ReadOnly"] = True
    return made | _special(kind, fields)


def _fields(text: str) -> dict[str, str]:
    """The comma-separated pairs; values with commas are quoted as in CSV, flags may stand alone."""
    fields: dict[str, str] = {}
    for part in next(csv.reader([text]), []):
        key, equals, value = part.partition("=")
        key = _ALIASES.get(key.strip().lower(), key.strip().lower())
        if not equals and key not in _FLAGS:
            raise bad_spec("--mount", f"{part!r} is not key=value")
        value = value if equals else "true"
        fields[key] = f"{fields[key]}\n{value}" if key in {"volume-label", "volume-opt"} and key in fields else value
    return fields


def _special(kind: str, fields: dict[str, str]) -> dict[str, Any]:
    """BindOptions, VolumeOptions or TmpfsOptions, from the fields that remain."""
    takers = {"bind": _bind, "volume": _volume, "tmpfs": _tmpfs}
    fields.pop("consistency", None)  # only ever meant something on macOS
    options = takers[kind](fields)
    if fields:
        raise bad_spec("--mount", f"{kind} mounts take no {', '.join(sorted(fields))}")
    return {f"{kind.capitalize()}Options": options} if options else {}


def _bind(fields: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "bind-propagation" in fields:
        options["Propagation"] = fields.pop("bind-propagation")
    if _is_true(fields.pop("bind-nonrecursive", "false")):
        options["NonRecursive"] = True
    return options


def _volume(fields: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if _is_true(fields.pop("volume-nocopy", "false")):
        options["NoCopy"] = True
    if "volume-label" in fields:
        options["Labels"] = _pairs(fields.pop("volume-label"))
    driver: dict[str, Any] = {}
    if "volume-driver" in fields:
        driver["Name"] = fields.pop("volume-driver")
    if "volume-opt" in fields:
        driver["Options"] = _pairs(fields.pop("volume-opt"))
    return options | ({"DriverConfig": driver} if driver else {})


def _tmpfs(fields: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "tmpfs-size" in fields:
        try:
            options["SizeBytes"] = parse_size(fields.pop("tmpfs-size"))
        except InputError as error:
            raise bad_spec("--mount", f"tmpfs-size: {error}") from error
    if "tmpfs-mode" in fields:
        try:
            options["Mode"] = int(fields.pop("tmpfs-mode"), 8)
        except ValueError as error:
            raise bad_spec("--mount", "tmpfs-mode is an octal number") from error
    return options


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.split("\n"))}


def _is_true(text: str) -> bool:
    if text.lower() not in {"true", "1", "false", "0"}:
        raise bad_spec("--mount", f"{text!r} is neither true nor false")
    return text.lower() in {"true", "1"}


def is_anonymous(volume: str) -> bool:
    """Whether a `--volume` names only where it is mounted."""
    return ":" not in volume


def bind(volume: str) -> str:
    """A `--volume` with a source, checked: the engine takes absolute paths and volume names."""
    source = volume.partition(":")[0]
    if not source or source.startswith((".", "~")):
        raise bad_spec("--volume", f"the source is an absolute path or a volume's name, not {source!r}")
    return volume


def ulimit(text: str) -> dict[str, Any]:
    """The API's Ulimit of `name=soft[:hard]`."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    try:
        low = int(soft)
        return {"Name": name, "Soft": low, "Hard": int(hard) if hard else low}
    except ValueError as error:
        raise bad_spec("--ulimit", f"{text!r} is not name=soft[:hard]") from error
