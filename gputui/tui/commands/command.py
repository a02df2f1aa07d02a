"""What a command is: one declaration for each thing that can be done, from which all that names it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from gputui.tui.key_names import key_name

JOBS, QUEUE, GPUS, SCHEDULER, VIEW, MOVE, LOGS = "Jobs", "Queue", "GPUs", "Scheduler", "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM, DIALOG = "What-if", "Timeline", "Submit form", "Dialogs"


@dataclass(frozen=True, eq=False)
class Command:
    """Something an operator can do. Each is declared once, and is itself alone: a key compares hundreds of them."""

    action: str
    """The action as Textual runs it: `wish('hold')`."""
    keys: tuple[str, ...]
    title: str
    """What the footer calls it: a word."""
    help: str
    """A sentence."""
    group: str
    in_footer: bool = True
    in_palette: bool = True
    footer_key: str = ""
    """What the footer shows in place of the first key."""
    id: str = ""
    """Its name, where the action does not make a good one."""
    changes: bool = False
    """Whether it changes anything but the screen: not to be had in a console that only looks on."""
    needs: str = ""
    """What there has to be, where it cannot always be done: `a running job`."""

    @property
    def verb(self) -> str:
        """The action alone: `wish` of `wish('hold')`."""
        return self.action.partition("(")[0]

    @property
    def argument(self) -> str:
        """What the action is about: `hold` of `wish('hold')`, `1` of `grow(1)`; empty where it takes nothing."""
        return self.action.partition("(")[2].strip("')")

    @property
    def name(self) -> str:
        """What the settings file calls it; it stays the same from release to release."""
        if self.id:
            return self.id
        if self.verb == "wish":
            return self.argument
        return self.verb if self.argument in {"", "1"} else f"{self.verb}_{self.argument.replace('-1', 'back')}"

    @property
    def key_names(self) -> str:
        """The keys as a person reads them."""
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key the footer shows; empty where it has none."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")

    def is_known_to(self, place: DOMNode) -> bool:
        """Whether that widget, screen or app has such an action at all."""
        return hasattr(place, f"action_{self.verb}")

    def works_at(self, place: DOMNode) -> bool:
        """Whether it can be done there now."""
        return bool(place.check_action(self.verb, (self.argument,)))


def bindings(commands: tuple[Command, ...], *, before_others: bool = False) -> list[BindingType]:
    """What Textual is told; `before_others`: whoever has the focus hears of these keys after."""
    return [
        Binding(
            ",".join(command.keys),
            command.action,
            command.title,
            command.in_footer,
            priority=before_others,
            id=command.name,
        )
        for command in commands
        if command.keys
    ]


def bound_to(action: str, *commands: Command) -> list[BindingType]:
    """The keys of these commands, where they do something else than they are declared for."""
    return [Binding(",".join(command.keys), action, command.title, id=command.name) for command in commands]


def place_of(command: Command, screen: Screen[Any]) -> DOMNode | None:
    """Who carries it out: the focused pane, the screen or the app, the first that knows it."""
    places = (place for place in (screen.focused, screen, screen.app) if place is not None)
    return next((place for place in places if command.is_known_to(place)), None)
