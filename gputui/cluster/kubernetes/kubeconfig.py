"""Kubeconfigs: which server a context means and how a user logs in there, as kubectl reads the files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import convert
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
    """Variable of a program that logs in."""

    name: str
    value: str = ""


class LoginProgram(Struct, frozen=True, rename="camel"):
    """Program that logs in: an exec plug-in."""

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
    """How a user logs in."""

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
    """What another program keeps in the file."""

    name: str = ""
    extension: Any = None


class ClusterEntry(Struct, frozen=True, rename="kebab"):
    """Where a server is, and how it is known to be the right one."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()

    @property
    def for_plugins(self) -> Any:
        """What the file tells programs that log in; None: nothing."""
        return next((each.extension for each in self.extensions if each.name == _FOR_PLUGINS), None)


class ContextEntry(Struct, frozen=True):
    """A user at a cluster."""

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
    """A kubeconfig, as far as it matters here."""

    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


class KubePlace(Struct, frozen=True):
    """A context, with all that its names stand for."""

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
    return _chosen(_merged(map(_read, files)), context, file)


def _own_cluster(environ: Mapping[str, str], account: Path) -> KubePlace:
    """Return the cluster of the pod in which this runs."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
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
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
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


def _merged(files: Iterable[_File]) -> _File:
    """Return files as one: what an earlier one names, a later one does not change, not even in part."""
    all_files = list(files)
    return _File(
        next((file.current_context for file in all_files if file.current_context), ""),
        tuple({each.name: each for file in reversed(all_files) for each in reversed(file.clusters)}.values()),
        tuple({each.name: each for file in reversed(all_files) for each in reversed(file.users)}.values()),
        tuple({each.name: each for file in reversed(all_files) for each in reversed(file.contexts)}.values()),
    )


def _chosen(config: _File, context: str | None, file: str) -> KubePlace:
    """Return a context, the current one for None; raises ClusterUnavailableError."""
    name = config.current_context if context is None else context

    def lacking() -> Iterator[str]:
        if not config.contexts:
            yield "no kubeconfig has a context"
        elif not name:
            yield "the kubeconfig has no current context"
        elif found is None:
            yield f"the kubeconfig has no context {name!r}"
        elif cluster is None or not cluster.server:
            yield f"context {name!r} has no cluster with a server: {found.cluster!r}"
        elif found.user and user is None:
            yield f"context {name!r} has a user that the kubeconfig lacks: {found.user!r}"

    found = next((each.context for each in config.contexts if each.name == name), None)
    cluster = next((each.cluster for each in config.clusters if found and each.name == found.cluster), None)
    user = next((each.user for each in config.users if found and each.name == found.user), None)
    if words := next(lacking(), ""):
        raise ClusterUnavailableError(f"there is no way to Kubernetes: {plain(words)}", where=file, hint=_HINT)
    assert found is not None
    assert cluster is not None
    return KubePlace(name, found.namespace or "default", cluster, user or UserEntry())


def kubeconfig_of(environ: Mapping[str, str]) -> str:
    """Return the path of the kubeconfig, or several with colons."""
    return environ.get("KUBECONFIG") or str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")


def context_in(environ: Mapping[str, str]) -> str:
    """Return the current context; that of a pod without a kubeconfig."""
    for part in kubeconfig_of(environ).split(":"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if match := _CURRENT.search(Path(part).read_text(encoding="utf-8")):
                return match[1]
    return IN_CLUSTER
