"""The command palette: the same commands, by name."""

from __future__ import annotations

from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from gputui.tui.commands import COMMANDS, Command


class Commands(Provider):
    """Those that work now."""

    async def discover(self) -> Hits:
        """All of them."""
        for command in self._working():
            yield DiscoveryHit(self._title(command), partial(self._run, command), help=command.help)

    async def search(self, query: str) -> Hits:
        """Those whose name or sentence matches."""
        matcher = self.matcher(query)
        for command in self._working():
            title = self._title(command)
            score = matcher.match(f"{title} {command.help}")
            if score > 0:
                yield Hit(score, title, partial(self._run, command), help=command.help)

    def _working(self) -> list[Command]:
        return [command for command in COMMANDS if command.in_palette and self._works(command)]

    def _works(self, command: Command) -> bool:
        """Whether the screen or the app can do it now."""
        name, _, rest = command.action.partition("(")
        namespace = self.screen if hasattr(self.screen, f"action_{name}") else self.app
        return hasattr(namespace, f"action_{name}") and bool(namespace.check_action(name, (rest.strip("')"),)))

    def _title(self, command: Command) -> str:
        return f"{command.group}: {command.title} ({command.first_key})"

    def _run(self, command: Command) -> None:
        """As if its key had been pressed."""
        self.app.simulate_key(command.keys[0])
