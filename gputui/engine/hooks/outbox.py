"""Deliveries to one target: bounded, tried again with growing pauses, by workers of its own.

Each target (a command, the webhook, mail) has one outbox, so a slow target delays no other. When too many deliveries
wait, further ones are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime, timedelta

from msgspec import Struct

from gputui.domain.event import Event
from gputui.engine.hooks.delivery import Deliver, NotDeliveredError

log = logging.getLogger(__name__)

BUSY = 64
"""Unfinished deliveries from which an event that only this target wants waits in the store."""
MOST = 1000
"""Unfinished deliveries from which further ones are dropped: other targets want these events too, and do not wait."""
TOLD_FOR = timedelta(hours=1)
"""Time for which a notice names dropped deliveries, after the last."""
_FIRST_PAUSE = timedelta(seconds=5)
_LONGEST_PAUSE = timedelta(minutes=20)


class _Delivery(Struct):
    """Event that is being delivered."""

    event: Event
    tries: int = 0
    under_way: bool = False
    again_at: datetime | None = None


class Outbox:
    """Queue of deliveries to one target. Never blocks: workers deliver."""

    def __init__(
        self,
        name: str,
        wants: Callable[[Event], bool],
        deliver: Deliver,
        tries: int,
        workers: Executor,
        wake: Callable[[], None],
    ) -> None:
        self.name = name
        self.wants = wants
        self._deliver = deliver
        self._tries = tries
        self._workers = workers
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: dict[str, _Delivery] = {}
        self._fault = ""
        self._lost = 0
        self._lost_at: datetime | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether so many deliveries wait that new ones should stay in the store."""
        return len(self._waiting) >= BUSY

    def holds(self, event_id: str) -> bool:
        """Return whether this event is still to be delivered here."""
        return event_id in self._waiting

    def put(self, event: Event, now: datetime) -> None:
        """Deliver the event, at once if a worker is free; drop it when too many wait."""
        with self._lock:
            if len(self._waiting) >= MOST:
                self._lose(event, now, f"{MOST} deliveries wait already")
                return
            delivery = self._waiting[event.id] = _Delivery(event)
        self._begin(delivery)

    def try_again(self, now: datetime) -> None:
        """Begin the deliveries whose pause is over."""
        with self._lock:
            resting = [each for each in self._waiting.values() if each.tries and not each.under_way]
        for delivery in resting:
            if delivery.tries >= self._tries:
                with self._lock:
                    del self._waiting[delivery.event.id]
                    self._lose(delivery.event, now, f"{delivery.tries} tries failed")
            elif delivery.again_at is None:
                delivery.again_at = now + min(_FIRST_PAUSE * 4 ** (delivery.tries - 1), _LONGEST_PAUSE)
            elif now >= delivery.again_at:
                self._begin(delivery)

    def notices(self, now: datetime) -> list[str]:
        """Return sentences about what does not work here."""
        with self._lock:
            said = [f"hooks.{self.name}: {self._fault}"] if self._fault else []
            if self._lost_at is not None and now - self._lost_at > TOLD_FOR:
                self._lost, self._lost_at = 0, None
            if self._lost:
                said.append(f"hooks.{self.name}: deliveries dropped: {self._lost}, waiting: {len(self._waiting)}")
            return said

    def close(self) -> None:
        """Begin no further delivery."""
        self._workers.shutdown(wait=False)

    def _begin(self, delivery: _Delivery) -> None:
        delivery.under_way, delivery.again_at = True, None
        delivery.tries += 1
        self._workers.submit(self._work, delivery)

    def _work(self, delivery: _Delivery) -> None:
        fault = ""
        try:
            self._deliver(delivery.event)
        except NotDeliveredError as error:
            fault = str(error)
        except Exception as error:  # the border of a worker
            log.exception("telling %s of %s", self.name, delivery.event.id)
            fault = type(error).__name__
        with self._lock:
            delivery.under_way = False
            self._fault = fault
            if not fault:
                del self._waiting[delivery.event.id]
        if fault:
            log.warning("hooks.%s: %s, try %d: %s", self.name, delivery.event.id, delivery.tries, fault)
        self._wake()

    def _lose(self, event: Event, now: datetime, why: str) -> None:
        self._lost += 1
        self._lost_at = now
        log.warning("hooks.%s: %s is dropped: %s", self.name, event.id, why)
