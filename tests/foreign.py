"""Fakes of foreign processes and containers, which record requests."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError
from gputui.domain.gpu_processes import ContainerDetail, ProcessTarget, SignalOutcome
from gputui.ports import LogStream
from tests.factories import NOW

JUPYTER = ContainerDetail(
    "f00d" * 16,
    "jupyter-bob",
    "lab:2",
    "bob",
    "jupyter lab --no-browser",
    "running",
    started_at=NOW - timedelta(hours=3),
    mounts=("/data/bob → /work (read-only)",),
    ports=("8888/tcp on 127.0.0.1:18888",),
    stop_timeout=7,
)


@contextmanager
def idle_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start `cat`, which waits for input; it has answered once, so /proc shows its command and environment."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ready\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


class FakeOutput:
    """Three lines, then silence until it is closed."""

    def __init__(self, *, follows: bool) -> None:
        self._follows = follows
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from (b"serving notebooks", b"kernel started", b"kernel busy")
        if self._follows:
            self._closed.wait()

    def close(self) -> None:
        self._closed.set()


class FakeHost:
    """Host whose processes always exist; it records signals."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.known: dict[int, ProcessRow] = {}
        """Known rows of processes and of their parents."""
        self.names: tuple[str, ...] = ()
        self.error: GputuiError | None = None
        self.outcome = SignalOutcome(has_ended=True, seconds=0.25)

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        del with_parents
        rows = {pid: self.known.get(pid, ProcessRow(pid, "bob", "python", ticks=5)) for pid in pids}
        return {**self.known, **rows}

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        del target
        return self.names

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        del patience
        if self.error:
            raise self.error
        before()
        self.sent.append((target.pid, number))
        return self.outcome


class FakeContainers:
    """Details of a container."""

    def __init__(self, detail: ContainerDetail = JUPYTER) -> None:
        self.detail = detail
        self.stopped: list[tuple[str, int]] = []
        self.ends = True

    def inspect(self, name: str) -> ContainerDetail:
        del name
        return self.detail

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        self.stopped.append((container_id, patience))
        return replace(self.detail, state="exited", exit_code=137) if self.ends else self.detail

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> LogStream:
        del container_id, tail, stamped
        return FakeOutput(follows=follow)

    def close(self) -> None:
        pass
