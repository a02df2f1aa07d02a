"""Keys of commands: the settings' names, the places where they work, and why a command or a key does nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import combinations
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.domain.conditions import with_keys
from gputui.domain.errors import InputError
from gputui.domain.text import plain
from gputui.domain.verbs import JOBS
from gputui.tui.commands import BY_NAME, COMMANDS, LOG_COMMANDS, Command, place_of, places
from gputui.tui.keys import key_name, key_of
from gputui.tui.present.cells import Cell
from gputui.tui.textual_internals import bindings_of, bindings_to, replace_bindings

READ_ONLY = "Not here: this console is read-only."
Lacking: TypeAlias = Mapping[Capability, str]
"""Sentence for each capability that the cluster lacks."""
ALL_THERE: Lacking = MappingProxyType({})


def why_not(command: Command, screen: Screen[Any], *, only_looks: bool = False, lacking: Lacking = ALL_THERE) -> str:
    """Return a sentence on why a command is unavailable now; empty if it is available."""
    if sentence := lack(command, lacking):
        return sentence
    place = place_of(command, screen)
    if place is not None and command.works_at(place):
        return ""
    if only_looks and command.changes:
        return READ_ONLY
    if place is None:
        somewhere = (f"on the {place}" for place, commands in places().items() if command in commands)
        return f"Not here: it works {'in a log that has the focus' if command in LOG_COMMANDS else next(somewhere)}."
    return _not_now(command, screen)


def _not_now(command: Command, screen: Screen[Any]) -> str:
    whose = getattr(screen, "not_mine", "") if command.group == JOBS or command.name == "edit" else ""
    return whose or f"Not now: it needs {command.needs}."


def lack(command: Command, lacking: Lacking) -> str:
    """Return a sentence on what the cluster, or this user, lacks for a command; empty if nothing."""
    sentence = lacking.get(command.capability, "") if command.capability else ""
    if sentence.startswith("only operators"):
        return f"{sentence.capitalize()}." if command.changes else ""  # all may look
    return f"Not in this cluster: {sentence.rstrip('.')}." if sentence else ""


def why_key_does_nothing(key: str, screen: Screen[Any], lacking: Lacking = ALL_THERE, *, only_looks: str = "") -> str:
    """Return a sentence on why a key does nothing now; empty if it does something, or if no command has it here.

    `only_looks`: what would let the user change anything in a read-only console. Escape leaves whatever there is to
    leave, and needs no explanation.
    """
    if key == "escape":
        return ""
    chain = (screen.focused or screen).ancestors_with_self
    bound = {binding.id for node in chain for binding in bindings_to(node, key)}
    told = ""
    for command in (command for name, command in BY_NAME.items() if name in bound):
        place = place_of(command, screen)
        if place is None or command.works_at(place):  # without a place, the key is bound to another action here
            return ""
        if only_looks and command.changes:
            told = told or f"{command.title}: {READ_ONLY} {only_looks.capitalize()}."
        elif reason := lack(command, lacking) or (_not_now(command, screen) if command.needs else ""):
            told = told or f"{command.title}: {reason}"
    return told


WHERE = "console.keys"
_PAIRS = {
    "raise": "lower",
    "log_next": "log_previous",
    "column_down": "column_up",
    "drag_down": "drag_up",
    "gpu_next": "gpu_before",
    "zoom_in": "zoom_out",
    "later": "earlier",
}
"""Pairs of commands; the key bar shows only the name of the first, with the keys of both."""


class Keymap(Struct, frozen=True):
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys by name of the command; an empty tuple: only the palette has the command."""

    @classmethod
    def of(cls, wanted: Mapping[str, Sequence[str]]) -> Keymap:
        """Return the keymap of the settings; raises InputError if two commands share a key."""
        keymap = cls({name: tuple(_key(text, name) for text in texts) for name, texts in wanted.items()})
        for name in keymap.keys:
            if name not in BY_NAME:
                synonymous = [each.name for each in COMMANDS if name.lower() in each.synonyms]
                near = " or ".join((synonymous or get_close_matches(name, BY_NAME))[:3])
                hint = f"did you mean {near}?" if near else "docs/keys.md lists their names"
                raise InputError("unknown command", where=f"{WHERE}.{plain(name, 40)}", hint=hint)
        if keymap.keys:
            _refuse_clashes(keymap)
        return keymap

    def told(self, command: Command) -> Command:
        keys = self.keys.get(command.name)
        if keys is None or keys == command.keys:
            return replace(command, footer_key="") if _PAIRS.get(command.name) in self.keys else command
        return replace(command, keys=keys, footer_key="")

    def footer(self, commands: Iterable[Command]) -> tuple[Command, ...]:
        return tuple(told for told in map(self.told, commands) if told.keys)

    def key(self, name: str) -> str:
        command = BY_NAME.get(name)
        keys = self.told(command).keys if command else ()
        return key_name(keys[0]) if keys else f"the command {name}"

    def key_of_tab(self, name: str) -> str:
        return self.told(BY_NAME[f"tab_{name}"]).first_key

    def words(self, text: str) -> str:
        return with_keys(text, self.key)

    def cells(self, lines: Iterable[Cell]) -> tuple[Cell, ...]:
        return tuple(tuple((self.words(text), style) for text, style in line) for line in lines)

    def rebind(self, node: DOMNode) -> None:
        before = bindings_of(node) if self.keys else []
        if not any(binding.id in self.keys for binding in before):
            return
        bound: list[Binding] = []
        done = set()
        for binding in before:
            if binding.id is None or binding.id not in self.keys:
                bound.append(binding)
            elif binding.id not in done:
                done.add(binding.id)
                bound += [binding.with_key(key) for key in self.keys[binding.id]]
        replace_bindings(node, bound)


DEFAULT = Keymap()


def keymap_of(node: DOMNode) -> Keymap:
    found = getattr(node.app, "keymap", DEFAULT)
    return found if isinstance(found, Keymap) else DEFAULT


def _key(text: str, name: str) -> str:
    key = key_of(text) if text else None
    if key is None:
        hint = 'write "x", "X", "/", "ctrl+k", "f5", "space", "pgdn"'
        raise InputError(f"{text[:40]!a} is not a key", where=f"{WHERE}.{plain(name, 40)}", hint=hint)
    return key


def _refuse_clashes(keymap: Keymap) -> None:
    """Raise InputError if two commands of one place share a key, except by declaration.

    Those are never available together.
    """
    for place, commands in places().items():
        for one, other in combinations(commands, 2):
            if one.name not in keymap.keys and other.name not in keymap.keys:
                continue
            shared = set(keymap.told(one).keys) & set(keymap.told(other).keys)
            if shared and one.name != other.name and not set(one.keys) & set(other.keys):
                key = key_name(min(shared))
                first, second = (one, other) if one.name in keymap.keys else (other, one)
                raise InputError(
                    f"{key} would be {first.name} and {second.name} on the {place}",
                    where=f"{WHERE}.{first.name}",
                    hint=f"give {second.name} another key too, or choose a free key",
                )
