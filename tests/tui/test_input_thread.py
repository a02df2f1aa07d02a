"""Bytes from the terminal: a sequence that arrives in two parts is one key or click, however slow the machine is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable

import pytest
from textual import constants, events
from textual.app import App
from textual.message import Message

from gputui.tui import textual_internals
from gputui.tui.input_queue import KeyAfterEscape
from gputui.tui.textual_internals import EscapeParser, NonblockingDriver

PRESSED = b"\x1b[<0;70;24M"


class Collecting(NonblockingDriver):
    """Driver that reads from a pipe, and ends after the first message."""

    def __init__(self, app: App[None], fileno: int) -> None:
        super().__init__(app)
        self.fileno = fileno
        self.messages: list[Message] = []

    def process_message(self, message: Message) -> None:
        self.messages.append(message)
        self.exit_event.set()


@pytest.mark.parametrize("cut", range(1, len(PRESSED)))
async def test_a_click_in_two_parts_is_a_click_on_a_machine_that_just_stood_still(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = os.pipe()

    class Standing(EscapeParser):
        """Parser that stands still after the first part, for longer than an Escape may wait; the rest arrives then."""

        is_first = True

        def feed(self, data: str) -> Iterable[Message]:
            yield from super().feed(data)
            if self.is_first:
                self.is_first = False
                os.write(writes, PRESSED[cut:])
                time.sleep(constants.ESCAPE_DELAY * 1.2)

    monkeypatch.setattr(textual_internals, "EscapeParser", Standing)
    driver = Collecting(App(), reads)
    os.write(writes, PRESSED[:cut])
    async with asyncio.timeout(60):
        await asyncio.to_thread(driver.run_input_thread)
    os.close(reads)
    os.close(writes)
    assert [type(message) for message in driver.messages] == [events.MouseDown]


async def read(data: bytes) -> Message:
    """Return the first message of a driver that reads this data from a terminal."""
    reads, writes = os.pipe()
    driver = Collecting(App(), reads)
    os.write(writes, data)
    async with asyncio.timeout(20):
        await asyncio.to_thread(driver.run_input_thread)
    os.close(reads)
    os.close(writes)
    return driver.messages[0]


@pytest.mark.parametrize(
    ("data", "key", "alone"),
    [
        (b"\x1bs", "alt+s", "s"),
        (b"\x1bS", "alt+shift+s", "S"),
        (b"\x1bsj", "alt+s", "s"),
        (b"\x1b/", "slash", "slash"),
        (b"\x1b\r", "enter", "enter"),
        (b"\x1bf", "ctrl+right", "f"),
        (b"\x1b[", "left_square_bracket", "left_square_bracket"),
        (b"\x1b\x7f", "ctrl+w", "backspace"),
    ],
)
async def test_a_key_in_one_read_with_an_escape_is_marked(data: bytes, key: str, alone: str) -> None:
    message = await read(data)
    assert isinstance(message, KeyAfterEscape)
    assert (message.key, message.alone.key) == (key, alone)


@pytest.mark.parametrize(
    ("data", "key"),
    [(b"\x1b[A", "up"), (b"\x1b\t", "shift+tab"), (b"\x1b[Z", "shift+tab"), (b"\x1bOP", "f1"), (b"\x1b", "escape")],
)
async def test_sequences_of_keys_stay_keys(data: bytes, key: str) -> None:
    message = await read(data)
    assert isinstance(message, events.Key)
    assert not isinstance(message, KeyAfterEscape)
    assert message.key == key
