"""Custom keys: from the settings file to footer, help, palette and their effects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gputui.domain.errors import InputError
from gputui.domain.settings import ConsoleSettings
from gputui.domain.text import width
from gputui.tui.commands import COMMANDS, places
from gputui.tui.frame import FrameSize, frame
from gputui.tui.keymap import Keymap
from gputui.tui.keys import key_name, key_of
from gputui.tui.screens.help import Context, Help, arranged, help_lines
from gputui.tui.screens.main import Main
from tests.cases import cases
from tests.factories import NOW, load_settings
from tests.tui.console import Console, on_screen, until
from tests.tui.sample import empty_queue, paused


def _console(keys: dict[str, tuple[str, ...]]) -> Console:
    return Console(console=ConsoleSettings("off", keys=keys))


def test_names_of_commands_are_unique_and_plain() -> None:
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() and name == name.lower() for name in names), names


def test_every_command_is_in_some_place_with_the_keys_of_the_app() -> None:
    placed = {command.name for commands in places().values() for command in commands}
    assert placed == {command.name for command in COMMANDS}


def test_no_place_has_undeclared_key_conflicts() -> None:
    Keymap.of({"hold": ("F12",)})  # whatever is asked for, all places of that command are looked at


@cases(
    ("written", "key"),
    [
        ("x", "x"),
        ("X", "X"),
        ("/", "slash"),
        ("+", "plus"),
        ("-", "minus"),
        ("Ctrl-K", "ctrl+k"),
        ("ctrl+K", "ctrl+k"),
        ("ctrl+-", "ctrl+minus"),
        ("F5", "f5"),
        ("PgDn", "pagedown"),
        ("Esc", "escape"),
        (" ", "space"),
        ("Shift-←", "shift+left"),
        ("shift+tab", "shift+tab"),
        ("alt+x", "alt+x"),
        ("bogus", None),
        ("hyper+x", None),
        ("\x1b", None),
        ("shift+a", None),
    ],
)
def test_keys_have_their_common_names(written: str, key: str | None) -> None:
    assert key_of(written) == key
    if key is not None:
        assert key_of(key_name(key)) == key


@cases(
    ("keys", "words"),
    [
        ({"holt": ("x",)}, ("console.keys.holt", "unknown command", "hold")),
        ({"hold": ("c",)}, ("console.keys.hold", "c would be hold and cancel on the", "main screen")),
        ({"hold": ("f5",), "follow": ("f5",)}, ("F5 would be follow and hold on the",)),
        ({"zoom_in": ("h",)}, ("h would be zoom_in and hold on the timeline",)),
        ({"hold": ("nonsense",)}, ("console.keys.hold", "'nonsense' is not a key")),
        ({"hold": ("",)}, ("'' is not a key",)),
    ],
)
def test_conflicts_are_refused_in_a_sentence_that_names_both(
    keys: dict[str, tuple[str, ...]], words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as raised:
        Keymap.of(keys)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@cases(("name", "meant"), [("kill", "cancel"), ("extend", "edit"), ("hol", "hold")])
def test_an_unknown_name_is_answered_by_what_it_may_mean(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean .*{meant}.*\?"):
        Keymap.of({name: ("f9",)})


def test_keys_may_be_swapped_and_opposites_may_share_one() -> None:
    swapped = Keymap.of({"hold": ("c",), "cancel": ("h",), "drain": ("f7",), "resume": ("f7",)})
    assert swapped.key("hold") == "c"
    assert swapped.key("cancel") == "h"


def test_the_settings_file_gives_one_key_or_several(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[console.keys]\nhold = "x"\nrelease = ["X", "ctrl+x"]\nfinished = []\n')
    keys = load_settings(path, {}).console.keys
    assert keys == {"hold": ("x",), "release": ("X", "ctrl+x"), "finished": ()}
    from_environment = load_settings(None, {"GPUTUI_CONSOLE_KEYS": "hold=x release=X,ctrl+x"}).console.keys
    assert from_environment == {"hold": ("x",), "release": ("X", "ctrl+x")}


@cases("text", ["keys = 3", "[console.keys]\nhold = 3"])
def test_invalid_tables_of_keys_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text if text.startswith("[") else f"[console]\n{text}\n")
    with pytest.raises(InputError, match=r"console\.keys"):
        load_settings(path, {})


async def test_a_custom_key_works_and_the_default_one_does_not() -> None:
    async with on_screen(_console({"hold": ("f6",), "down": ("f8",), "quit": ("f10",)}), (120, 36)) as (console, pilot):
        main = console.app.screen
        assert isinstance(main, Main)
        before = main.queue.cursor
        await console.press(pilot, "j", "h")
        assert main.queue.cursor == before
        await console.press(pilot, "f8")
        assert main.queue.cursor != before
        console.select(107)
        await console.press(pilot, "h")
        assert console.audited() == []
        await console.press(pilot, "f6")
        assert console.audited() == [("hold", "job 107")]


async def test_footer_help_and_palette_show_the_custom_key() -> None:
    async with on_screen(_console({"hold": ("f6",), "follow": (), "finished": ("f",)}), (120, 90)) as (console, pilot):
        footer = console.screen_text.splitlines()[-1]
        assert " log " not in footer
        console.select(107)
        await pilot.pause()
        assert "F6 hold" in console.screen_text.splitlines()[-1]
        await console.press(pilot, "question_mark")
        assert isinstance(console.app.screen, Help)
        assert re.search(r"  F6 +hold +Keep the waiting job", console.screen_text)
        assert re.search(r"no key +log +Go to", console.screen_text)
        await console.press(pilot, "escape", "colon")
        await pilot.press(*"hold")
        assert re.search(r"▌ Jobs: hold +F6 ", console.screen_text)
        await pilot.press("enter")
        await pilot.pause()
        await console.settle(pilot)
        assert console.audited() == [("hold", "job 107")]


async def test_help_begins_with_the_keys_of_the_focused_pane() -> None:
    async with on_screen(Console(), (120, 60)) as (console, pilot):
        await console.press(pilot, "question_mark")
        assert re.search(r"│ +Jobs +while the queue has the focus", console.screen_text.splitlines()[4])
        await console.press(pilot, "escape", "tab", "question_mark")
        assert re.search(r"│ +Logs +while the log has the focus", console.screen_text.splitlines()[4])
        await console.press(pilot, "escape", "T", "question_mark")
        assert re.search(r"│ +Timeline\s", console.screen_text.splitlines()[4])


@cases("room", [28, 30, 48, 60, 70, 106])
def test_help_can_be_read_on_a_screen_of_any_width(room: int) -> None:
    groups = arranged(Context())
    lines = [
        "".join(text for text, _ in line).rstrip()
        for line in help_lines(groups, room, "K puts a job before its neighbour.")
    ]
    told = " ".join(" ".join(lines).split())
    assert [command.help for _, commands in groups for command in commands if command.help not in told] == []
    assert max(map(width, lines)) <= max(room, 33), "keys with their names may take that"
    assert len(lines) < 4.5 * sum(len(commands) for _, commands in groups)


async def test_help_is_searched_by_words_and_by_key() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "question_mark", "slash", *"waiting head")
        shown = [line for line in console.screen_text.splitlines() if line.count("│") == 2]
        assert any("Put the waiting job at the head" in line for line in shown)
        assert not any("hold" in line for line in shown)
        await console.press(pilot, *["backspace"] * 12, "z")
        assert "Give the whole screen to the focused pane" in console.screen_text
        assert "Put the waiting job" not in console.screen_text
        await console.press(pilot, "backspace", *"xyzzy")
        assert "No key matches." in console.screen_text
        await console.press(pilot, "escape")
        assert "Put the waiting job" in console.screen_text
        await console.press(pilot, "escape")
        assert isinstance(console.app.screen, Main)


async def test_a_command_without_a_key_runs_from_the_palette() -> None:
    async with on_screen(_console({"notices": ()}), (120, 36)) as (console, pilot):
        await console.press(pilot, "exclamation_mark")
        assert isinstance(console.app.screen, Main)
        await console.press(pilot, "colon", *"notices")
        await until(pilot, lambda: "View: notices" in console.screen_text)
        await pilot.press("enter")
        await until(pilot, lambda: "GPU 7 is lost and takes no job" in console.screen_text)


async def test_texts_on_the_screen_name_the_custom_key() -> None:
    console = _console({"follow": ("f9",), "notices": ("f12",)})
    async with console.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "press F9 to follow" in console.screen_text


OTHERS: dict[str, tuple[str, ...]] = {
    "release": ("f2",),
    "unpause": ("f3",),
    "pause": ("f3",),
    "tab_queue": ("f4",),
    "tab_recurring": ("f6",),
    "recur": ("f7",),
    "submit": ("f8",),
    "clear_filter": ("f9",),
    "more_fields": ("f11",),
    "lower": ("f12",),
}


async def test_every_text_names_the_configured_key() -> None:
    async with on_screen(_console(OTHERS), (160, 40)) as (console, pilot):
        assert " f4 queue" in console.screen_text.lower()
        console.select(107)
        await console.press(pilot, "h")
        assert "job 107 is held: F2 releases it" in console.told
        await console.press(pilot, "f7", *"@daily", "enter")
        assert console.told[-1].endswith("F6 shows it")
        assert "+ prio" in console.screen_text.splitlines()[-1]
        await console.press(pilot, "slash", *"xyzzy", "enter")
        assert "F9 shows them all" in console.screen_text
        await console.press(pilot, "f9", "f6")
        assert "Select a job in the queue and press F7" in console.screen_text
        await console.press(pilot, "f8")
        assert "more fields (F11)" in console.screen_text


async def test_notices_name_the_key_or_else_the_command() -> None:
    console = _console(OTHERS)
    async with console.app.run_test(size=(160, 40)) as pilot:
        await console.show(pilot, paused())
        assert "no new starts (F3 resumes)" in console.screen_text
        await console.press(pilot, "exclamation_mark")
        assert "no new starts (F3 resumes)" in console.screen_text
    lines = ["".join(text for text, _ in line) for line in frame(paused(), NOW, "node1", FrameSize())]
    assert any("no new starts (unpause resumes)" in line for line in lines)


async def test_an_empty_queue_names_the_key_of_the_form() -> None:
    console = _console(OTHERS)
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.show(pilot, empty_queue())
        assert "Press F8 to submit a job, or from any shell:" in console.screen_text
    lines = ["".join(text for text, _ in line) for line in frame(empty_queue(), NOW, "node1", FrameSize())]
    assert any("The queue is empty. From any shell:" in line for line in lines)


async def test_the_keys_of_a_search_in_the_log_come_first_and_help_stays() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        await console.press(pilot, "f", "slash", "e", "enter")
        keys = console.screen_text.splitlines()[-1]
        assert keys.startswith(" n/N next  Esc show all  / search  e error  & only")
        assert keys.endswith("s submit  ? help  q quit ")


@cases("width", [60, 40, 20])
async def test_a_short_key_takes_the_room_that_a_longer_one_left_and_help_stays(width: int) -> None:
    async with on_screen(Console(), (width, 24)) as (console, pilot):
        await console.press(pilot, "shift+tab")
        keys = console.screen_text.splitlines()[-1]
        assert "? help  q quit" in keys
        assert ("d drain" in keys, "f log" in keys) == {60: (True, True), 40: (False, True), 20: (False, False)}[width]
