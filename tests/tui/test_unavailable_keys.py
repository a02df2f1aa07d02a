"""A key whose command cannot be used now says why; other keys stay silent."""

from __future__ import annotations

from tests.cases import cases
from tests.tui.console import Console, on_screen


@cases(
    ("key", "words"),
    [
        ("x", "shell: Not now: it needs a running job."),
        ("X", "processes: Not now: it needs a running job."),
    ],
)
async def test_key_of_unavailable_command_says_why(key: str, words: str) -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "G", key)
        assert console.told == [words]


async def test_key_without_command_says_nothing() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "Q", "f12")
        assert console.told == []


async def test_key_that_is_text_says_nothing() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "G", "slash", "x", "X")
        assert console.told == []


async def test_dialog_does_not_explain_keys_of_the_screen_below() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "G", "ctrl+k", "escape", "q", "x")
        assert console.told == []
