"""Output of jobs: from the server while the pod exists, else from a copy kept on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from gputui.cluster.journal import write_whole
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, ApiStream
from gputui.cluster.kubernetes.objects import KubePod
from gputui.domain.errors import ClusterError, NotFoundError
from gputui.domain.text import plain

_PATIENCE = 5.0
"""Seconds for which the node of a pod may be silent while its output is copied."""
_PAUSE = 1.0
"""Seconds between two looks at a pod that has not started."""
_MOST_WORDS = 300
MOST_KEPT = 64 * 1024**2
MOST_LINES = 50_000
"""Bytes and last lines of a job's output that are kept."""
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)( |$)")
"""Beginning of each line of output: nodes answer with their complaints in its place, and call that a success."""
_NOT_YET, _GONE = 400, 404
_QUIET = frozenset({_NOT_YET, _GONE})


class PodLog:
    """Lines of a pod's container, with their times; with `pod_of` those still to come."""

    is_stamped = True

    def __init__(
        self,
        server: ApiServer,
        pod: KubePod | None,
        tail: int | None,
        pod_of: Callable[[], KubePod | None] | None,
        kept: KeptLog | None = None,
    ) -> None:
        """`pod_of` returns the pod to follow, None once the job has ended without one.

        `kept` is a copy of the output, for a node that does not have it any more or does not answer.
        """
        if pod_of is None and pod is None:
            raise NotFoundError("Kubernetes has no pod of it any more, and its output was not kept on this machine")
        self._kept = kept
        self._server = server
        self._pod = pod
        self._tail = tail
        self._pod_of = pod_of
        self._stream: ApiStream | None = None
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends."""
        number = 0
        try:
            for line in self._lines():
                if not _STAMP.match(line):
                    raise NotFoundError(f"its output cannot be read: {_words(line)}")
                number += 1
                yield line
        except (ClusterError, NotFoundError):
            if self._kept is None or number:
                raise
            yield from self._kept

    def _lines(self) -> Iterator[bytes]:
        """Yield what the node answers."""
        stream = self._opened()
        if stream is not None:
            try:
                yield from stream
            finally:
                stream.close()

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> ApiStream | None:
        """Return the output as soon as there is some; None if there never will be."""
        pod = self._pod
        while not self._closed.is_set():
            try:
                if pod is not None:
                    return self._open(pod)
            except ApiRefusedError as error:
                if self._pod_of is None or error.status not in _QUIET:
                    raise self._without_output(error) from error
            self._closed.wait(_PAUSE)
            pod = self._pod_of() if self._pod_of is not None else None
            if pod is None:
                return None
        return None

    def _open(self, pod: KubePod) -> ApiStream:
        query = log_query(pod) | ({} if self._tail is None else {"tailLines": str(self._tail)})
        query |= {"follow": "true"} if self._pod_of is not None else {}
        stream = self._stream = self._server.stream(log_path(pod), query, None)
        if self._closed.is_set():
            stream.close()
        return stream

    def _without_output(self, error: ApiRefusedError) -> ClusterError | NotFoundError:
        if error.status in _QUIET:
            return NotFoundError(f"it has no output: {error.what}")
        return error


class KeptLog:
    """Lines of a copy of a job's output, with their times."""

    is_stamped = True

    def __init__(self, path: Path, tail: int | None) -> None:
        try:
            *lines, rest = path.read_bytes().split(b"\n")
        except OSError as error:
            raise NotFoundError("its output was not kept on this machine", where=str(path)) from error
        lines += [rest] if rest else []
        self._lines = lines if tail is None else lines[max(0, len(lines) - tail) :]

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends."""
        return iter(self._lines)

    def close(self) -> None:
        """Do nothing: all of it has been read."""


class LogKeeper:
    """Copies of the output of jobs, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        """Return the path of a copy."""
        return self._directory / name

    def keep(self, server: ApiServer, pod: KubePod) -> str:
        """Copy the output of a pod; return the name of the copy, which may be an earlier one, empty if there is none.

        Raises ClusterUnavailableError: the server asks the pod's node, which may be down.
        """
        query = log_query(pod) | {"limitBytes": str(MOST_KEPT), "tailLines": str(MOST_LINES)}
        name = f"{pod.metadata.uid}.log"
        try:
            data = server.get(log_path(pod), query, _PATIENCE)
        except ApiRefusedError:
            return name if self.path(name).exists() else ""
        if data and not _STAMP.match(data):
            return name if self.path(name).exists() else ""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path(name), data)
        return name


def _words(line: bytes) -> str:
    return plain(" ".join(line.decode(errors="replace").split()))[:_MOST_WORDS]


def log_path(pod: KubePod) -> str:
    """Return the path of a pod's output."""
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"


def log_query(pod: KubePod) -> dict[str, str]:
    """Return what asks for the output of a pod's container, with times."""
    name = pod.main.name
    return {"timestamps": "true"} | ({"container": name} if name else {})
