"""The command palette: the same commands, by name."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from rich.text import Text
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from gputui.tui.commands import COMMANDS, Command, place_of
from gputui.tui.keymap import keymap_of
from gputui.tui.screens.once import ClosedOnce


class Palette(ClosedOnce[None], CommandPalette):
    """Textual's, whose list may be asked to move by a page before it was laid out."""

    def _action_command_list(self, action: str) -> None:
        with suppress(KeyError):  # of OptionList._move_page: what has no lines yet cannot be moved
            super()._action_command_list(action)


class Commands(Provider):
    """Those that work now."""

    async def discover(self) -> Hits:
        """All of them."""
        for command in self._working():
            title = self._title(command)
            yield DiscoveryHit(Text(title), partial(self._run, command), text=title, help=command.help)

    async def search(self, query: str) -> Hits:
        """Those whose name or sentence matches."""
        matcher = self.matcher(query)
        for command in self._working():
            title = self._title(command)
            score = matcher.match(f"{title} {command.help}")
            if score > 0:
                yield Hit(score, Text(title), partial(self._run, command), text=title, help=command.help)

    def _working(self) -> list[Command]:
        return [command for command in COMMANDS if command.in_palette and self._works(command)]

    def _works(self, command: Command) -> bool:
        """Whether the focused pane, the screen or the app can do it now."""
        place = place_of(command, self.screen)
        return place is not None and command.works_at(place)

    def _title(self, command: Command) -> str:
        key = keymap_of(self.screen).told(command).first_key
        return f"{command.group}: {command.title}" + (f" ({key})" if key else "")

    async def _run(self, command: Command) -> None:
        """Do it. Not by its key: in the pane that has the focus that may mean another command."""
        if place := place_of(command, self.screen):
            await self.app.run_action(command.action, default_namespace=place)
