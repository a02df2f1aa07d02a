"""Obstacles of jobs in a Kubernetes cluster: no answer, missing rights, no GPUs, an old release."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputui.cluster.kubernetes import calls
from gputui.cluster.kubernetes.api_server import ApiServer
from gputui.cluster.kubernetes.calls import CALLS, ApiCall
from gputui.cluster.kubernetes.site import KubeSite, ask
from gputui.domain.cluster import ClusterFault
from gputui.domain.errors import ClusterError
from gputui.domain.settings import ClusterSettings

_OWN_OF = {
    calls.ALL_JOBS: calls.OWN_JOBS,
    calls.ALL_PODS: calls.OWN_PODS,
    calls.ALL_EVENTS: calls.OWN_EVENTS,
    calls.ALL_WORKLOADS: calls.OWN_WORKLOADS,
}
"""Call for the user's namespace, by that for the whole cluster."""


def faults(connected: Callable[[], ApiServer], settings: ClusterSettings) -> Iterator[ClusterFault]:
    """Yield the faults that are found; one because of which nothing works ends them."""
    try:
        server = connected()
        namespace = settings.namespace or server.namespace
        site = ask(server, namespace)
    except ClusterError as error:
        hint = error.hint or "kubectl get --raw /readyz; kubectl config view --minify"
        why = "Without its API server nothing is submitted or shown."
        text = f"{error.where}: {error.what}" if error.where else error.what
        yield ClusterFault("server", text, why, hint, stops_jobs=True)
        return
    yield from _of_rights(site, namespace)
    yield from _of_settings(site, settings)


def _of_rights(site: KubeSite, namespace: str) -> Iterator[ClusterFault]:
    """Yield a fault for each call that the user may not make, as far as it is worth one."""
    for call in CALLS:
        is_made = site.kueue or not call.is_kueue
        if is_made and not call.is_operators and not site.may(call.name) and not _is_wider(call, site):
            where = "" if call.is_wide else f" in namespace {namespace}"
            text = f"this user may not {call.words}{where}"
            hint = "an administrator: gputui cluster rbac --user NAME | kubectl apply -f -"
            yield ClusterFault("rights", text, call.lost, hint, stops_jobs=call.is_needed)


def _is_wider(call: ApiCall, site: KubeSite) -> bool:
    """Return whether that of the user's own namespace is missing too, which is told instead."""
    return call.name in _OWN_OF and not site.may(_OWN_OF[call.name])


def _of_settings(site: KubeSite, settings: ClusterSettings) -> Iterator[ClusterFault]:
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
