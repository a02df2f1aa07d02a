"""Objects of the fake API server, with versions, a history for watches, and the server's own answers to mistakes."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import Condition, RLock
from typing import Any

Manifest = dict[str, Any]
KINDS = {
    "jobs": ("Job", "batch/v1"),
    "pods": ("Pod", "v1"),
    "nodes": ("Node", "v1"),
    "events": ("Event", "v1"),
    "resourceclaimtemplates": ("ResourceClaimTemplate", "resource.k8s.io/v1"),
    "workloads": ("Workload", "kueue.x-k8s.io/v1beta2"),
}


class ApiError(Exception):
    """A request that the server refuses."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


def not_found(kind: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind} "{name}" not found')


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    """All objects by kind, namespace and name. Each change has a version, and is told to the watches."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.version = 1000
        self.is_closed = False
        self._items: dict[tuple[str, str, str], Manifest] = {}
        self._history: list[tuple[int, str, str, str, bytes]] = []
        self._compacted = 0

    def create(self, kind: str, item: Manifest) -> Manifest:
        with self.lock:
            meta = item.setdefault("metadata", {})
            key = (kind, meta.get("namespace", ""), meta["name"])
            if key in self._items:
                raise ApiError(409, "AlreadyExists", f'{kind} "{meta["name"]}" already exists')
            name, version = KINDS[kind]
            item |= {"kind": name, "apiVersion": version}
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            self._items[key] = copy.deepcopy(item)
            return self._tell(kind, "ADDED", self._items[key])

    def get(self, kind: str, namespace: str, name: str) -> Manifest:
        with self.lock:
            found = self._items.get((kind, namespace, name))
            if found is None:
                raise not_found(kind, name)
            return copy.deepcopy(found)

    def all(self, kind: str, namespace: str = "") -> list[Manifest]:
        with self.lock:
            found = [item for key, item in self._items.items() if key[0] == kind and namespace in {"", key[1]}]
            return copy.deepcopy(found)

    def change(self, kind: str, item: Manifest, change: Callable[[Manifest], object]) -> Manifest:
        """Change an object in place; tell it if anything is different."""
        with self.lock:
            meta = item["metadata"]
            found = self._items[kind, meta.get("namespace", ""), meta["name"]]
            before = json.dumps(found, sort_keys=True)
            change(found)
            if json.dumps(found, sort_keys=True) == before:
                return copy.deepcopy(found)
            return self._tell(kind, "MODIFIED", found)

    def patch(self, kind: str, namespace: str, name: str, patch: Manifest) -> Manifest:
        with self.lock:
            found = self.get(kind, namespace, name)
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != found["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified; please apply your changes to the latest")
            return self.change(kind, found, lambda item: merge(item, patch))

    def remove(self, kind: str, item: Manifest) -> Manifest:
        with self.lock:
            meta = item["metadata"]
            return self._tell(kind, "DELETED", self._items.pop((kind, meta.get("namespace", ""), meta["name"])))

    def compact(self) -> None:
        """Forget all changes so far: who watches from before has to list again."""
        with self.lock:
            self._compacted = self.version
            self._history.clear()

    def is_too_old(self, version: int) -> bool:
        with self.lock:
            return version < self._compacted

    def since(self, version: int, kind: str, namespace: str, timeout: float) -> list[tuple[int, str, bytes]]:
        """Return changes after a version; waits for the first of them."""

        def found() -> list[tuple[int, str, bytes]]:
            return [
                (at, event, data)
                for at, what, place, event, data in self._history
                if at > version and what == kind and namespace in {"", place}
            ]

        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or self.is_too_old(version) or found(), timeout)
            return found()

    def before(self, version: int, uid: str) -> list[Manifest]:
        """Return the state that an object had before a version, if it is remembered."""
        with self.lock:
            states = [data for at, _, _, _, data in self._history if at < version and uid.encode() in data]
        found = (json.loads(data) for data in reversed(states))
        return [item for item in found if item["metadata"]["uid"] == uid][:1]

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def _tell(self, kind: str, event: str, item: Manifest) -> Manifest:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        data = json.dumps(item).encode()
        self._history.append((self.version, kind, item["metadata"].get("namespace", ""), event, data))
        self.changed.notify_all()
        return copy.deepcopy(item)


def merge(item: Manifest, patch: Manifest) -> None:
    """Apply a JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            inner = item.setdefault(key, {})
            merge(inner, value)
        elif key != "resourceVersion":
            item[key] = value


def selected(items: list[Manifest], query: dict[str, str]) -> Iterator[Manifest]:
    """Yield the objects that fit a field selector and a label selector."""
    fields = [word for word in query.get("fieldSelector", "").split(",") if word]
    labels = [word for word in query.get("labelSelector", "").split(",") if word]
    for item in items:
        marks = item["metadata"].get("labels", {})
        if all(_fits_field(item, word) for word in fields) and all(_fits_label(marks, word) for word in labels):
            yield item


def _fits_field(item: Manifest, word: str) -> bool:
    """Return whether a field such as `status.phase` is what `NAME=VALUE` or `NAME!=VALUE` wants."""
    name, sign, wanted = re.split(r"(!?=)", word, maxsplit=1)
    found: Any = item
    for part in name.split("."):
        found = found.get(part, "")
    return bool((found == wanted) == (sign == "="))


def _fits_label(labels: Manifest, word: str) -> bool:
    """Return whether labels are what `NAME=VALUE`, `NAME` or `!NAME` wants."""
    name, sign, wanted = word.partition("=")
    return labels.get(name) == wanted if sign else (name.lstrip("!") in labels) is not name.startswith("!")
