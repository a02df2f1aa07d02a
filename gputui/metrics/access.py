"""Access to the metrics port: certificate, key, and the users who may scrape."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import ssl
import stat
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from gputui.domain.errors import InputError
from gputui.domain.installing import install_line
from gputui.domain.settings import MetricsSettings

_BCRYPT = ("$2a$", "$2b$", "$2y$")
_MOST_KEPT = 64
"""Maximum number of correct passwords remembered, as hashes: bcrypt is slow on purpose, and scrapes are frequent."""
_NOBODY = b"$2b$10$7EqJtq98hPqEX7fNZaFWoOhi5BWX4Z1Z3MxE8lmyy6h6Zy/YPj4Oa"
"""Hash for unknown names, so that they take as long as known ones."""


class Users:
    """Names and bcrypt hashes; checks the credentials of a request."""

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        self._hashes = hashes
        self._salt = secrets.token_bytes(16)
        self._right: set[bytes] = set()
        self._lock = threading.Lock()
        """Held while a hash is computed: one at a time, so that wrong passwords cannot occupy all processors."""

    def admit(self, header: str) -> bool:
        """Return whether the value of an Authorization header has a user with the correct password."""
        name, password = _credentials(header)
        digest = hmac.digest(self._salt, name.encode() + b"\0" + password, hashlib.sha256)
        if digest in self._right:
            return True
        with self._lock:
            is_right = _is_right(password, self._hashes.get(name))
        if is_right and len(self._right) < _MOST_KEPT:
            self._right.add(digest)
        return is_right


def _is_right(password: bytes, known: bytes | None) -> bool:
    import bcrypt

    # bcrypt uses only the first 72 bytes, and newer versions refuse more
    return bcrypt.checkpw(password[:72], known or _NOBODY) and known is not None


def _credentials(header: str) -> tuple[str, bytes]:
    """Return name and password of a header; empty if it is not a `Basic` header."""
    scheme, _, encoded = header.partition(" ")
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return "", b""
    name, _, password = decoded.partition(b":")
    return name.decode(errors="replace"), password


def read_users(path: Path) -> Users:
    """Return the users of a file; raises InputError."""
    if find_spec("bcrypt") is None:
        hint = install_line(["gputui[metrics]"], sys.prefix, has_pip=find_spec("pip") is not None)
        raise InputError("checking passwords needs the library bcrypt", where="metrics.users", hint=hint)
    hashes = {}
    lines = _read(path, "metrics.users", is_secret=True).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.strip().partition(":")
        if not name or not hashed.startswith(_BCRYPT):
            hint = "make it with: htpasswd -B -c FILE NAME"
            raise InputError("expected NAME:HASH with a bcrypt hash", where=f"{path}:{number}", hint=hint)
        hashes[name] = hashed.encode()
    if not hashes:
        raise InputError("names no user", where=str(path), hint="make it with: htpasswd -B -c FILE NAME")
    return Users(hashes)


def tls_context(settings: MetricsSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the port; None: plain HTTP. Raises InputError."""
    if settings.certificate is None and settings.key is None:
        if settings.client_ca is not None:
            raise InputError("needs certificate and key too", where="metrics.client_ca")
        return None
    if settings.certificate is None or settings.key is None:
        missing = "metrics.certificate" if settings.certificate is None else "metrics.key"
        raise InputError("certificate and key are needed together", where=missing)
    _read(Path(settings.certificate), "metrics.certificate", is_secret=False)
    _read(Path(settings.key), "metrics.key", is_secret=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    where = "metrics.certificate"
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        if settings.client_ca is not None:
            where = "metrics.client_ca"
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be used: {getattr(error, 'strerror', None) or error}", where=where) from error
    return context


def _no_password() -> str:
    """Raise ValueError; OpenSSL would ask for a passphrase on the terminal otherwise."""
    raise ValueError("the key has a passphrase")


def stamps(settings: MetricsSettings) -> tuple[object, ...]:
    """Return tokens that differ when one of the files has changed."""
    return tuple(_stamp(path) for path in (settings.certificate, settings.key, settings.client_ca, settings.users))


def _stamp(path: str | None) -> object:
    try:
        status = Path(path).stat() if path is not None else None
    except OSError:
        return None
    return status and (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid)


def _read(path: Path, where: str, *, is_secret: bool) -> bytes:
    """Return the contents of the file; raises InputError if it cannot be read, or others could read or change it."""
    try:
        with path.open("rb") as file:
            status, content = os.fstat(file.fileno()), file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where=where) from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in {0, os.geteuid()}:
        raise InputError(f"{path} belongs to another user", where=where, hint=f"chown it to uid {os.geteuid()}")
    forbidden = 0o026 if is_secret else 0o022  # a group may read a key, as Debian's ssl-cert does
    if mode & forbidden:
        words = "read or changed" if is_secret else "changed"
        hint = f"chmod {mode & ~forbidden & 0o777:o} {path}"
        raise InputError(f"{path} has mode {mode:04o} and can be {words} by others", where=where, hint=hint)
    return content
