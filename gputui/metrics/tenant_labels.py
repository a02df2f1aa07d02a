"""Tenants as labels: a bounded number of names, so that no user can flood Prometheus with series."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from gputui.domain.text import plain

OTHER = "other"
"""Label of all tenants beyond the limit."""
LONGEST = 64
"""Maximum number of characters of a name."""


class TenantLabels:
    """Assigns a label each to the first tenants; a label never changes."""

    def __init__(self, most: int, configured: Iterable[str] = ()) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        for name in configured:
            self.label(name)

    def label(self, tenant: str) -> str:
        """Return the tenant's label."""
        found = self._known.get(tenant)
        if found is not None:
            return found
        with self._lock:
            if len(self._known) >= self._most:
                return self._known.get(tenant, OTHER)
            return self._known.setdefault(tenant, plain(tenant, LONGEST))

    @property
    def given(self) -> list[str]:
        """Return the labels given so far."""
        with self._lock:
            return list(dict.fromkeys(self._known.values()))
