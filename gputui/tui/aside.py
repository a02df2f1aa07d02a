"""Another program on the terminal while the console steps aside; the console hears signals and wishes meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from gputui.domain.process import Shell
from gputui.tui.dressed import DressedApp

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)


class AsideApp(DressedApp[T]):
    """Writes nothing to the terminal while it is another's."""

    is_away = False
    _back: asyncio.Event
    """It has the terminal again, or is to end without."""

    async def run_aside(self, shell: Shell, words: str) -> int:
        """Run it to its end with the terminal to itself; its exit code. Raises SuspendNotSupported, or OSError.

        The event loop goes on, so that SIGTERM and SIGHUP are heard. The screen is kept back by a batch, and drawn
        whole afterwards.
        """
        try:
            with self.batch_update(), self.suspend(), self._away():
                print(f"\n{words}\n", file=sys.__stdout__, flush=True)
                process = await asyncio.create_subprocess_exec(
                    *shell.arguments, env={**os.environ, **shell.environment}, cwd=shell.directory
                )
                return await process.wait()
        finally:
            self.refresh(layout=True)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Ctrl-C is for the program on the terminal. A handler, since to ignore a signal would be inherited."""
        before = {number: signal.signal(number, lambda *_: None) for number in _FROM_KEYS}
        self._back = asyncio.Event()
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False
            self._back.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _process_messages_loop(self) -> None:
        """As Textual's, but a screen that fails meanwhile ends only when it has the terminal again."""
        await super()._process_messages_loop()
        if self.is_away and not self._exit:
            await self._back.wait()

    def exit(self, result: T | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave it, wherever the terminal is."""
        super().exit(result, return_code, message)
        if self.is_away:
            self._back.set()

    def send(self, sequence: str) -> None:
        """Write to the terminal what draws nothing."""
        if self._driver is not None and not self.is_away:
            self._driver.write(sequence)

    def bell(self) -> None:
        """Ring."""
        self.send("\a")
