"""Calls of the API that gputui makes, with the rights they need: `doctor` checks them, `cluster rbac` grants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from gputui.cluster.kubernetes.objects import RESOURCES
from gputui.domain.errors import InputError

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
CANCEL = "cancel"
HOLD = "hold"
LOGS = "logs"
EXEC = "exec"
ATTACH = "attach"
HOLD_QUEUED = "hold-queued"
CORDON = "cordon"
CLAIM = "claim"
CANCEL_ELEMENT = "cancel-element"
_JOBS, KUEUE = "batch", "kueue.x-k8s.io"
_ONLY_OWN = "Only the {} of the user's namespace are shown."


class ApiCall(Struct, frozen=True):
    """A kind of request, and what it is for."""

    name: str
    """Name in one word."""
    verbs: tuple[str, ...]
    group: str
    resource: str
    lost: str
    """Sentence about the loss without it."""
    is_wide: bool = False
    """True if it is for the whole cluster, not for the user's namespace."""
    is_needed: bool = False
    """True if no job can be submitted or seen without it."""
    is_operators: bool = False
    """True if only operators need it."""
    subresource: str = ""

    @property
    def words(self) -> str:
        """The right as people write it: `list and watch pods`."""
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        group = f".{self.group}" if self.group else ""
        return f"{' and '.join(self.verbs)} {what}{group}"


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
    ApiCall(CANCEL, ("delete",), _JOBS, "jobs", "No job can be cancelled."),
    ApiCall(CANCEL_ELEMENT, ("delete",), "", "pods", "No element of an array can be cancelled alone."),
    ApiCall(CLAIM, ("create",), RESOURCES, "resourceclaimtemplates", "No job can claim GPUs."),
    ApiCall(HOLD, ("patch",), _JOBS, "jobs", "No job can be held or released."),
    ApiCall(LOGS, ("get",), "", "pods", "No output of jobs is shown or kept.", subresource="log"),
    ApiCall(EXEC, _OPEN, "", "pods", "No command can be run in jobs.", subresource="exec"),
    ApiCall(ATTACH, _OPEN, "", "pods", "No job with a terminal can be attached to.", subresource="attach"),
    ApiCall(HOLD_QUEUED, ("patch",), KUEUE, "workloads", "No job of Kueue can be held or released."),
    ApiCall(CORDON, ("patch",), "", "nodes", "No node can be drained.", is_wide=True, is_operators=True),
)
"""Every call but those that each authenticated user may make: the version, the API groups and reviews of own rights."""


class RbacSubject(Struct, frozen=True):
    kind: str
    """`User`, `Group` or `ServiceAccount`."""
    name: str
    namespace: str = ""
    """Namespace of a service account."""

    @property
    def manifest(self) -> dict[str, str]:
        """The subject as a binding names it."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": RBAC, "kind": self.kind, "name": self.name}


def rbac(
    namespace: str, subject: RbacSubject, *, is_operator: bool = False, is_wide: bool = True
) -> Iterator[dict[str, Any]]:
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
    yield {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name} | place, "rules": list(_rules(calls))}
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{name}-{dns_label(subject.name, subject.kind)}"} | place,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [subject.manifest],
    }


def _rules(calls: list[ApiCall]) -> Iterator[Mapping[str, Any]]:
    """Yield a rule for each resource, with the verbs of all calls of it."""
    verbs: dict[tuple[str, str], dict[str, None]] = {}
    for call in calls:
        what = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        verbs.setdefault((call.group, what), {}).update(dict.fromkeys(call.verbs))
    for (group, resource), names in verbs.items():
        yield {"apiGroups": [group], "resources": [resource], "verbs": list(names)}
