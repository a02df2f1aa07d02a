"""Connection by a kubeconfig, or from within a pod: the only module that imports Kubernetes' own client.

That client reads kubeconfigs, runs the programs that they name for credentials, and sets up TLS and proxies. Requests
are ours: its models differ between its releases, and refuse what servers of other releases answer.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.installing import install_line

if TYPE_CHECKING:
    from websocket import WebSocket

    from gputui.cluster.kubernetes.api_server import ApiServer

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKENS = ("BearerToken", "authorization")
"""Names under which releases of the client keep the token."""
_CURRENT = re.compile(r"""["']?current-context["']?:\s*["']?([^"'\s,}]+)""")
IN_CLUSTER = "in-cluster"
"""Name of the place of a pod that reaches the server of its own cluster."""


def connect(context: str | None, environ: Mapping[str, str], timeout: float, *, account: Path = _ACCOUNT) -> ApiServer:
    """Return the server of a context, or of the pod in which this runs; raises ClusterUnavailableError."""
    try:
        from kubernetes import client, config
        from kubernetes.client import rest
    except ImportError as error:
        hint = install_line(["gputui[kubernetes]"], sys.prefix, has_pip=find_spec("pip") is not None)
        raise ClusterUnavailableError("the Kubernetes client for Python is not installed", hint=hint) from error
    from gputui.cluster.kubernetes.api_server import ApiServer

    configuration = client.Configuration()
    try:
        place, namespace = _load(config, configuration, context, environ, account)
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        hint = "kubectl config get-contexts lists the contexts; KUBECONFIG names another file"
        what = f"there is no way to Kubernetes: {error}"
        raise ClusterUnavailableError(what, where=kubeconfig_of(environ), hint=hint) from error
    pool = rest.RESTClientObject(configuration).pool_manager
    headers = _authorization(configuration)

    def dial(url: str, sent: Mapping[str, str]) -> WebSocket:
        from kubernetes.stream.ws_client import create_websocket

        found: WebSocket = create_websocket(configuration, url, sent)
        return found

    return ApiServer(pool, configuration.host, headers, place=place, namespace=namespace, timeout=timeout, dial=dial)


def _load(
    config: Any, configuration: Any, context: str | None, environ: Mapping[str, str], account: Path
) -> tuple[str, str]:
    """Fill the configuration; return the name of the place and the user's namespace."""
    file = kubeconfig_of(environ)
    has_file = any(Path(part).is_file() for part in file.split(":") if part)
    if context is None and not has_file and environ.get("KUBERNETES_SERVICE_HOST"):
        from kubernetes.config.incluster_config import InClusterConfigLoader

        token, authority = str(account / "token"), str(account / "ca.crt")
        loader = InClusterConfigLoader(token_filename=token, cert_filename=authority, environ=environ)
        loader.load_and_set(configuration)
        return IN_CLUSTER, (account / "namespace").read_text(encoding="utf-8").strip() or "default"
    contexts, current = config.list_kube_config_contexts(file)
    chosen = current if context is None else next((each for each in contexts if each["name"] == context), None)
    if chosen is None:
        raise config.ConfigException(f"the kubeconfig has no context {context!r}")
    config.load_kube_config(
        config_file=file, context=chosen["name"], client_configuration=configuration, persist_config=False
    )
    return str(chosen["name"]), str(chosen["context"].get("namespace") or "default")


def _authorization(configuration: Any) -> Callable[[], Mapping[str, str]]:
    """Return what makes the header with the token, which the client renews when it expires."""

    def headers() -> Mapping[str, str]:
        found = (configuration.get_api_key_with_prefix(name) for name in _TOKENS)
        token = next((each for each in found if each), None)
        return {"Authorization": token} if token else {}

    return headers


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
