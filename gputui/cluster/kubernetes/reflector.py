"""Copy of all objects of a kind: listed once, then kept up to date by a watch, and listed again once that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from typing import Generic

import msgspec

from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, ApiStream
from gputui.cluster.kubernetes.objects import Item, KubeChange, KubeList, KubeMeta, Reader
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import ClusterError

PAGE = "500"
"""Number of objects in one answer."""
_WATCH = 240
"""Seconds after which the server ends a watch, to be begun anew from where it was."""
_SLACK = 30.0
_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_PATIENCE = 0.2
"""Seconds for which the end of a watch is waited for."""
_MOST_DELETED = 1000
_CHANGE = json_decoder(KubeChange)
_GONE = 410


class Reflector(Generic[Item]):
    """Objects of a kind by uid."""

    def __init__(
        self,
        server: ApiServer,
        path: str,
        kind: type[Item],
        *,
        query: Mapping[str, str] | None = None,
        removed: Callable[[Item], None] = lambda item: None,
    ) -> None:
        """`removed` is told of objects that no longer exist, from any thread."""
        self.changes = 0
        """Number of changes so far."""
        self.error: ClusterError | None = None
        """Why the copy is out of date; None while it is not."""
        self._server = server
        self._path = path
        self._reader: Reader[Item] = Reader(kind)
        self._query = dict(query or {})
        self._removed: Callable[[Item], None] = removed
        self._items: dict[str, Item] = {}
        self._deleted: dict[str, None] = {}
        self._version = ""
        self._lock = Lock()
        self._closed = Event()
        self._stream: ApiStream | None = None
        self._thread: Thread | None = None

    def items(self) -> dict[str, Item]:
        """Return the objects."""
        with self._lock:
            return dict(self._items)

    def list(self) -> None:
        """Ask for all objects; raises ClusterError."""
        try:
            self._replace(*self._all({"limit": PAGE}))
        except ApiRefusedError as error:
            if error.status != _GONE:
                raise
            self._replace(*self._all({}))  # pages became too old before the last one: all at once

    def start(self) -> None:
        """Keep the copy up to date from now on, in a thread."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"watch {self._path}", daemon=True)
            self._thread.start()

    @property
    def is_watching(self) -> bool:
        """Return whether the copy is kept up to date."""
        return self._thread is not None and not self._closed.is_set()

    def put(self, data: bytes) -> None:
        """Take over an object that the server answered after a change, unless a later state is known."""
        item = self._reader.read(data)
        if item is not None and item.metadata.uid:
            self._put(item)

    def drop(self, uid: str) -> None:
        """Forget an object that the server removed at once."""
        with self._lock:
            self._take_out(uid)

    def stop(self) -> None:
        """Tell the watch to end."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """End the watch; one that waits for a silent server is left to the end of the process."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _all(self, limit: dict[str, str]) -> tuple[dict[str, Item], str]:
        """Return all objects and the version of the list."""
        found: dict[str, Item] = {}
        query = self._query | limit
        while True:
            page = self._server.read(self._path, KubeList, query)
            for raw in page.items or ():
                if (item := self._reader.read(raw)) is not None:
                    found[item.metadata.uid] = item
            if not page.metadata.continue_:
                return found, page.metadata.resource_version
            query = self._query | limit | {"continue": page.metadata.continue_}

    def _replace(self, found: dict[str, Item], version: str) -> None:
        with self._lock:
            gone = [item for uid, item in self._items.items() if uid not in found]
            self._items, self._version, self.error = found, version, None
            self.changes += 1
        for item in gone:
            self._removed(item)

    def _put(self, item: Item) -> None:
        meta = item.metadata
        with self._lock:
            known = self._items.get(meta.uid)
            if meta.uid in self._deleted or (known is not None and not _is_later(meta, known.metadata)):
                return
            self._items[meta.uid] = item
            self.changes += 1

    def _take_out(self, uid: str) -> Item | None:
        self._deleted[uid] = None
        while len(self._deleted) > _MOST_DELETED:
            del self._deleted[next(iter(self._deleted))]
        self.changes += 1
        return self._items.pop(uid, None)

    def _run(self) -> None:
        pause = _PAUSE
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                if self.error is not None or not self._version:
                    self.list()
                self._watch()
                pause = _PAUSE
                self._closed.wait(_PAUSE if time.monotonic() - began < _PAUSE else 0)  # no proxy is asked in a loop
            except ClusterError as error:
                self.error = error
                self._closed.wait(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _watch(self) -> None:
        query = self._query | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH),
        }
        try:
            stream = self._stream = self._server.stream(self._path, query, _WATCH + _SLACK)
            if self._closed.is_set():
                stream.close()
            for line in stream:
                if not self._take(line):
                    self.list()
                    break
        except ApiRefusedError as error:
            if error.status != _GONE:
                raise
            self.list()
        finally:
            if self._stream is not None:
                self._stream.close()

    def _take(self, line: bytes) -> bool:
        """Take over a change; return False if the watch goes on from nowhere: its version is forgotten."""
        try:
            change = _CHANGE.decode(line)
        except (msgspec.DecodeError, ValueError):
            return False
        if change.type == "ERROR":
            return False
        item = self._reader.read(change.object)
        if item is None:
            return True
        self._version = item.metadata.resource_version or self._version
        if change.type == "DELETED":
            with self._lock:
                known = self._take_out(item.metadata.uid)
            self._removed(known if known is not None else item)
        elif change.type in {"ADDED", "MODIFIED"}:
            self._put(item)
        return True


def _is_later(new: KubeMeta, known: KubeMeta) -> bool:
    """Return whether a state is not older than another: versions are numbers in every release so far."""
    if new.resource_version.isdigit() and known.resource_version.isdigit():
        return int(new.resource_version) >= int(known.resource_version)
    return True
