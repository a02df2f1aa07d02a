"""What one user may ask of the door, so that none keeps it from the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace


class Limits(Struct, frozen=True):
    """Limits of a server; bytes and seconds."""

    connections: int = 512
    of_users: int = 448
    """Connections of all plain users together; the rest is left to operators."""
    of_user: int = 16
    of_operator: int = 256
    head: int = 64 << 10
    """Bytes of a request's head."""
    lines: int = 128
    """Lines of it: many short ones cost more than a few long ones."""
    head_within: float = 10.0
    body: int = 1 << 20
    operator_body: int = 64 << 20
    """Bytes of a body: operators submit files of jobs."""
    bodies: int = 128 << 20
    """Bytes of all bodies that are being received."""
    body_within: float = 30.0
    idle: float = 30.0
    """Seconds between two requests of a connection."""
    at_once: int = 2
    """Requests of one user that are answered at a time; the others wait."""
    of_users_at_once: int = 3
    """Requests of all plain users at a time; the pool has one thread more."""
    rate: float = 50.0
    """Requests of a plain user in a second; beyond it, and the burst, they wait."""
    burst: int = 200
    unsent: int = 8 << 20
    """Bytes that a stream may hold for a slow client before it is cut."""


LIMITS = Limits()
OF_NAMESPACES = -1
"""Stands for all users in user namespaces together: one user may have thousands of uids there."""


def limits_for(descriptors: int) -> Limits:
    """Return the limits of a process that may open so many files: half of them are for its other work."""
    connections = max(2, min(LIMITS.connections, descriptors // 2)) if descriptors >= 0 else LIMITS.connections
    left = LIMITS.connections - LIMITS.of_users
    return replace(LIMITS, connections=connections, of_users=max(connections // 2, connections - left))


class Allowance:
    """What one user has open, and how fast he asks."""

    def __init__(self, limits: Limits, *, is_operator: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_operator = is_operator
        self.connections = 0
        self._limits = limits
        self._clock = clock
        self.turn = asyncio.Semaphore(limits.at_once)
        """Held while a request is answered."""
        self._tokens = float(limits.burst)
        self._seen_at = clock()

    @property
    def is_full(self) -> bool:
        most = self._limits.of_operator if self.is_operator else self._limits.of_user
        return self.connections >= most

    @property
    def longest_body(self) -> int:
        return self._limits.operator_body if self.is_operator else self._limits.body

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is open, and there is nothing to remember."""
        self._refill()
        return self.connections == 0 and self._tokens >= self._limits.burst

    def _refill(self) -> None:
        now = self._clock()
        gained = (now - self._seen_at) * self._limits.rate
        self._tokens, self._seen_at = min(float(self._limits.burst), self._tokens + gained), now

    def delay(self) -> float:
        """Count a request; return the seconds that it has to wait."""
        if self.is_operator:
            return 0.0
        self._refill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._limits.rate)


class Allowances:
    """Users who are connected, or asked lately."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._allowances: dict[tuple[int, bool], Allowance] = {}
        self.connections = 0
        self._of_users = 0

    def find(self, uid: int, *, is_operator: bool) -> Allowance:
        key = uid, is_operator
        if (found := self._allowances.get(key)) is None:
            if len(self._allowances) > self._limits.connections:
                self._allowances = {
                    each: allowance for each, allowance in self._allowances.items() if not allowance.is_idle
                }
            found = self._allowances[key] = Allowance(self._limits, is_operator=is_operator)
        return found

    def refusal(self, allowance: Allowance) -> str:
        """Return why the user gets no further connection; empty: he gets one."""
        if allowance.is_full:
            return f"you have {allowance.connections} connections open, the most for one user"
        is_full = self.connections >= self._limits.connections
        if is_full or (not allowance.is_operator and self._of_users >= self._limits.of_users):
            return f"{self.connections} connections are open, the most for all users"
        return ""

    def enter(self, allowance: Allowance) -> None:
        allowance.connections += 1
        self.connections += 1
        self._of_users += not allowance.is_operator

    def leave(self, allowance: Allowance) -> None:
        allowance.connections -= 1
        self.connections -= 1
        self._of_users -= not allowance.is_operator
