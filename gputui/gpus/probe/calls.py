"""The calls of a probe process to the driver, told to its supervisor in memory that both share.

A call that never returns can only be given up with its process. The supervisor reads here which call that was, and
starts the next process with a list of calls to skip, so that one of them costs its own value and not all readings. The
number of finished calls tells a driver that is slow from one that hangs.
"""

from __future__ import annotations

import mmap
import struct

SIZE = 128
"""Bytes of the memory: the number of finished calls, then the call that runs, as text; empty between calls."""
UNSHARED = "-1"
"""File descriptor of memory that is this process's alone."""
_COUNT = struct.Struct("<Q")
_ROOM = SIZE - _COUNT.size


class Calls:
    def __init__(self) -> None:
        self._page: mmap.mmap | None = None
        self._skipped: frozenset[str] = frozenset()
        self._labels: dict[bytes, str] = {}
        self._kind: type | None = None
        self._done = 0

    def share(self, fd: int, skipped: str) -> None:
        """Use the memory behind `fd`; `skipped` has calls as `key_of` names them, apart by commas."""
        self._page = mmap.mmap(fd, SIZE)
        self._skipped = frozenset(skipped.split(",")) - {""}

    def name(self, handle: object, label: str) -> None:
        """Name a handle, by the pointer that it is: the driver returns the same one each time."""
        if self._page is not None:
            self._kind = type(handle)
            self._labels[bytes(handle)] = label  # type: ignore[call-overload]

    def begin(self, function: str, arguments: tuple[object, ...]) -> bool:
        """Note that a call begins; return False if it is to be skipped."""
        if self._page is None:
            return True
        first = arguments[0] if arguments else None
        label = str(first) if type(first) is int else ""
        if type(first) is self._kind:
            label = self._labels.get(bytes(first), "")  # type: ignore[call-overload]
        if self._skipped and not self._skipped.isdisjoint((function, f"* {label}", f"{function} {label}")):
            return False
        self._page[_COUNT.size :] = f"{function} {label}".encode()[:_ROOM].ljust(_ROOM, b"\0")
        return True

    def end(self) -> None:
        if self._page is not None:
            self._done += 1
            self._page[: _COUNT.size + 1] = _COUNT.pack(self._done) + b"\0"

    def line(self) -> dict[str, object]:
        """Return what the supervisor reads in the memory as a line; from any thread."""
        done, call = read_page(self._page) if self._page is not None else (0, "")
        return {"kind": "calls", "done": done, "call": call}


CALLS = Calls()


def read_page(page: mmap.mmap) -> tuple[int, str]:
    """Return the number of finished calls, and the call that runs, as `FUNCTION LABEL`; empty between calls."""
    data = bytes(page[:SIZE])
    return _COUNT.unpack_from(data)[0], data[_COUNT.size :].partition(b"\0")[0].decode(errors="replace")
