"""A real control plane, and views of it by users with the rights of the manifest."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from gputui.cluster.kubernetes.api_server import connect
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.cluster.kubernetes.site import RbacSubject, rbac
from gputui.domain.settings import ClusterSettings, Settings
from tests.kubernetes.control_plane import ControlPlane, binaries

USERS = ("ann", "eve", "una", "bob", "opa")


class Bed:
    """A control plane, and what was opened of it."""

    def __init__(self, directory: Path, *, has_nodes: bool = False) -> None:
        programs = binaries()
        assert programs is not None
        self.directory = directory
        self.plane = ControlPlane(programs, directory)
        self.plane.start(USERS, has_nodes=has_nodes)
        self.opened: list[KubernetesCluster] = []

    def open(self, token: str, user: str, settings: ClusterSettings | None = None) -> KubernetesCluster:
        """Return the view of a user."""
        number = len(self.opened)
        file = self.directory / f"kubeconfig-{number}"
        file.write_text(self.plane.kubeconfig(token))
        made = KubernetesCluster(
            lambda: connect(None, {"KUBECONFIG": str(file)}, 30.0),
            replace(Settings(), cluster=settings or ClusterSettings()),
            self.directory / f"state-{number}",
            user=user,
        )
        self.opened.append(made)
        return made

    def grant(self, name: str, *, is_operator: bool, is_wide: bool = True) -> None:
        """Apply the manifest of `gputui cluster rbac`."""
        for document in rbac("default", RbacSubject("User", name), is_operator=is_operator, is_wide=is_wide):
            kind, place = document["kind"].lower() + "s", document["metadata"].get("namespace")
            where = f"/namespaces/{place}" if place else ""
            with suppress(FileExistsError):  # the same role, for another user
                self.plane.create(f"/apis/rbac.authorization.k8s.io/v1{where}/{kind}", document)

    def close(self) -> None:
        """Close all views and end the control plane."""
        for cluster in self.opened:
            cluster.close()
        self.plane.close()
