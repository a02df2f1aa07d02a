"""The table of recurring jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gputui.domain.errors import NotFoundError, StoreFormatError
from gputui.domain.job import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.unreadable import Unreadable
from gputui.store.codec import CANNOT, decode_recurring
from gputui.store.journal import Document

RECURRING = "recurring"
Known = dict[str, tuple[Document, RecurringJob]]
"""By key, a document and what it says."""


def decoded(
    table: Mapping[str, Document], known: Known, unreadable: dict[str, Unreadable] | None = None
) -> Mapping[JobId, RecurringJob]:
    """All that can be read, in the order of their ids; those whose documents are `known` are the same objects.

    The others are put into `unreadable`.
    """
    entries: dict[JobId, RecurringJob] = {}
    for key, document in table.items():
        try:
            if key not in known or known[key][0] is not document:
                known[key] = (document, decode_recurring(int(key), document))
            entries[int(key)] = known[key][1]
        except (StoreFormatError, ValueError) as error:
            known.pop(key, None)
            if unreadable is not None:
                why = error.what.removeprefix(CANNOT) if isinstance(error, StoreFormatError) else "its id is no number"
                unreadable[key] = Unreadable("recurring job", key, why)
    return MappingProxyType(dict(sorted(entries.items())))


def no_recurring(recurring: JobId) -> NotFoundError:
    """There is none of that id."""
    return NotFoundError(f"there is no recurring job {recurring}", hint="gputui cron list")
