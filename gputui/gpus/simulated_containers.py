"""The demo's foreign containers: their pages, their output, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.container import ForeignContainer
from gputui.domain.errors import NotFoundError
from gputui.domain.gpu_processes import ContainerDetail
from gputui.ports import Clock

UPTIME = timedelta(hours=5, minutes=48)
"""Time for which they have run when the demo begins."""
_LINES = (
    "Entered start.sh with args: start-notebook.py",
    "[ServerApp] Serving notebooks from local directory: /home/jovyan/work",
    "[ServerApp] Jupyter Server 2.14.2 is running at http://localhost:8888/lab",
    "[ServerApp] Kernel started: 5b0c1b1e (python3)",
    "[ServerApp] Saving file at /ablation-attention.ipynb",
)
_APART = timedelta(minutes=7)


class SimulatedContainers:
    """ForeignContainers that exist only here; `removed` is called after one was stopped."""

    def __init__(self, containers: Iterable[ForeignContainer], removed: Callable[[], None], clock: Clock) -> None:
        self._running = tuple(containers)
        self._removed = removed
        self._began = clock.now() - UPTIME
        self._stopped: dict[str, ContainerDetail] = {}

    @property
    def running(self) -> tuple[ForeignContainer, ...]:
        return tuple(each for each in self._running if each.id not in self._stopped)

    def inspect(self, name: str) -> ContainerDetail:
        found = next((each for each in self._running if name in {each.name, each.id}), None)
        if found is None:
            raise NotFoundError(f"there is no container {name[:64]}", hint="the demo has only simulated ones")
        return self._stopped.get(found.id) or ContainerDetail(
            found.id,
            found.name,
            found.image,
            found.user or "",
            "start-notebook.py --ip=0.0.0.0",
            "running",
            created_at=self._began,
            started_at=self._began,
            mounts=(f"/home/{found.user} → /home/jovyan/work",),
            ports=("8888/tcp on 127.0.0.1:8888",),
            devices=found.devices,
            stop_signal="SIGTERM",
        )

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container, which ends at once; return its final state."""
        del patience
        detail = replace(self.inspect(container_id), state="exited", exit_code=0)
        self._stopped[detail.id] = detail
        self._removed()
        return detail

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> SimulatedOutput:
        began = self.inspect(container_id).started_at or self._began
        return SimulatedOutput(began, tail=tail, follow=follow, is_stamped=stamped)

    def close(self) -> None:
        """Close nothing."""


class SimulatedOutput:
    """LogStream of a few lines, which if followed ends when it is closed."""

    def __init__(self, began: datetime, *, tail: int | None, follow: bool, is_stamped: bool) -> None:
        self._began = began
        self._first = 0 if tail is None else max(0, len(_LINES) - tail)
        self._follow = follow
        self.is_stamped = is_stamped
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(_LINES[self._first :], self._first):
            at = f"{self._began + number * _APART:%Y-%m-%dT%H:%M:%SZ} " if self.is_stamped else ""
            yield f"{at}{line}".encode()
        if self._follow:
            self._closed.wait()

    def close(self) -> None:
        self._closed.set()
