"""Names of images, offered while one is typed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from textual.message import Message
from textual.suggester import Suggester

from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain

SHOWN = 4


class ImagesFound(Message, bubble=False):
    """The engine has told what images it has."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names


class Images(Suggester):
    """Suggests the images of jobs in the queue, the latest first, then the engine's own."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        used = (job.spec.image for job in reversed(snapshot.jobs) if job.spec.image)
        self._names = dict.fromkeys(used)

    def add(self, names: Iterable[str]) -> None:
        """Suggest further images."""
        self._names |= dict.fromkeys(name for name in names if plain(name) == name)

    def matching(self, typed: str) -> list[str]:
        """Return the names that begin so; of names within a registry, the last part may."""
        begin = [name for name in self._names if name.startswith(typed)]
        return begin + [name for name in self._names if name not in begin and f"/{typed}" in name]

    async def get_suggestion(self, value: str) -> str | None:
        """The first that begins so."""
        return next((name for name in self._names if name.startswith(value) and name != value), None)

    def words(self, typed: str) -> str:
        """The others that would fit, for the line below the field."""
        found = [name for name in self.matching(typed) if name != typed] if typed.strip() else []
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return ("→ takes the first of: " if found else "") + ", ".join(found[:SHOWN]) + more


def ask_engine(images: Callable[[], Sequence[str]], tell: Callable[[Message], object]) -> None:
    """Have the engine asked, elsewhere: it may take seconds. The thread is a daemon, nobody waits for it."""

    def ask() -> None:
        tell(ImagesFound(images()))

    threading.Thread(target=ask, name="gputui-images", daemon=True).start()
