"""Keys that leave a job running: `ctrl-p,ctrl-q`, as docker's --detach-keys reads and finds them."""

from __future__ import annotations

from gputui.domain.errors import InputError
from gputui.domain.units import quoted

DEFAULT = "ctrl-p,ctrl-q"
_CONTROL = {chr(ord("a") + n): n + 1 for n in range(26)} | {"@": 0, "[": 27, "\\": 28, "]": 29, "^": 30, "_": 31}


def parse(text: str, where: str = "--detach-keys") -> bytes:
    """Return the bytes that the keys send; empty: no keys detach. Raises InputError."""
    return bytes(_byte(word, where) for word in text.split(",")) if text else b""


def _byte(word: str, where: str) -> int:
    if len(word) == 1 and word.isascii():
        return ord(word)
    key = word.removeprefix("ctrl-")
    if key == word or key.lower() not in _CONTROL:
        hint = "write single characters or ctrl-a to ctrl-z, ctrl-@, ctrl-[, ctrl-\\, ctrl-], ctrl-^, ctrl-_"
        raise InputError(f"{quoted(word)} is not a key", where=where, hint=hint)
    return _CONTROL[key.lower()]


class DetachScanner:
    """Finds the detach keys in typed input; holds back keys that may begin the sequence until the next one decides."""

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the bytes to pass on, and whether the detach keys were found; input after them is dropped."""
        if not self._keys:
            return typed, False
        passed = bytearray()
        for byte in typed:
            self._held += bytes((byte,))
            if self._held == self._keys:
                self._held = b""
                return bytes(passed), True
            while self._held and not self._keys.startswith(self._held):
                passed.append(self._held[0])
                self._held = self._held[1:]
        return bytes(passed), False
