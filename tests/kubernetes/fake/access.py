"""Rights of users at the fake API server, from manifests of RBAC."""

from __future__ import annotations

from typing import Any

ADMIN = "admin-token"
"""Token that may do everything."""
ADMINISTRATOR = "kubernetes-admin"


class Access:
    """Users by token, with the roles that are bound to them."""

    def __init__(self) -> None:
        self._users = {ADMIN: ADMINISTRATOR}
        self._roles: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        self._bindings: list[tuple[str, str, str, str]] = []

    def add_user(self, name: str) -> str:
        """Add a user without rights; return her token."""
        token = f"{name}-token"
        self._users[token] = name
        return token

    def rename_token(self, old: str, new: str) -> None:
        """Have a token run out, and another one stand for its user."""
        self._users[new] = self._users.pop(old)

    def user_of(self, header: str) -> str | None:
        return self._users.get(header.removeprefix("Bearer ").removeprefix("bearer "))

    def apply(self, document: dict[str, Any]) -> None:
        """Take over a role or a binding."""
        meta, kind = document["metadata"], document["kind"]
        namespace = meta.get("namespace", "")
        if kind in {"Role", "ClusterRole"}:
            self._roles[kind, namespace, meta["name"]] = document["rules"]
            return
        for subject in document["subjects"]:
            role = document["roleRef"]
            self._bindings.append((subject["name"], namespace, role["kind"], role["name"]))

    def revoke(self, group: str, resource: str, verb: str) -> None:
        """Take a right out of all roles."""
        for rules in self._roles.values():
            for rule in rules:
                if group in rule["apiGroups"] and resource in rule["resources"]:
                    rule["verbs"] = [each for each in rule["verbs"] if each != verb]

    def may(self, user: str, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Return whether a user may do that; an empty namespace stands for all of them."""
        if user == ADMINISTRATOR:
            return True
        for name, place, kind, role in self._bindings:
            if name != user or place not in {"", namespace}:
                continue
            rules = self._roles[kind, place if kind == "Role" else "", role]
            if any(_fits(rule, verb, group, resource) for rule in rules):
                return True
        return False


def _fits(rule: dict[str, Any], verb: str, group: str, resource: str) -> bool:
    return verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
