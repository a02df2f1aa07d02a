"""Two schedulers on one engine, each with a queue of its own: they must not give one GPU away twice.

Each looks between creating a container and starting it. A container can be seen from its creation on, so of two that
want the same GPU at least the later one sees the other, and a container is only started when a look after its
creation showed no other. Of two that see each other the one with the smaller id stays, the other is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gputui.domain.container import ContainerRecord, ContainerState
from gputui.ports import Runtime

TRIES = 60
PAUSE = 0.05
"""Seconds between two looks: a rival has so many of them to start or to give way."""


def to_give_way_to(
    runtime: Runtime, container_id: str, pause: Callable[[float], None] = time.sleep
) -> ContainerRecord | None:
    """The other store's container before which this one, not started yet, has to go; None when it may start."""
    rival = None
    for _ in range(TRIES):
        rival = next(iter(_by_rank(runtime.rivals(container_id))), None)
        if rival is None:
            return None
        if rival.state is ContainerState.RUNNING or rival.id < container_id:
            break
        pause(PAUSE)
    return rival if _waits(runtime, container_id) else None


def _by_rank(rivals: tuple[ContainerRecord, ...]) -> list[ContainerRecord]:
    """What runs first, then by id."""
    return sorted(rivals, key=lambda rival: (rival.state is not ContainerState.RUNNING, rival.id))


def _waits(runtime: Runtime, container_id: str) -> bool:
    """Whether it really was not started: one that was adopted may run since long ago, and then it stays."""
    mine = runtime.inspect(container_id)
    return mine is not None and mine.state is ContainerState.CREATED
