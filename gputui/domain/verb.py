"""Declaration of a verb: the fields that each row of the table in `domain/verbs.py` has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct

from gputui.domain.cluster import Capability
from gputui.domain.job import Placing
from gputui.domain.job_spec import JobId

if TYPE_CHECKING:
    from gputui.domain.policy.whatif import SnapshotChange

S = TypeVar("S")


class VerbActions(Protocol):
    """The calls that verbs make; `engine.actions` implements them. Each writes to the store and may block."""

    def hold(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Keep waiting jobs from starting."""

    def release(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Release held jobs."""

    def cancel(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """End jobs, or take them out of the queue."""

    def requeue(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Run jobs again."""

    def suspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Stop the processes of running jobs for a while."""

    def unsuspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Continue suspended jobs."""

    def signal(self, ids: Iterable[JobId], number: int) -> Sequence[JobId]:
        """Send running jobs a signal."""

    def add_priority(self, ids: Iterable[JobId], delta: int) -> Sequence[JobId]:
        """Raise or lower the priority by `delta`."""

    def top(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Put waiting jobs at the head of the queue."""

    def place(self, places: Iterable[Placing]) -> Sequence[JobId]:
        """Put waiting jobs beside others."""

    def drain(self, uuids: Iterable[str], reason: str) -> None:
        """Start no new jobs on these GPUs."""

    def resume(self, uuids: Iterable[str]) -> None:
        """Resume starts on these GPUs."""

    def pause(self, reason: str = "") -> None:
        """Start no new jobs."""

    def unpause(self) -> None:
        """Start jobs again."""

    def pause_recurring(self, ids: Iterable[JobId]) -> None:
        """Make no run of these recurring jobs."""

    def resume_recurring(self, ids: Iterable[JobId]) -> None:
        """Make runs of these recurring jobs again."""

    def remove_recurring(self, ids: Iterable[JobId]) -> None:
        """End these recurring jobs."""


class Who(Enum):
    """Users who may use a verb. In a private queue its only user may do everything."""

    MEMBER = "every member of the queue"
    OWNER = "the job's submitter; operators for every job"
    CAPPED = "every member, up to the tenant's highest priority; operators beyond it"


class Order(Struct, frozen=True):
    """The objects that a verb acts on, with its arguments."""

    ids: tuple[JobId, ...] = ()
    delta: int = 0
    """Points of priority to add."""
    places: tuple[Placing, ...] = ()
    """Places beside other jobs, for a move."""
    uuids: tuple[str, ...] = ()
    """UUIDs of the GPUs."""
    reason: str = ""
    signal: int = 0
    """Number of the signal to send."""


class BaseVerb(Struct, Generic[S], frozen=True, eq=False, kw_only=True):
    """Name, key and texts of a verb, on a subject of type S."""

    name: str
    """Name in the settings file and in calls."""
    action: str = ""
    """Action of the console that requests it; empty: `verb('NAME')`."""
    id: str = ""
    """Name in the settings file if it differs from the action's."""
    keys: tuple[str, ...]
    """Keys in the console, as Textual names them."""
    footer_key: str = ""
    in_footer: bool = True
    label: str
    """Short label for the footer, menus and the palette, one or two words."""
    help: str
    """A sentence for help, the palette and docs/keys.md."""
    group: str
    needs: str = ""
    """Required subject, as in "it needs a waiting job"; empty: none."""
    may: Callable[[S], bool]
    """Returns whether it can be used on the subject now."""
    who: Who = Who.MEMBER
    capability: Capability | None = None
    """Capability that a cluster needs for it; None: none."""
    shell: str
    """The equivalent command, after `gputui`."""


class FormVerb(BaseVerb[S], frozen=True, eq=False, kw_only=True):
    """A verb that opens a form, which shows the effects, checks the input and sends it.

    Help texts of its command stay with the command, because `gputui submit` must not load this table to start.
    """


class Verb(BaseVerb[S], frozen=True, eq=False, kw_only=True):
    """A verb that is carried out at once, or after its effects are shown."""

    call: Callable[[VerbActions, Order], Sequence[JobId] | None]
    """Writes the change; returns the ids of the changed jobs, for verbs about jobs."""
    done: str
    """Message after the change of one `{subject}`; other names in braces are replaced by keys of verbs."""
    done_many: str = ""
    """Message after the change of several subjects."""
    proposal: str = ""
    """Description of the change in the what-if panel, for one `{title}`."""
    proposal_many: str = ""
    """Description of the change of several subjects in the what-if panel, after their ids."""
    preview: Callable[[Order, datetime], SnapshotChange] | None = None
    """Returns the change of the snapshot for the forecast."""
    fate: str = "no forecast"
    """Word for a job that has no start after the change."""
    question: str = ""
    """First word of the question before the change; empty: no question."""
    asks_reason: bool = False
    ends_work: bool = False
    """True if the verb ends running jobs; the what-if panel then shows the lost work."""
    can_be_undone: bool = True
    shell_help: str
    """Help text of that command."""
