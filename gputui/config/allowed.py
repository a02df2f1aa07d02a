"""The table `[policy.allow]`: a switch for each option of docker run, and the directories that may be mounted."""

from __future__ import annotations

from typing import Any

from gputui.domain.errors import InputError
from gputui.domain.policy.permitted_options import ALLOWABLE

_MOUNTS = "mounts"


def allowed(value: object, where: str) -> dict[str, Any]:
    """Return the table as AllowSettings has it; raises InputError that names the key."""
    if not isinstance(value, dict):
        raise InputError("expected a table", where=where, hint="write [policy.allow]")
    options: dict[str, bool] = {}
    for key, switch in value.items():
        if key == _MOUNTS:
            continue
        if key not in ALLOWABLE:
            import difflib  # only where something is wrong

            near = difflib.get_close_matches(str(key), (*ALLOWABLE, _MOUNTS), 1)
            hint = f"did you mean {near[0]}?" if near else "an option of submit, with underscores"
            raise InputError("unknown key", where=f"{where}.{key}", hint=hint)
        if not isinstance(switch, bool):
            raise InputError("expected true or false", where=f"{where}.{key}")
        options[key] = switch
    roots = value.get(_MOUNTS)
    return {"options": options, _MOUNTS: None if roots is None else _roots(roots, f"{where}.{_MOUNTS}")}


def _roots(value: object, where: str) -> list[str]:
    listed: list[Any] = value if isinstance(value, list) else [value]
    for path in listed:
        if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
            raise InputError("expected absolute paths", where=where, hint='write mounts = ["/data", "/scratch"]')
    return listed


def allowed_of_text(text: str) -> dict[str, Any]:
    """Return the table meant by `privileged=false mounts=/data,/scratch`, as an environment variable has it."""
    words = {"true": True, "false": False}
    pairs = [part.partition("=")[::2] for part in text.split()]
    return {key: value.split(",") if key == _MOUNTS else words.get(value, value) for key, value in pairs}
