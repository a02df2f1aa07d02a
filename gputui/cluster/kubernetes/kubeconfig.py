"""Kubeconfigs: which server a context means and how a user logs in there, as kubectl reads the files.

Tokens, passwords, certificates, and programs that log in: one that fails, or a file that cannot be read, ends the
request. Nothing goes on anonymously.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.text import plain

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CURRENT = re.compile(r"""^[^#\n]*?["']?current-context["']?:\s*["']?([^"'\s,}]+)""", re.MULTILINE)
IN_CLUSTER = "in-cluster"
"""Name of the place of a pod that reaches the server of its own cluster."""
_HINT = "kubectl config get-contexts lists the contexts; KUBECONFIG names another file"
_FOR_PLUGINS = "client.authentication.k8s.io/exec"
"""Extension of a cluster that is for programs that log in."""


class EnvironEntry(Struct, frozen=True):
    name: str
    value: str = ""


class LoginProgram(Struct, frozen=True, rename="camel"):
    command: str
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[EnvironEntry, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"
    """`Never`, `IfAvailable` or `Always`."""


class AuthProvider(Struct, frozen=True):
    """Way to log in that kubectl had before programs, with the tokens that it left."""

    name: str = ""
    config: Mapping[str, str] = {}


class UserEntry(Struct, frozen=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: LoginProgram | None = None
    auth_provider: AuthProvider | None = None
    acts_as: str = field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: Mapping[str, tuple[str, ...]] = {}


class Extension(Struct, frozen=True):
    name: str = ""
    extension: Any = None


class ClusterEntry(Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()


class ContextEntry(Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: ClusterEntry = ClusterEntry()


class _NamedUser(Struct, frozen=True):
    name: str
    user: UserEntry = UserEntry()


class _NamedContext(Struct, frozen=True):
    name: str
    context: ContextEntry = ContextEntry()


class _File(Struct, frozen=True, rename="kebab"):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


class KubePlace(Struct, frozen=True):
    name: str
    namespace: str
    cluster: ClusterEntry
    user: UserEntry


def place_of(context: str | None, environ: Mapping[str, str], account: Path | None = None) -> KubePlace:
    """Return a context, or the cluster of the pod in which this runs; raises ClusterUnavailableError."""
    file = kubeconfig_of(environ)
    files = [Path(part) for part in file.split(":") if part]
    if context is None and environ.get("KUBERNETES_SERVICE_HOST") and not any(each.is_file() for each in files):
        return _own_cluster(environ, account or _ACCOUNT)
    return _chosen([_read(each) for each in files], context, file)


def _own_cluster(environ: Mapping[str, str], account: Path) -> KubePlace:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = ""
    with suppress(OSError, UnicodeDecodeError):
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
    cluster = ClusterEntry(address, str(account / "ca.crt"))
    return KubePlace(IN_CLUSTER, namespace or "default", cluster, UserEntry(token_file=str(account / "token")))


def _read(path: Path) -> _File:
    """Return a file, with absolute paths; one that does not exist is empty. Raises ClusterUnavailableError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _File()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ClusterUnavailableError(f"the kubeconfig cannot be read: {why}", where=str(path)) from error
    try:
        found = convert(_without_nulls(_loaded(text, path)), _File)
    except msgspec.ValidationError as error:
        raise ClusterUnavailableError(f"the kubeconfig is wrong: {plain(str(error))}", where=str(path)) from error
    base = path.absolute().parent
    return replace(
        found,
        clusters=tuple(replace(each, cluster=_with_paths(each.cluster, base)) for each in found.clusters),
        users=tuple(replace(each, user=_user_with_paths(each.user, base)) for each in found.users),
    )


def _loaded(text: str, path: Path) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}  # noqa: S506 - a safe one, fast if there is one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        words = getattr(error, "problem", None) or getattr(error, "reason", None)
        words = words or ("it is nested too deeply" if isinstance(error, RecursionError) else str(error))
        place = getattr(error, "position", None)  # of a character that no YAML may have
        line = mark.line if mark is not None else text[:place].count("\n") if isinstance(place, int) else None
        where = str(path) if line is None else f"{path}:{line + 1}"
        raise ClusterUnavailableError(f"the kubeconfig is not YAML: {plain(words)}", where=where) from error


def _without_nulls(value: Any) -> Any:
    """Return a value without what is empty on purpose: it is as good as left out."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _with_paths(cluster: ClusterEntry, base: Path) -> ClusterEntry:
    return replace(cluster, certificate_authority=_path(cluster.certificate_authority, base))


def _user_with_paths(user: UserEntry, base: Path) -> UserEntry:
    program = user.exec
    if program is not None and "/" in program.command:  # others are looked for on the PATH
        program = replace(program, command=_path(program.command, base))
    return replace(
        user,
        client_certificate=_path(user.client_certificate, base),
        client_key=_path(user.client_key, base),
        token_file=_path(user.token_file, base),
        exec=program,
    )


def _path(text: str, base: Path) -> str:
    return str(base / text) if text else ""


def _chosen(files: Sequence[_File], context: str | None, path: str) -> KubePlace:
    """Return a context, the current one for None; raises ClusterUnavailableError.

    What an earlier file names, a later one does not change, not even in part.
    """

    def lacking(words: str) -> ClusterUnavailableError:
        return ClusterUnavailableError(f"there is no way to Kubernetes: {plain(words)}", where=path, hint=_HINT)

    contexts = {each.name: each.context for file in reversed(files) for each in reversed(file.contexts)}
    if not contexts:
        raise lacking("no kubeconfig has a context")
    current = next((file.current_context for file in files if file.current_context), "")
    if not (name := current if context is None else context):
        raise lacking("the kubeconfig has no current context")
    if (found := contexts.get(name)) is None:
        raise lacking(f"the kubeconfig has no context {name!r}")
    clusters = (each.cluster for file in files for each in file.clusters if each.name == found.cluster)
    cluster = next(clusters, None)
    if cluster is None or not cluster.server:
        raise lacking(f"context {name!r} has no cluster with a server: {found.cluster!r}")
    user = next((each.user for file in files for each in file.users if each.name == found.user), None)
    if found.user and user is None:
        raise lacking(f"context {name!r} has a user that the kubeconfig lacks: {found.user!r}")
    return KubePlace(name, found.namespace or "default", cluster, user or UserEntry())


def kubeconfig_of(environ: Mapping[str, str]) -> str:
    """Return the path of the kubeconfig, or several with colons."""
    return environ.get("KUBECONFIG") or str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")


def context_in(environ: Mapping[str, str]) -> str:
    """Return the current context; that of a pod without a kubeconfig."""
    for part in kubeconfig_of(environ).split(":"):
        with suppress(OSError, UnicodeDecodeError):
            if match := _CURRENT.search(Path(part).read_text(encoding="utf-8")):
                return match[1]
    return IN_CLUSTER


Headers = tuple[tuple[str, str], ...]
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_WITHIN = 120.0
"""Seconds in which a program logs in that has no terminal: it may have opened a browser."""
_PAUSE = 10.0
"""Seconds for which its answer, or its failure, stands at least: it may open a browser each time."""
_MOST_WORDS = 300
_TELLING = re.compile(r"error|fail|denied|expired|unable|cannot|could not|invalid|not found|refused", re.IGNORECASE)
_UNQUOTED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~!#$&'*+^`|")
"""Characters that names of headers have, which names of extra fields may lack."""


class Credential(Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None

    @property
    def has_expired(self) -> bool:
        end = self.expiration_timestamp
        return end is not None and datetime.now(UTC) >= (end if end.tzinfo else end.replace(tzinfo=UTC))


class _ExecCredential(Struct, frozen=True, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: Credential | None = None


class Login:
    """How the user of a context authenticates; from any thread."""

    def __init__(self, place: KubePlace, environ: Mapping[str, str], read: Callable[[], KubePlace]) -> None:
        """`read` reads the place anew: other programs write tokens into kubeconfigs."""
        self._environ = environ
        self._read = read
        self._lock = RLock()
        self._take(place)

    def _take(self, place: KubePlace) -> None:
        self._place, self._user = place, place.user
        self._certificate: bytes | None = None
        program = place.user.exec
        is_asked = not (self._user.token or self._user.token_file or self._user.username)  # else what stands there does
        self._plugin = Plugin(program, place.cluster, self._environ) if program is not None and is_asked else None

    def headers(self) -> Headers:
        """Return the headers of a request; raises ClusterUnavailableError."""
        with self._lock:
            user, token = self._user, self._token()
        names = (("User", user.acts_as), ("Uid", user.as_uid), *(("Group", group) for group in user.as_groups))
        found = [(f"Impersonate-{what}", name) for what, name in names if name or what == "Group"]
        for key, values in user.as_user_extra.items():
            coded = (each if each in _UNQUOTED else "".join(f"%{byte:02X}" for byte in each.encode()) for each in key)
            name = f"Impersonate-Extra-{''.join(coded)}"
            found += [(name, value) for value in values]
        if token:
            found.append(("Authorization", f"Bearer {token}"))
        elif user.username:
            pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            found.append(("Authorization", f"Basic {pair}"))
        if any(not value.isprintable() or not value.isascii() for _, value in found):
            raise self._fault("the login has characters that no request can carry")
        return tuple(found)

    def certificate(self) -> bytes:
        """Return the user's certificate and its key, as PEM; empty if there is none. Raises ClusterUnavailableError."""
        with self._lock:
            if self._plugin is not None:
                found = self._plugin.credential()
                return f"{found.client_certificate_data or ''}\n{found.client_key_data or ''}".strip().encode()
            if self._certificate is None:
                user = self._user
                parts = [
                    read_either(user.client_certificate_data, user.client_certificate, "client-certificate"),
                    read_either(user.client_key_data, user.client_key, "client-key"),
                ]
                if any(parts) and not all(parts):
                    raise self._fault("the user needs both a client-certificate and a client-key")
                self._certificate = b"\n".join(parts).strip()
            return self._certificate

    def renew(self, sent: Headers) -> bool:
        """Forget a login that the server has refused; return whether there is another to try."""
        with self._lock:
            before = self.certificate()
            if self.headers() == sent:
                if (place := self._read()) != self._place:
                    self._take(place)
                self._certificate = None
                if self._plugin is not None:
                    self._plugin.forget()
            return (self.headers(), self.certificate()) != (sent, before)

    def _token(self) -> str:
        user = self._user
        if user.token_file:  # it is written anew, again and again
            try:
                return Path(user.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                if user.token:
                    return user.token
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise self._fault(f"the token cannot be read: {why}", user.token_file) from error
        if user.token or user.username:
            return user.token
        if self._plugin is not None:
            return self._plugin.credential().token or ""
        provider = user.auth_provider
        if provider is None:
            return ""
        token = provider.config.get("id-token") or provider.config.get("access-token")
        if not token:
            hint = "kubectl has programs for it: users[].user.exec in the kubeconfig"
            raise self._fault(f"the kubeconfig logs in by the auth-provider {plain(provider.name)!r}", hint=hint)
        return token

    def _fault(self, what: str, where: str = "", hint: str | None = None) -> ClusterUnavailableError:
        return ClusterUnavailableError(what, where=where or self._place.name, hint=hint)


def read_either(data: str, path: str, name: str) -> bytes:
    """Return what the file holds as base64, else what the named file does; raises ClusterUnavailableError."""
    try:
        return base64.b64decode(data, validate=True) if data else Path(path).read_bytes() if path else b""
    except OSError as error:
        raise ClusterUnavailableError(f"the {name} cannot be read: {error.strerror}", where=path) from error
    except (binascii.Error, ValueError) as error:
        raise ClusterUnavailableError(f"{name}-data of the kubeconfig is not base64") from error


class Plugin(Struct, eq=False):
    """A program that logs in, and its last answer; one thread at a time."""

    _program: LoginProgram
    _cluster: ClusterEntry
    _environ: Mapping[str, str]
    _found: Credential | None = None
    _fault: ClusterUnavailableError | None = None
    _ran_at: float = -_PAUSE

    def credential(self) -> Credential:
        """Return its answer, as long as that is good; raises ClusterUnavailableError."""
        is_recent = time.monotonic() - self._ran_at < _PAUSE
        if self._fault is not None and is_recent:
            raise self._fault
        if self._found is None or (self._found.has_expired and not is_recent):
            self._found = self._fault = None
            try:
                self._found = self._answer()
            except ClusterUnavailableError as error:
                self._fault = error
                raise
            finally:
                self._ran_at = time.monotonic()
        return self._found

    def forget(self) -> None:
        """Ask it anew the next time, unless it has just answered."""
        if time.monotonic() - self._ran_at >= _PAUSE:
            self._found = None

    def _answer(self) -> Credential:
        program = self._program
        if program.api_version not in _VERSIONS:
            hint = f"update it; the kubeconfig then says apiVersion: {_VERSIONS[0]}"
            raise self._away(f"speaks {plain(program.api_version) or 'no version'}, not {' or '.join(_VERSIONS)}", hint)
        try:
            found = decode_json(self._run(), _ExecCredential)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._away("answers with something else than a credential") from error
        credential = found.status
        if found.kind != "ExecCredential" or found.api_version != program.api_version or credential is None:
            raise self._away(f"answers with something else than a credential of {program.api_version}")
        if bool(credential.client_certificate_data) != bool(credential.client_key_data):
            raise self._away("gives a certificate without its key, or a key alone")
        if not credential.token and not credential.client_certificate_data:
            raise self._away("gives neither a token nor a certificate")
        return credential

    def _run(self) -> bytes:
        """Return what it prints. Its complaints are shown where somebody can answer them, else kept for the error."""
        import shutil
        import subprocess
        import tempfile

        program, environ = self._program, dict(self._environ)
        environ |= {each.name: each.value for each in program.env}
        is_interactive = self._is_interactive()
        environ["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(self._info(is_interactive)).decode()
        path = shutil.which(program.command, path=environ.get("PATH", os.defpath))
        if path is None:
            hint = plain(" ".join(program.install_hint.split()))[:_MOST_WORDS] or "the kubeconfig names it"
            raise self._away("cannot be found", hint)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # a process left behind holds no pipe
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's kubeconfig names it, as for kubectl
                    [path, *program.args],
                    stdin=None if is_interactive else subprocess.DEVNULL,
                    stdout=out,
                    stderr=None if is_interactive else err,
                    env=environ,
                    start_new_session=not is_interactive,  # a console's terminal is its own
                )
                code = process.wait(None if is_interactive else _WITHIN)
            except subprocess.TimeoutExpired as error:
                with suppress(OSError):
                    os.killpg(process.pid, 9)
                process.wait()
                raise self._away(f"did not answer within {_WITHIN:.0f} s") from error
            except (OSError, ValueError) as error:
                raise self._away(f"cannot be run: {plain(str(getattr(error, 'strerror', None) or error))}") from error
            out.seek(0)
            err.seek(0)
            said = _useful(err.read().decode(errors="replace"))
            if code:
                raise self._away(f"failed with code {code}{said and f': {said}'}")
            return out.read()

    def _is_interactive(self) -> bool:
        """Return whether it may ask something in the terminal: not beside a console, which reads single keys."""
        mode, has_terminal = self._program.interactive_mode, False
        with suppress(termios.error):
            is_terminal = mode != "Never" and os.isatty(0) and os.isatty(2)
            has_terminal = is_terminal and bool(termios.tcgetattr(0)[3] & termios.ICANON)
        if mode == "Always" and not has_terminal:
            raise self._away("has to ask you something", "run gputui queue in a terminal first")
        return has_terminal

    def _info(self, is_interactive: bool) -> Mapping[str, Any]:
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self._program.provide_cluster_info:
            cluster = self._cluster
            authority = read_either(
                cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority"
            )
            told = {
                "server": cluster.server,
                "tls-server-name": cluster.tls_server_name,
                "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
                "certificate-authority-data": base64.b64encode(authority).decode(),
                "proxy-url": cluster.proxy_url,
                "config": next((each.extension for each in cluster.extensions if each.name == _FOR_PLUGINS), None),
            }
            spec["cluster"] = {name: value for name, value in told.items() if value}
        return {"apiVersion": self._program.api_version, "kind": "ExecCredential", "spec": spec}

    def _away(self, what: str, hint: str | None = None) -> ClusterUnavailableError:
        program = self._program
        command = plain(shlex.join((program.command, *program.args)))[:_MOST_WORDS]
        return ClusterUnavailableError(
            f"the program that logs in {what}", where=plain(program.command), hint=hint or f"try it: {command}"
        )


def _useful(text: str) -> str:
    """Return the line that tells what went wrong: the last that says so, else the last."""
    lines = [" ".join(plain(line).split()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    return next((line for line in reversed(lines) if _TELLING.search(line)), lines[-1] if lines else "")[:_MOST_WORDS]
