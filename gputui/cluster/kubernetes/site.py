"""Answers of the server about itself and this user: its version, Kueue's, and the user's rights."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.cluster.journal import write_whole
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.calls import CALLS, ApiCall
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterUnavailableError

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_KUEUE = "/apis/kueue.x-k8s.io"
_LASTS = 600.0
_LASTS_LACKING = 10.0
"""Seconds after which it is asked again; sooner if a needed right is missing: a server that has just started knows no
rights, and an administrator may be about to grant them."""
SUSPENDS_FROM = (1, 22)
"""First release that suspends jobs without a gate: 1.21 has the field behind one, 1.20 has none."""


class KubeSite(Struct, frozen=True):
    """An API server, and the rights of its user."""

    version: str = ""
    """Version such as `v1.31.2`."""
    kueue: str = ""
    """Path of Kueue's API, such as `/apis/kueue.x-k8s.io/v1beta1`; empty where it is not installed."""
    rights: frozenset[str] = frozenset()
    """Names of the calls that the user may make."""
    asked_at: float = 0.0
    of: str = ""
    """Address, context and namespace of which it tells."""

    @property
    def lasts(self) -> float:
        """Seconds for which it is good."""
        return _LASTS if all(self.may(call.name) for call in CALLS if call.is_needed) else _LASTS_LACKING

    def may(self, call: str) -> bool:
        """Return whether the user may make the call of that name."""
        return call in self.rights

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) if unknown."""
        match = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def can_suspend(self) -> bool:
        """Return whether jobs can be suspended."""
        return self.release >= SUSPENDS_FROM


class KubeVersion(Struct, frozen=True, rename="camel"):
    """Answer to a request for the version."""

    git_version: str = ""


class KubeGroupVersion(Struct, frozen=True, rename="camel"):
    """Version of a group of kinds."""

    group_version: str = ""


class KubeGroup(Struct, frozen=True, rename="camel"):
    """Group of kinds of objects."""

    preferred_version: KubeGroupVersion = KubeGroupVersion()


class KubeReviewStatus(Struct, frozen=True):
    """Verdict of a review."""

    allowed: bool = False


class KubeReview(Struct, frozen=True):
    """Answer to the question whether this user may do something."""

    status: KubeReviewStatus = KubeReviewStatus()


def ask(server: ApiServer, namespace: str) -> KubeSite:
    """Return what the server says now."""
    version = _version(server)
    kueue = _kueue(server)
    rights = frozenset(call.name for call in CALLS if (kueue or not call.is_kueue) and may(server, call, namespace))
    return KubeSite(version, kueue, rights, time.time(), _place(server, namespace))


def _version(server: ApiServer) -> str:
    try:
        return server.read("/version", KubeVersion).git_version
    except ApiRefusedError as error:
        if error.status != 404:
            raise
        what = f"what answers is no API server of Kubernetes: {error.what}"
        raise ClusterUnavailableError(what, where=server.place) from error


def _place(server: ApiServer, namespace: str) -> str:
    return f"{server.address} {server.place} {namespace}"


def may(server: ApiServer, call: ApiCall, namespace: str) -> bool:
    """Return whether this user may make a call with all of its verbs."""
    return all(_is_allowed(server, call, verb, namespace) for verb in call.verbs)


def _is_allowed(server: ApiServer, call: ApiCall, verb: str, namespace: str) -> bool:
    attributes = {"verb": verb, "group": call.group, "resource": call.resource}
    attributes |= {"subresource": call.subresource} if call.subresource else {}
    attributes |= {} if call.is_wide else {"namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return server.decoded(server.send("POST", _REVIEWS, body), KubeReview).status.allowed


def _kueue(server: ApiServer) -> str:
    """Return the path of Kueue's API; empty where it is not installed."""
    try:
        group = server.read(_KUEUE, KubeGroup)
    except ApiRefusedError as error:
        if error.status in {403, 404}:
            return ""
        raise
    return f"/apis/{group.preferred_version.group_version}" if group.preferred_version.group_version else ""


class Sites:
    """Answers of the server about itself, shared by the processes of this user for some minutes."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = directory / "site.json"
        self._clock = clock
        self._known: KubeSite | None = None

    @property
    def known(self) -> KubeSite | None:
        """The last answers; None before the first."""
        return self._known

    def of(self, server: ApiServer, namespace: str) -> KubeSite:
        """Return what the server said within the last minutes."""
        found = self._known or self._read()
        is_other = found is not None and found.of != _place(server, namespace)
        if found is None or is_other or not 0 <= self._clock() - found.asked_at < found.lasts:
            found = ask(server, namespace)
            write_whole(self._file, json.dumps(msgspec.to_builtins(found)).encode())
        self._known = found
        return found

    def _read(self) -> KubeSite | None:
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
            return decode_json(self._file.read_bytes(), KubeSite)
        return None
