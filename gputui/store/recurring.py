"""The table of recurring jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gputui.domain.errors import NotFoundError
from gputui.domain.job import JobId
from gputui.domain.recurring import RecurringJob
from gputui.store.codec import decode_recurring
from gputui.store.journal import Document

RECURRING = "recurring"
Known = dict[str, tuple[Document, RecurringJob]]
"""By key, a document and what it says."""


def decoded(table: Mapping[str, Document], known: Known) -> Mapping[JobId, RecurringJob]:
    """All of them, in the order of their ids; those whose documents are `known` are the same objects."""
    for key, document in table.items():
        if key not in known or known[key][0] is not document:
            known[key] = (document, decode_recurring(int(key), document))
    return MappingProxyType({int(key): known[key][1] for key in sorted(table, key=int)})


def no_recurring(recurring: JobId) -> NotFoundError:
    """There is none of that id."""
    return NotFoundError(f"there is no recurring job {recurring}", hint="gputui cron list")
