"""Event of a thread that a selector can wait for."""

from __future__ import annotations

import os
import threading


class PipedEvent(threading.Event):
    """Event that a selector can wait for too; its files are open from then on until they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self._files: tuple[int, ...] = ()
        self._is_written = False

    def fileno(self) -> int:
        """Return the file that is readable once the event is set."""
        if not self._files:
            self._files = os.pipe()
        return self._files[0]

    def set(self) -> None:
        """Set the event."""
        if not self.is_set():
            super().set()
            if self._files:
                os.write(self._files[1], b".")
                self._is_written = True

    def clear(self) -> None:
        """Clear the event."""
        super().clear()
        if self._is_written:
            os.read(self._files[0], 1)
            self._is_written = False

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files, self._is_written = (), False
