"""Defines the commands of the console; keys, footer, menus, help and palette are derived from one declaration."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.domain.verbs import BaseVerb, words_of
from gputui.tui.keys import key_name

VIEW, MOVE, LOGS = "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM, DIALOG = "What-if", "Timeline", "Submit form", "Dialogs"
PROCESS_GROUP = "Process view"


class Command(Struct, frozen=True, eq=False):
    """A command of the console. Each is declared once and compared by identity, which is fast."""

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
    """Keys as shown in the footer, in place of the first one."""
    id: str = ""
    """Name, if the action does not make a good one."""
    changes: bool = False
    """True if the command changes more than the screen: a read-only console does not offer it."""
    needs: str = ""
    """Required subject, if it cannot always be used: `a running job`."""
    capability: Capability | None = None
    """Capability that a cluster needs for it; None: none."""

    @property
    def action_name(self) -> str:
        """Name of the action: `verb` of `verb('hold')`."""
        return self.action.partition("(")[0]

    @property
    def argument(self) -> str:
        """Argument of the action: `hold` of `verb('hold')`, `1` of `grow(1)`; empty without one."""
        return self.action.partition("(")[2].strip("')")

    @property
    def name(self) -> str:
        """Name in the settings file; it does not change between releases."""
        rest = "" if self.argument in {"", "1"} else f"_{self.argument.replace('-1', 'back')}"
        return self.id or (self.argument if self.action_name == "verb" else self.action_name + rest)

    @property
    def synonyms(self) -> tuple[str, ...]:
        return words_of(self.name)

    @property
    def key_names(self) -> str:
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key shown in the footer; empty without one."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")

    def is_known_to(self, place: DOMNode) -> bool:
        return hasattr(doer_of(place, self.action_name), f"action_{self.action_name}")

    def works_at(self, place: DOMNode) -> bool:
        return bool(place.check_action(self.action_name, (self.argument,)))


def command_of(verb: BaseVerb[Any]) -> Command:
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
        capability=verb.capability,
    )


def bindings(commands: tuple[Command, ...], *, before_others: bool = False) -> list[BindingType]:
    """Return Textual's bindings for commands; with `before_others` they take precedence over the focused widget's."""
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
    return [Binding(",".join(command.keys), action, command.title, id=command.name) for command in commands]


def doer_of(place: object, action: str) -> object:
    """Return what carries out an action of a widget, screen or app: that itself, or one of its `parts`."""
    doers = (place, *getattr(place, "parts", ()))
    return next((doer for doer in doers if hasattr(doer, f"action_{action}")), place)


def place_of(command: Command, screen: Screen[Any]) -> DOMNode | None:
    """Return the node that carries out a command: the first of focused pane, screen and app that has it."""
    places = (place for place in (screen.focused, screen, screen.app) if place is not None)
    return next((place for place in places if command.is_known_to(place)), None)
