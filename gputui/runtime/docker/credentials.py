"""Credentials for pulls, from the file of `docker login` and its helper programs.

What cannot be used is no reason not to pull: `docker pull` goes on without it too, and most images are public. But it
is told, for it is the likely reason when the registry then refuses. docker-py's own search raises errors for it.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.runtime.docker.endpoint import config_directory, read_settings

PATIENCE = 20.0
"""Seconds that a helper may take: one that waits for somebody to unlock a keyring never answers."""
_TOKEN_USER = "<token>"
_FIELDS = ("username", "password", "identitytoken", "registrytoken")
_NONE_STORED = ("credentials not found", "no credentials", "credentials server url is missing")
_LONGEST_WORDS = 200


class Credentials(Struct, frozen=True):
    """Credentials for one registry."""

    auth: Mapping[str, str] = {}
    """Fields of the engine's AuthConfig; empty: none are stored."""
    problem: str = ""
    """Reason why stored credentials cannot be used."""


class _UnusableError(Exception):
    """Credentials that cannot be used; the text says why, and names the file or helper."""


def find_credentials(image: str, asking: Callable[[str], None] = lambda _: None) -> Credentials:
    """Return the credentials for the image's registry; `asking` is called with the name of a helper that is asked.

    Raises docker.errors.InvalidRepository for an invalid name.
    """
    from docker.auth import INDEX_NAME, INDEX_URL, resolve_repository_name
    from docker.utils import parse_repository_tag

    registry, _ = resolve_repository_name(parse_repository_tag(image)[0])
    server = INDEX_URL if registry == INDEX_NAME else registry
    try:
        settings = _settings()
        if helper := str(_object(settings, "credHelpers").get(server) or settings.get("credsStore") or ""):
            asking(helper)
            if found := _ask(helper, server):
                return Credentials(found)
        return Credentials(_written(server, settings))
    except _UnusableError as error:
        return Credentials(problem=str(error))


def warnings() -> Iterator[str]:
    """Yield what prevents the use of stored credentials, as far as it shows without asking a helper."""
    effect = "images are pulled without those credentials"
    try:
        settings = _settings()
        helpers = _object(settings, "credHelpers")
    except _UnusableError as error:
        yield f"{error}: {effect}; repair the file"
        return
    for helper in dict.fromkeys(str(one) for one in (settings.get("credsStore"), *helpers.values()) if one):
        if shutil.which(_program(helper)) is None:
            yield f"{_missing(helper)}: {effect}; install it, or remove it from the file and `docker login`"


def _file() -> Path:
    return config_directory() / "config.json"


def _settings() -> Mapping[str, Any]:
    try:
        found = json.loads(read_settings(_file()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"it is not JSON in line {getattr(error, 'lineno', 1)}"
        raise _UnusableError(f"{_file()} cannot be read ({why})") from error
    if not isinstance(found, dict):
        raise _UnusableError(f"{_file()} is not a JSON object")
    return found


def _object(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = settings.get(key) or {}
    if not isinstance(found, dict):
        raise _UnusableError(f"{key} in {_file()} is not an object")
    return found


def _program(helper: str) -> str:
    return f"docker-credential-{helper}"


def _missing(helper: str) -> str:
    return f"{_program(helper)}, which {_file()} names, is not on the PATH"


def _ask(helper: str, server: str) -> Mapping[str, str]:
    """Return the credentials that the helper has for the registry; empty for none. Raises _UnusableError."""
    name = _program(helper)
    if (program := shutil.which(name)) is None:
        raise _UnusableError(_missing(helper))
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen([program, "get"], stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(server.encode(), timeout=PATIENCE)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise _UnusableError(f"{name} did not answer within {PATIENCE:g} s") from error
    except OSError as error:
        raise _UnusableError(f"{program} cannot be run: {error.strerror}") from error
    if process.returncode:
        said = " ".join((out or err).decode(errors="replace").split())[:_LONGEST_WORDS]
        if said.lower().startswith(_NONE_STORED):
            return {}
        raise _UnusableError(f"{name} failed with code {process.returncode}{said and f': {said}'}")
    try:
        found = json.loads(out)
        user, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _UnusableError(f"{name} answered with something else than credentials") from error
    if not secret:
        return {}
    if user == _TOKEN_USER:
        return {"identitytoken": secret, "serveraddress": server}
    return {"username": user, "password": secret, "serveraddress": server}


def _written(server: str, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the credentials that stand in the file itself. Raises _UnusableError."""
    from docker.auth import resolve_index_name

    entries = _object(settings, "auths")
    host = resolve_index_name(server)
    entry = entries.get(server) or next((one for key, one in entries.items() if resolve_index_name(key) == host), None)
    if not entry:
        return {}
    try:
        found = {key: str(entry[key]) for key in _FIELDS if entry.get(key)}
        if entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            found |= {"username": user, "password": password.rstrip("\0")}
    except (ValueError, TypeError, AttributeError) as error:
        raise _UnusableError(f"the entry for {host} in {_file()} is damaged: run `docker login {host}`") from error
    return {**found, "serveraddress": server} if found else {}
