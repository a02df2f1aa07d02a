"""What rules forbade, in the audit log: limited in rate, as each entry is a durable write that its user caused."""

from __future__ import annotations

import logging
import threading
from datetime import datetime

from msgspec import Struct

from gputui.domain.access import Caller
from gputui.domain.audit import AuditEntry
from gputui.domain.errors import StoreError
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.ports import Clock, JobStore

log = logging.getLogger(__name__)
REFUSED = "refused"
"""Verb of the entries; their target is the rule."""
BURST = 20
"""Entries of a user that are written at once."""
EVERY = 10.0
"""Seconds after which a user may cause one more."""
MOST_USERS = 1000
"""Users whose rates are remembered; beyond them all others share one."""
_LONGEST = 400


class _Rate(Struct):
    """Entries that a user may still cause."""

    left: float
    at: datetime
    unwritten: int = 0


class Refusals:
    """Writes refusals into the audit log. Safe to use from any thread; never raises."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._rates: dict[int, _Rate] = {}

    def record(self, caller: Caller, rule: str, what: str) -> None:
        """Write that a rule forbade something; what is beyond the rate is counted, and told with the next entry."""
        now = self._clock.now()
        with self._lock:
            unwritten = self._spend(caller.uid, now)
        if unwritten is None:
            return
        words = plain(what, _LONGEST) + (f"; and {plural(unwritten, 'refusal')} before" if unwritten else "")
        entry = AuditEntry(now, caller.uid, caller.user, REFUSED, f"rule {rule}", "", words, via=caller.via)
        try:
            with self._store.transaction() as transaction:
                transaction.audit(entry)
        except StoreError as error:
            log.warning("a refusal was not written: %s %s: %s (%s)", caller.user, rule, words, error)

    def _spend(self, uid: int, now: datetime) -> int | None:
        """Return how many were not written since the last entry; None if this one may not be either."""
        key = uid if uid in self._rates or len(self._rates) < MOST_USERS else -1
        rate = self._rates.setdefault(key, _Rate(BURST, now))
        rate.left = min(BURST, rate.left + max(0.0, (now - rate.at).total_seconds()) / EVERY)
        rate.at = now
        if rate.left < 1:
            rate.unwritten += 1
            return None
        rate.left -= 1
        unwritten, rate.unwritten = rate.unwritten, 0
        return unwritten
