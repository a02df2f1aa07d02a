"""What all actions have, and the action that commands must carry out quickly: a submission.

The others are in `domain/action.py`, which needs jobs, settings and controls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import Struct

from gputui.domain.job_spec import JobId, Submission

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.domain.job import Job
    from gputui.domain.settings import Window

Ids: TypeAlias = tuple[JobId, ...]


class BaseAction(Struct, frozen=True, tag_field="action", tag=True):
    """A wish of a user; its tag is the verb of the audit log."""

    is_final: ClassVar[bool] = False
    """True if it cannot be undone."""
    has_forecast: ClassVar[bool] = True
    """True if what-if shows which jobs would start at another time."""

    @property
    def verb(self) -> str:
        """Verb in the audit log."""
        return str(self.__struct_config__.tag)


class Done(Struct, frozen=True):
    """Result of an action."""

    ids: Ids = ()
    """Ids of the changed, new or recurring jobs."""
    changes: tuple[Any, ...] = ()
    """Changes that can be undone, each an `ActionChange` of what carried the action out."""
    window: Window | None = None
    """The reservation that was made."""
    jobs: tuple[Job, ...] = ()
    """Jobs as they would be, if the action was only foreseen."""
    starts: tuple[datetime | None, ...] = ()
    """When each submission would start, by an engine that tells no more; None where it cannot tell."""
    drafts: tuple[str, ...] = ()
    """What each submission would be in the language of an engine, by one that forecasts no starts."""
    notes: tuple[str, ...] = ()
    """What an engine decides for each submission, in a sentence; empty for nothing."""
    is_repeated: bool = False
    """True if the same request was carried out before, so that nothing was done now."""


class SubmitJobs(BaseAction, frozen=True, tag="submit"):
    """Put jobs into the queue; the ids are in order, one for each element of an array."""

    is_final: ClassVar[bool] = True
    submissions: tuple[Submission, ...]
