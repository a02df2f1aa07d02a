"""Defines the commands of the console: from one declaration follow keys, footer, menus, help and palette."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from gputui.domain.verb import BaseVerb
from gputui.domain.verbs import GPUS, JOBS, QUEUE, SCHEDULER
from gputui.tui.keys import key_name

__all__ = [
    "DIALOG",
    "FORM",
    "GPUS",
    "JOBS",
    "LOGS",
    "MOVE",
    "PROCESS_GROUP",
    "QUEUE",
    "SCHEDULER",
    "TIMELINE",
    "VIEW",
    "WHAT_IF",
    "Command",
    "bindings",
    "bound_to",
    "command_of",
    "place_of",
]

VIEW, MOVE, LOGS = "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM, DIALOG = "What-if", "Timeline", "Submit form", "Dialogs"
PROCESS_GROUP = "Process view"


@dataclass(frozen=True, eq=False)
class Command:
    """Something an operator can do. Each is declared once, and is itself alone: a key compares hundreds of them."""

    action: str
    """The action as Textual runs it: `verb('hold')`."""
    keys: tuple[str, ...]
    title: str
    """Short title for the footer, one or two words."""
    help: str
    """A sentence for help, the palette and docs/keys.md."""
    group: str
    in_footer: bool = True
    in_palette: bool = True
    footer_key: str = ""
    """Keys as the footer shows them, in place of the first one."""
    id: str = ""
    """Name, where the action does not make a good one."""
    changes: bool = False
    """True if the command changes more than the screen: a read-only console does not offer it."""
    needs: str = ""
    """The subject it needs, where it cannot always be done: `a running job`."""
    synonyms: str = ""
    """Further names under which the palette finds it, with commas."""

    @property
    def action_name(self) -> str:
        """The action alone: `verb` of `verb('hold')`."""
        return self.action.partition("(")[0]

    @property
    def argument(self) -> str:
        """Argument of the action: `hold` of `verb('hold')`, `1` of `grow(1)`; empty where it takes none."""
        return self.action.partition("(")[2].strip("')")

    @property
    def name(self) -> str:
        """Name in the settings file; it stays the same from release to release."""
        if self.id:
            return self.id
        if self.action_name == "verb":
            return self.argument
        return (
            self.action_name
            if self.argument in {"", "1"}
            else f"{self.action_name}_{self.argument.replace('-1', 'back')}"
        )

    @property
    def key_names(self) -> str:
        """The keys as a person reads them."""
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key the footer shows; empty where it has none."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")

    def is_known_to(self, place: DOMNode) -> bool:
        """Return whether that widget, screen or app has such an action at all."""
        return hasattr(place, f"action_{self.action_name}")

    def works_at(self, place: DOMNode) -> bool:
        """Return whether it can be done there now."""
        return bool(place.check_action(self.action_name, (self.argument,)))


def command_of(verb: BaseVerb[Any]) -> Command:
    """Return the console's command for a verb."""
    return Command(
        verb.action or f"verb('{verb.name}')",
        verb.keys,
        verb.label,
        verb.help,
        verb.group,
        in_footer=verb.in_footer,
        footer_key=verb.footer_key,
        id=verb.id,
        changes=True,
        needs=verb.needs,
        synonyms=verb.synonyms,
    )


def bindings(commands: tuple[Command, ...], *, before_others: bool = False) -> list[BindingType]:
    """Return Textual's bindings for commands; with `before_others` they come before those of the focused widget."""
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
    """Return the node that carries a command out: the first of focused pane, screen and app that knows it."""
    places = (place for place in (screen.focused, screen, screen.app) if place is not None)
    return next((place for place in places if command.is_known_to(place)), None)
