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

from gputui.tui import input_queue, textual_internals
from gputui.tui.input_queue import KeyAfterEscape, Pastes, UnmarkedPaste
from gputui.tui.textual_internals import EscapeParser, NonblockingDriver
from tests.cases import cases
from tests.waiting import until

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


@cases("cut", range(1, len(PRESSED)))
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


@cases(
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


@cases(
    ("data", "key"),
    [(b"\x1b[A", "up"), (b"\x1b\t", "shift+tab"), (b"\x1b[Z", "shift+tab"), (b"\x1bOP", "f1"), (b"\x1b", "escape")],
)
async def test_sequences_of_keys_stay_keys(data: bytes, key: str) -> None:
    message = await read(data)
    assert isinstance(message, events.Key)
    assert not isinstance(message, KeyAfterEscape)
    assert message.key == key


class Reading(Collecting):
    """Driver that reads until its terminal is gone."""

    def process_message(self, message: Message) -> None:
        self.messages.append(message)


async def read_parts(*parts: bytes, pause: float | None = None) -> list[str]:
    """Return keys and pasted texts of data in parts: each after so many seconds, or once the one before is handled."""
    reads, writes = os.pipe()
    driver = Reading(App(), reads)

    def write_one(part: bytes) -> None:
        handled = len(driver.messages)
        os.write(writes, part)
        if pause is None:
            until(lambda: len(driver.messages) > handled, part, pause=0.001)
        else:
            time.sleep(pause)

    def write() -> None:
        for part in parts:
            write_one(part)
        time.sleep(0.05)
        driver.exit_event.set()

    async with asyncio.timeout(60):
        await asyncio.gather(asyncio.to_thread(driver.run_input_thread), asyncio.to_thread(write))
    os.close(reads)
    os.close(writes)
    return [f"paste {m.text!r}" if isinstance(m, events.Paste) else getattr(m, "key", "?") for m in driver.messages]


LINE = b"export PATH=/x\nrm -r y\n"


@cases(
    ("data", "expected"),
    [
        (LINE, ["paste 'export PATH=/x\\nrm -r y\\n'"]),
        (b"\x1b[200~" + LINE + b"\x1b[201~", ["paste 'export PATH=/x\\nrm -r y\\n'"]),
        ("größer\t中文".encode(), ["paste 'größer\\t中文'"]),
        (b"j" * 40, ["j"] * 40),
        (b"jjjjkkkkjj", ["j"] * 4 + ["k"] * 4 + ["j"] * 2),
        (b"\x1b[B" * 9 + b"c\r", ["down"] * 9 + ["c", "enter"]),
        (b"Gkc", ["G", "k", "c"]),
    ],
)
async def test_text_in_one_read_is_pasted_and_held_keys_are_keys(data: bytes, expected: list[str]) -> None:
    assert await read_parts(data) == expected


async def test_text_that_comes_piece_by_piece_is_pasted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_queue, "_SAME_PASTE", 60.0)  # however slow the machine is; the last test has its length
    assert await read_parts(b"export PA", b"TH", b"=x\n") == ["paste 'export PA'", "paste 'TH'", "paste '=x\\n'"]


async def test_enter_alone_after_a_paste_is_a_key() -> None:
    assert await read_parts(b"docker run x", b"\r") == ["paste 'docker run x'", "enter"]


async def test_keys_of_a_person_stay_keys() -> None:
    assert await read_parts(*(bytes([key]) for key in b"export"), pause=0.03) == list("export")


def test_text_after_a_paste_belongs_to_it_only_for_a_moment() -> None:
    pastes, keys = Pastes(), [events.Key(letter, letter) for letter in "abcd"]
    assert [type(each) for each in pastes.read(keys, 1.0)] == [UnmarkedPaste]
    assert [type(each) for each in pastes.read(keys[:1], 1.02)] == [UnmarkedPaste]
    assert list(pastes.read(keys[:1], 2.0)) == keys[:1]
