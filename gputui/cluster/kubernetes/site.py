"""Answers of the server about itself and this user, the user's capabilities, and obstacles of jobs."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.journal import write_whole
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.manifest import LACKING
from gputui.cluster.kubernetes.objects import RESOURCES
from gputui.domain.cluster import FOR_ONE_MACHINE, Capability, Caps, ClusterFault
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterError, ClusterUnavailableError, InputError
from gputui.domain.settings import ClusterSettings

RBAC = "rbac.authorization.k8s.io"
_LOOK = ("list", "watch")
_OPEN = ("get", "create")
"""Rights to open a stream: later releases ask for `create` even where the request is a GET."""
ALL_JOBS = "all-jobs"
OWN_JOBS = "own-jobs"
ALL_PODS = "all-pods"
OWN_PODS = "own-pods"
NODES = "nodes"
ALL_EVENTS = "all-events"
OWN_EVENTS = "own-events"
ALL_WORKLOADS = "all-workloads"
OWN_WORKLOADS = "own-workloads"
SUBMIT = "submit"
HOLD = "hold"
LOGS = "logs"
EXEC = "exec"
ATTACH = "attach"
CORDON = "cordon"
_JOBS, KUEUE = "batch", "kueue.x-k8s.io"
_ONLY_OWN = "Only the {} of the user's namespace are shown."


class ApiCall(Struct, frozen=True):
    """A kind of request, and what it is for."""

    name: str
    """Name in one word."""
    verbs: tuple[str, ...]
    group: str
    resource: str
    """Name as in RBAC rules: `pods`, or `pods/log` for a part of it."""
    lost: str
    """Sentence about the loss without it."""
    is_wide: bool = False
    """True if it is for the whole cluster, not for the user's namespace."""
    is_needed: bool = False
    """True if no job can be submitted or seen without it."""
    is_operators: bool = False
    """True if only operators need it."""

    @property
    def words(self) -> str:
        """The right as people write it: `list and watch pods`."""
        group = f".{self.group}" if self.group else ""
        return f"{' and '.join(self.verbs)} {self.resource}{group}"


CALLS = (
    ApiCall(ALL_JOBS, _LOOK, _JOBS, "jobs", _ONLY_OWN.format("jobs"), is_wide=True),
    ApiCall(ALL_PODS, _LOOK, "", "pods", "GPUs of pods in other namespaces count as free.", is_wide=True),
    ApiCall(ALL_EVENTS, _LOOK, "", "events", "Reasons of jobs in other namespaces are less exact.", is_wide=True),
    ApiCall(
        ALL_WORKLOADS,
        _LOOK,
        KUEUE,
        "workloads",
        "Kueue's reasons are missing for jobs in other namespaces.",
        is_wide=True,
    ),
    ApiCall(NODES, _LOOK, "", "nodes", "No node and no GPU is shown.", is_wide=True),
    ApiCall(OWN_JOBS, _LOOK, _JOBS, "jobs", "No job is shown.", is_needed=True),
    ApiCall(OWN_PODS, _LOOK, "", "pods", "No job is shown as running.", is_needed=True),
    ApiCall(OWN_EVENTS, _LOOK, "", "events", "A job whose pod cannot be created waits without a reason."),
    ApiCall(OWN_WORKLOADS, _LOOK, KUEUE, "workloads", "Kueue's reasons are missing."),
    ApiCall(SUBMIT, ("create", "get"), _JOBS, "jobs", "No job can be submitted.", is_needed=True),
    ApiCall("cancel", ("delete",), _JOBS, "jobs", "No job can be cancelled."),
    ApiCall("cancel-element", ("delete",), "", "pods", "No element of an array can be cancelled alone."),
    ApiCall("claim", ("create",), RESOURCES, "resourceclaimtemplates", "No job can claim GPUs."),
    ApiCall(HOLD, ("patch",), _JOBS, "jobs", "No job can be held or released."),
    ApiCall(LOGS, ("get",), "", "pods/log", "No output of jobs is shown or kept."),
    ApiCall(EXEC, _OPEN, "", "pods/exec", "No command can be run in jobs."),
    ApiCall(ATTACH, _OPEN, "", "pods/attach", "No job with a terminal can be attached to."),
    ApiCall("hold-queued", ("patch",), KUEUE, "workloads", "No job of Kueue can be held or released."),
    ApiCall(CORDON, ("patch",), "", "nodes", "No node can be drained.", is_wide=True, is_operators=True),
)
"""Every call but those that each authenticated user may make: the version, the API groups and reviews of own rights."""


class RbacSubject(Struct, frozen=True):
    kind: str
    """`User`, `Group` or `ServiceAccount`."""
    name: str
    namespace: str = ""
    """Namespace of a service account."""


def rbac(namespace: str, subject: RbacSubject, *, is_operator: bool, is_wide: bool) -> Iterator[dict[str, Any]]:
    """Yield the roles with the least rights, each with its binding.

    Without `is_wide` the subject sees the jobs of its namespace alone, and no nodes.
    """
    if not namespace:
        raise InputError("no namespace is named", where="--namespace")
    own = [call for call in CALLS if not call.is_wide]
    yield from _granted("Role", "gputui-user", own, subject, namespace)
    if is_wide:
        look = [call for call in CALLS if call.is_wide and not call.is_operators]
        yield from _granted("ClusterRole", "gputui-viewer", look, subject, "")
    if is_operator:
        yield from _granted(
            "ClusterRole", "gputui-operator", [each for each in CALLS if each.is_operators], subject, ""
        )


def _granted(
    kind: str, name: str, calls: list[ApiCall], subject: RbacSubject, namespace: str
) -> Iterator[dict[str, Any]]:
    from gputui.cluster.kubernetes.manifest import dns_label

    place = {"namespace": namespace} if namespace else {}
    verbs: dict[tuple[str, str], dict[str, None]] = {}  # of all calls of a resource
    for call in calls:
        verbs.setdefault((call.group, call.resource), {}).update(dict.fromkeys(call.verbs))
    rules = [{"apiGroups": [group], "resources": [what], "verbs": list(of)} for (group, what), of in verbs.items()]
    yield {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name} | place, "rules": rules}
    named = {"kind": subject.kind, "name": subject.name}
    is_account = subject.kind == "ServiceAccount"
    manifest = named | {"namespace": subject.namespace} if is_account else {"apiGroup": RBAC} | named
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{name}-{dns_label(subject.name, subject.kind)}"} | place,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [manifest],
    }


_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LASTS = 600.0
_LASTS_LACKING = 10.0
"""Seconds after which it is asked again; sooner if a needed right is missing: a server that has just started knows no
rights, and an administrator may be about to grant them."""
BY_INDEX_FROM = (1, 29)
"""First release that counts the failures of a job's elements apart without a gate: 1.28 has the field behind one."""
SUSPENDS_FROM = (1, 22)
"""First release that suspends jobs without a gate: 1.21 has the field behind one, 1.20 has none."""
ENGINE = "Kubernetes"
_C = Capability
_NEVER = {
    _C.MOVE: "Kubernetes orders its queue itself, by priority and age",
    _C.TOP: "Kubernetes orders its queue itself: submit the job with a higher priority",
    _C.EDIT: "a job in Kubernetes is not changed: cancel it and submit it again",
    _C.RAISE_PRIORITY: "Kubernetes fixes the priority of a job when it is submitted",
    _C.LOWER_PRIORITY: "Kubernetes fixes the priority of a job when it is submitted",
    _C.EXTEND: "Kubernetes fixes the time limit of a pod when it is made",
    _C.REQUEUE: "a job in Kubernetes runs once: submit it again",
    _C.DEPENDENCIES: "jobs in Kubernetes do not wait for each other",
    _C.TEST_ONLY: "Kubernetes does not forecast when a job starts",
    _C.WHAT_IF: "Kubernetes does not forecast when jobs start",
    _C.SIGNAL: "Kubernetes sends signals only to end a pod",
    _C.SUSPEND: "Kubernetes cannot stop the processes of a pod and keep its GPUs",
    _C.PAUSE: "Kubernetes has no pause for the whole cluster: drain nodes, or stop the queues of Kueue",
    _C.DRAIN_GPU: "Kubernetes drains nodes, not single GPUs",
    _C.RESERVE: "Kubernetes has no reservations",
    _C.RECURRING: "Kubernetes repeats jobs by CronJobs, not from here",
    _C.GPU_IDS: "Kubernetes tells how many GPUs of a node a pod has, not which",
}
_COMMANDS = {
    **FOR_ONE_MACHINE,
    "reserve": "an administrator keeps nodes for somebody by taints, or by quotas of Kueue",
    "tenant": "an administrator sets limits by ResourceQuotas of namespaces, or by quotas of Kueue",
    "cron": "submit at regular times by a CronJob",
    "pause": "an administrator stops a queue of Kueue: stopPolicy of its ClusterQueue",
    "unpause": "an administrator starts a queue of Kueue again: stopPolicy of its ClusterQueue",
}
_NO_SUSPEND = "Kubernetes suspends jobs from release 1.22 on, and this server is older"
_NO_RIGHT = {
    _C.HOLD: (HOLD, "this user may not change jobs: the right to patch jobs is missing"),
    _C.DRAIN_NODE: (CORDON, "only those who may change nodes can drain them: the right to patch nodes is missing"),
    _C.INSIDE: (EXEC, "this user may run no commands in pods: the right to create pods/exec is missing"),
    _C.STREAMS: (ATTACH, "this user may not attach to pods: the right to create pods/attach is missing"),
    _C.LIVE_LOG: (LOGS, "this user may not read the output of pods: the right to get pods/log is missing"),
}
"""Capabilities that need a right, each with that right and the sentence for a user without it."""
_OWN_OF = {ALL_JOBS: OWN_JOBS, ALL_PODS: OWN_PODS, ALL_EVENTS: OWN_EVENTS, ALL_WORKLOADS: OWN_WORKLOADS}
"""Call for the user's namespace, by that for the whole cluster."""


class KubeSite(Struct, frozen=True):
    version: str = ""
    """Version such as `v1.31.2`."""
    kueue: str = ""
    """Path of Kueue's API, such as `/apis/kueue.x-k8s.io/v1beta1`; empty where it is not installed."""
    claims: str = ""
    """Version of its API for claims of devices, such as `v1`; empty where it has none."""
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
        return call in self.rights

    def has(self, call: ApiCall) -> bool:
        return bool({KUEUE: self.kueue, RESOURCES: self.claims}.get(call.group, True))

    @property
    def release(self) -> tuple[int, int]:
        match = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def can_suspend(self) -> bool:
        return self.release >= SUSPENDS_FROM

    @property
    def counts_failures_by_index(self) -> bool:
        return self.release >= BY_INDEX_FROM


class KubeGroupVersion(Struct, frozen=True, rename="camel"):
    group_version: str = ""


class KubeGroup(Struct, frozen=True, rename="camel"):
    preferred_version: KubeGroupVersion = KubeGroupVersion()


class KubeReviewStatus(Struct, frozen=True):
    allowed: bool = False


class KubeReview(Struct, frozen=True):
    status: KubeReviewStatus = KubeReviewStatus()


def ask(server: ApiServer, namespace: str) -> KubeSite:
    kueue, claims = _group(server, KUEUE), _group(server, RESOURCES).rpartition("/")[2]
    try:
        version = str(server.read("/version", dict[str, Any]).get("gitVersion") or "")
    except ApiRefusedError as error:
        if error.status != 404:
            raise
        what = f"what answers is no API server of Kubernetes: {error.what}"
        raise ClusterUnavailableError(what, where=server.place) from error
    site = KubeSite(version, kueue and f"/apis/{kueue}", claims, of=_place(server, namespace))
    rights = frozenset(call.name for call in CALLS if site.has(call) and may(server, call, namespace))
    return replace(site, rights=rights, asked_at=time.time())


def _place(server: ApiServer, namespace: str) -> str:
    return f"{server.address} {server.place} {namespace}"


def may(server: ApiServer, call: ApiCall, namespace: str) -> bool:
    resource, _, part = call.resource.partition("/")
    attributes = {"group": call.group, "resource": resource} | ({"subresource": part} if part else {})
    attributes |= {} if call.is_wide else {"namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = ({**body, "spec": {"resourceAttributes": attributes | {"verb": verb}}} for verb in call.verbs)
    return all(server.decoded(server.send("POST", _REVIEWS, each), KubeReview).status.allowed for each in asked)


def _group(server: ApiServer, name: str) -> str:
    """Return the preferred version of a group of kinds, such as `resource.k8s.io/v1`; empty where it is missing."""
    try:
        return server.read(f"/apis/{name}", KubeGroup).preferred_version.group_version
    except ApiRefusedError as error:
        if error.status in {403, 404}:
            return ""
        raise


class Sites(Struct, eq=False):
    """Answers of the server about itself, shared by the processes of this user for some minutes."""

    _directory: Path
    _clock: Callable[[], float] = time.time
    known: KubeSite | None = None
    """Last answers; None before the first."""

    def of(self, server: ApiServer, namespace: str) -> KubeSite:
        found, file = self.known, self._directory / "site.json"
        if found is None:
            with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
                found = decode_json(file.read_bytes(), KubeSite)
        is_other = found is not None and found.of != _place(server, namespace)
        if found is None or is_other or not 0 <= self._clock() - found.asked_at < found.lasts:
            found = ask(server, namespace)
            write_whole(file, json.dumps(msgspec.to_builtins(found)).encode())
        self.known = found
        return found


def caps_of(site: KubeSite | None) -> Caps:
    """Return the capabilities; before the server has answered, those of a user with no rights beyond her own jobs."""
    lacking = dict(_NEVER)
    if site is None:
        lacking[_C.DRAIN_NODE] = _NO_RIGHT[_C.DRAIN_NODE][1]
        return Caps(ENGINE, lacking, LACKING, _COMMANDS)
    lacking |= {what: sentence for what, (call, sentence) in _NO_RIGHT.items() if not site.may(call)}
    if not site.can_suspend:
        lacking[_C.HOLD] = _NO_SUSPEND
    return Caps(ENGINE, lacking, LACKING, _COMMANDS)


def faults(connected: Callable[[], ApiServer], settings: ClusterSettings) -> Iterator[ClusterFault]:
    """Yield the faults that are found; one because of which nothing works ends them."""
    try:
        server = connected()
        namespace = settings.namespace or server.namespace
        site = ask(server, namespace)
    except ClusterError as error:
        hint = error.hint or "kubectl get --raw /readyz; kubectl config view --minify"
        why = "Without its API server nothing is submitted or shown."
        yield ClusterFault("server", error.without_hint, why, hint, stops_jobs=True)
        return
    for call in CALLS:
        is_wanted = call.group != RESOURCES or settings.kubernetes.get("device_class")
        is_made = site.has(call) and is_wanted and not call.is_operators
        is_told = call.name in _OWN_OF and not site.may(_OWN_OF[call.name])  # that of the user's own namespace is
        if is_made and not site.may(call.name) and not is_told:
            where = "" if call.is_wide else f" in namespace {namespace}"
            text = f"this user may not {call.words}{where}"
            hint = "an administrator: gputui cluster rbac --user NAME | kubectl apply -f -"
            yield ClusterFault("rights", text, call.lost, hint, stops_jobs=call.is_needed)

    if not site.can_suspend:
        yield ClusterFault(
            "version",
            f"the server is {site.version}: jobs cannot be held",
            "Kubernetes suspends jobs from release 1.22 on.",
            "update the control plane; until then cancel a job and submit it again",
        )
    if settings.kueue and not site.kueue:
        yield ClusterFault(
            "kueue",
            f"cluster.kueue names the queue {settings.kueue}, and Kueue is not installed",
            "Jobs start at once, in the order of Kubernetes' own scheduler.",
            "install Kueue, or remove cluster.kueue from the settings",
        )
    if (device_class := settings.kubernetes.get("device_class")) and not site.claims:
        yield ClusterFault(
            "claims",
            f"cluster.kubernetes.device_class is {device_class}, and the server has no claims of devices",
            "No job with GPUs can be submitted.",
            "Kubernetes has them from release 1.34 on; until then remove it from the settings",
            stops_jobs=True,
        )
