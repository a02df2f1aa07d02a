"""Address and TLS files of the engine, with the precedence of the docker command."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings

DEFAULT_URL = "unix:///var/run/docker.sock"
_UNIX = ("unix://", "http+unix://")
_TCP = ("tcp://", "http://", "https://")
_SSH = "ssh://"
_CONTEXT_HINT = "`docker context ls` lists the contexts"


class TlsFiles(Struct, frozen=True):
    """TLS files for a TCP connection to the engine; each path may be None."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verifies: bool = True
    """True if the engine's certificate is checked."""


class Endpoint(Struct, frozen=True):
    """Address of the engine."""

    url: str
    tls: TlsFiles | None = None

    @property
    def socket_path(self) -> str | None:
        """Path of the UNIX socket; None for an engine that is reached in another way."""
        if not self.url.startswith(_UNIX):
            return None
        return "/" + self.url.partition("://")[2].lstrip("/")

    @property
    def is_ssh(self) -> bool:
        """Return whether the engine is reached through the ssh command."""
        return self.url.startswith(_SSH)


def find_endpoint(settings: RuntimeSettings) -> Endpoint:
    """Return the engine's address: the setting, else DOCKER_HOST, else the docker context. Raises RuntimeFault."""
    if settings.docker_host:
        return _checked(settings.docker_host, "the setting runtime.docker_host", _environment_tls)
    if host := os.environ.get("DOCKER_HOST"):
        return _checked(host, "DOCKER_HOST", _environment_tls)
    chosen = os.environ.get("DOCKER_CONTEXT") or _read_json(config_directory() / "config.json").get("currentContext")
    name = str(chosen or "default")
    if name == "default":
        return Endpoint(DEFAULT_URL)
    return _of_context(name)


def _checked(url: str, source: str, tls: Any) -> Endpoint:
    """Return the endpoint of a URL; raises RuntimeUnavailableError for an unknown kind of address."""
    url = url.strip()
    if url == "unix://":
        url = DEFAULT_URL
    if "://" not in url:
        url = f"unix://{url}" if url.startswith("/") else f"tcp://{url}"
    if url.startswith(_TCP):
        found = tls()
        return Endpoint(url, found or (TlsFiles() if url.startswith("https://") else None))
    if not url.startswith((*_UNIX, _SSH)):
        raise RuntimeUnavailableError(
            f"{source} is {url!r}, which is not an address of an engine",
            hint="use unix:///path, tcp://host:port or ssh://user@host",
        )
    return Endpoint(url)


def config_directory() -> Path:
    """Return the directory of the docker command's settings."""
    given = os.environ.get("DOCKER_CONFIG")
    return Path(given) if given else Path.home() / ".docker"


MAX_SETTINGS = 16 * 1024**2
"""Maximum size in bytes of a file of the docker command; a larger one is something else."""


def read_settings(path: Path) -> bytes:
    """Return the contents of a file of the docker command; raises OSError, also for one that is too large."""
    with path.open("rb") as file:
        content = file.read(MAX_SETTINGS + 1)
    if len(content) > MAX_SETTINGS:
        raise OSError(errno.EFBIG, "it is larger than 16 MiB", str(path))
    return content


def _environment_tls() -> TlsFiles | None:
    """Return the TLS files of DOCKER_TLS, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH.

    As with the docker command, any non-empty value enables TLS, and DOCKER_CERT_PATH alone does not.
    """
    verifies = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    if not verifies and not os.environ.get("DOCKER_TLS"):
        return None
    given = os.environ.get("DOCKER_CERT_PATH")
    if given and not Path(given).is_dir():
        what = f"DOCKER_CERT_PATH is {given}, which is no directory"
        raise RuntimeUnavailableError(what, hint="it needs ca.pem, cert.pem and key.pem for the engine's TLS")
    return _files_in(Path(given) if given else config_directory(), verifies)


def _files_in(directory: Path, verifies: bool) -> TlsFiles:
    """Return the TLS files in a directory. Raises RuntimeUnavailableError when certificate or key is missing."""
    ca, certificate, key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    if certificate.exists() != key.exists():
        missing = key if certificate.exists() else certificate
        raise RuntimeUnavailableError(f"{missing} is missing, and TLS needs it", hint="see DOCKER_CERT_PATH")
    has_pair = certificate.exists()
    return TlsFiles(
        ca=ca if ca.exists() else None,
        certificate=certificate if has_pair else None,
        key=key if has_pair else None,
        verifies=verifies,
    )


def _of_context(name: str) -> Endpoint:
    contexts = config_directory() / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = contexts / "meta" / key / "meta.json"
    if not meta.exists():
        raise RuntimeUnavailableError(f"there is no docker context {name!r}", hint=_CONTEXT_HINT)
    docker = (_read_json(meta).get("Endpoints") or {}).get("docker") or {}
    if not docker.get("Host"):
        raise RuntimeUnavailableError(f"the docker context {name!r} names no host", hint=_CONTEXT_HINT)
    files, skips = contexts / "tls" / key / "docker", bool(docker.get("SkipTLSVerify"))

    def tls() -> TlsFiles | None:
        has_files = files.is_dir() and any(files.iterdir())
        return _files_in(files, not skips) if has_files or skips else None

    return _checked(str(docker["Host"]), f"docker context {name!r}", tls)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_settings(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RuntimeUnavailableError(
            f"cannot read {path}: {error}", hint="repair it, or name the engine: DOCKER_HOST"
        ) from error
    return found if isinstance(found, dict) else {}
