"""Who asks: the caller of a request, from what the kernel knows about the process at the other end.

A process in a container is not whom its uid says: root there is root to the kernel, and any other uid was chosen by the
container's user. So it is the submitter of the job whose container that is, or may only look. Names of control groups
are no proof by themselves, as a user may have his own below his session's; so they take rights away, and give root and
the submitter himself those of the submitter, but nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gputui.api.account_names import AccountNames
from gputui.api.http import Peer
from gputui.domain.access import Caller, Role, role_of
from gputui.domain.job import Job
from gputui.domain.settings import Settings

VIA = "gputui-via"
"""Header with the program that asks for its user, in lower case as all."""
SUDO_UID = "gputui-sudo-uid"
"""Header of root's requests with the uid of the user who called sudo."""
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Full id of a container, as Docker, containerd, CRI-O and Podman have it in the names of control groups."""
_OTHERS = re.compile(r"/lxc/[^/\s]+|/lxc\.payload[^/\s]*|/machine\.slice/[^/\s]+|/kubepods[^/\s]*|/buildkit/[^/\s]+")
"""Control groups of LXC, systemd-nspawn and virtual machines, of Kubernetes, and of builds of images."""
_VIA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)


class Whereabouts(Struct, frozen=True):
    """Where a process runs, by its control groups."""

    containers: frozenset[str] = frozenset()
    """Full ids of containers, or control groups of other engines."""
    attempts: frozenset[tuple[int, int]] = frozenset()
    """Host jobs of this queue, with the numbers of their attempts."""


def whereabouts_of(cgroups: str, store_id: str) -> Whereabouts:
    """Return the place that the text of /proc/PID/cgroup describes."""
    attempts = re.findall(rf"/gputui-{re.escape(store_id)}-(\d{{1,18}})-(\d{{1,9}})(?![^/\s])", cgroups, re.ASCII)
    containers = {*_ID.findall(cgroups), *_OTHERS.findall(cgroups)}
    return Whereabouts(frozenset(containers), frozenset((int(job), int(attempt)) for job, attempt in attempts))


def via_of(headers: Mapping[str, str]) -> str:
    """Return the program that asks for its user, for the audit; empty: none says so."""
    return word if _VIA.fullmatch(word := headers.get(VIA, "")) else ""


class Callers:
    """Tells who asks. Safe to use from any thread."""

    def __init__(
        self,
        settings: Settings,
        owner: int,
        store_id: str,
        jobs: Callable[[], Iterable[Job]],
        names: AccountNames,
        own_cgroup: str = "",
    ) -> None:
        """`owner` is the uid of the state directory, `jobs` returns those of the queue.

        `own_cgroup` is the text of this process's /proc/self/cgroup: who shares its container is in none.
        """
        self._settings, self._owner, self._store_id = settings, owner, store_id
        self._jobs, self._names = jobs, names
        self._own = whereabouts_of(own_cgroup, store_id)

    def caller_of(self, peer: Peer, headers: Mapping[str, str]) -> Caller:
        """Return who asks; of the headers only names for the audit are believed, and root's word whom it acts for."""
        via = via_of(headers)
        caller = Caller(peer.uid, peer.gid, peer.groups, self._names.name(peer.uid), Role.VIEWER, peer.pid, via=via)
        if not peer.cgroup:
            return caller
        place = whereabouts_of(peer.cgroup, self._store_id)
        containers, attempts = place.containers - self._own.containers, place.attempts - self._own.attempts
        if containers or attempts:
            return self._inside(caller, containers, attempts)
        if peer.is_mapped and caller.user == str(peer.uid):
            return caller  # with an id that has no account, but is lent to one
        caller = replace(caller, role=self._role(peer.uid, (peer.gid, *peer.groups)))
        sudo = headers.get(SUDO_UID, "")
        if peer.uid == 0 and sudo.isascii() and sudo.isdigit() and len(sudo) < 11 and int(sudo):
            return replace(caller, user=self._names.name(int(sudo)), via=f"sudo {via}".rstrip())
        return caller

    def _role(self, uid: int, groups: Iterable[int]) -> Role:
        return role_of(uid, groups, self._owner, self._settings, self._names.number)

    def _inside(self, caller: Caller, containers: frozenset[str], attempts: frozenset[tuple[int, int]]) -> Caller:
        """Return the caller in a container or a host job.

        An operator's container may only look: with his rights it could start another one as root. His host jobs can
        do that anyway.
        """
        job = next((job for job in self._jobs() if _runs_in(job, containers, attempts)), None)
        uid = job.submitted_uid if job is not None else None
        if job is None or uid is None or caller.uid not in {0, uid}:
            return caller
        if not containers and caller.uid == uid:
            return replace(caller, role=self._role(uid, (caller.gid, *caller.groups)), job=job.id)
        groups = self._names.groups(uid)
        if (role := self._role(uid, groups)) is Role.OPERATOR:
            return replace(caller, job=job.id)
        gid = caller.gid if caller.uid == uid else next(iter(groups), uid)
        return replace(caller, uid=uid, gid=gid, groups=groups, user=self._names.name(uid), role=role, job=job.id)


def _runs_in(job: Job, containers: frozenset[str], attempts: frozenset[tuple[int, int]]) -> bool:
    """Return whether the place is the job's present attempt; of nested containers any may be it."""
    attempt = job.attempt
    if attempt is None or attempt.is_over:
        return False
    return attempt.container_id in containers or (job.id, attempt.number) in attempts
