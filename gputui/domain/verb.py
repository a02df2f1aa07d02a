"""Declaration of a verb: the fields that each row of the table in `domain/verbs.py` has."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from msgspec import Struct

from gputui.domain.action import Action, SetPriority
from gputui.domain.cluster import Capability
from gputui.domain.submit_action import Ids

S = TypeVar("S")


class Who(Enum):
    """Users who may use a verb. In a private queue its only user may do everything."""

    MEMBER = "every member of the queue"
    OWNER = "the job's submitter; operators for every job"
    CAPPED = "every member, up to the tenant's highest priority; operators beyond it"


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

    wish: type[Action]
    """Kind of action that it asks for."""
    step: int = 0
    """Points of priority that it adds."""
    done: str
    """Message after the change of one `{subject}`; other names in braces are replaced by keys of verbs."""
    done_many: str = ""
    """Message after the change of several subjects."""
    proposal: str = ""
    """Description of the change in the what-if panel, for one `{title}`."""
    proposal_many: str = ""
    """Description of the change of several subjects in the what-if panel, after their ids."""
    fate: str = "no forecast"
    """Word for a job that has no start after the change."""
    question: str = ""
    """First word of the question before the change; empty: no question."""
    asks_reason: bool = False
    ends_work: bool = False
    """True if the verb ends running jobs; the what-if panel then shows the lost work."""
    shell_help: str
    """Help text of that command."""

    def on(self, ids: Ids) -> Action:
        """Return the action on these jobs, for a verb about jobs that needs nothing else."""
        if self.step:
            return SetPriority(ids, self.step, relative=True)
        return self.wish(ids)  # type: ignore[call-arg, arg-type]  # verbs about jobs have actions with ids
