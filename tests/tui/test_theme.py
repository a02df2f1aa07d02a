"""Colours: readable and distinguishable to every eye; themes chosen, previewed and remembered."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from textual.color import Color as TextualColor
from textual.theme import BUILTIN_THEMES

import gputui.tui
from gputui.domain.errors import InputError
from gputui.domain.settings import ConsoleSettings
from gputui.tui.palette import (
    ANSI,
    BARS,
    CONTRAST,
    DARK,
    GROUNDS,
    LIGHT,
    Palette,
    ThemeFilter,
    blended,
    contrast,
    has_few_colours,
    palette_of,
    rounded,
    rounded_by_rich,
    wants_ascii,
)
from gputui.tui.preferences import Preferences
from gputui.tui.present import cells
from gputui.tui.themes import (
    AS_DESIGNED,
    Appearance,
    appearance_of,
    is_ansi,
    remembered_theme,
    theme_names,
    theme_of,
    themes,
)
from tests.cases import cases
from tests.tui.console import Console, on_screen
from tests.tui.sight import SIGHTS, distance

DESIGNED = {"dark": DARK, "light": LIGHT, "contrast": CONTRAST}
TOLD_APART = (
    ("good", "warn"),
    ("good", "bad"),
    ("warn", "bad"),
    ("other", "good"),
    ("other", "warn"),
    ("other", "bad"),
    ("accent", "bad"),
    ("accent", "warn"),
    ("quiet", "good"),
    ("quiet", "warn"),
    ("quiet", "bad"),
    ("ink", "good"),
    ("ink", "warn"),
    ("ink", "bad"),
)
"""Pairs that represent different states: running and failed, running and foreign, completed and failed."""
TEXTS = ("ink", "quiet", "accent", "good", "warn", "bad", "other")
"""Roles of text."""
APART = 0.06
"""Minimum distance of distinguishable colours: three times the least visible one."""
FULL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
XTERM = TerminalTheme(
    (0, 0, 0),
    (229, 229, 229),
    [(0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)],
    [(127,) * 3, (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255), (255,) * 3],
)
"""xterm's own sixteen colours (charproc.c's defaults, XTerm-col.ad)."""


def as_shown(colour: str) -> str:
    return rounded_by_rich(ColorTriplet(*bytes.fromhex(colour[1:]))).hex


def on_xterm(name: str) -> str:
    return Color.parse(name).get_truecolor(XTERM).hex


@pytest.mark.parametrize("name", DESIGNED)
class TestDesignedThemes:
    def test_words_can_be_read_on_every_ground(self, name: str) -> None:
        palette, least = DESIGNED[name], 7.0 if name == "contrast" else 4.5
        poor = [
            (text, ground)
            for text in TEXTS
            for ground in GROUNDS
            if contrast(getattr(palette, text), getattr(palette, ground)) < least
        ]
        poor += [pair for pair in BARS if contrast(getattr(palette, pair[0]), getattr(palette, pair[1])) < least]
        assert not poor

    def test_words_that_style_sheets_make_fainter_can_be_read(self, name: str) -> None:
        palette, least = DESIGNED[name], 7.0 if name == "contrast" else 4.5
        for path in (Path(gputui.tui.__file__).parent).rglob("*.py"):
            for share in re.findall(r" color: \$foreground (\d+)%", path.read_text(encoding="utf-8")):
                shown = blended(palette.raised, palette.ink, int(share) / 100)
                assert contrast(shown, palette.raised) >= least, f"{path.name}: {share}%"

    @cases("sight", SIGHTS)
    def test_states_are_distinguishable_to_every_eye(self, name: str, sight: str) -> None:
        palette = DESIGNED[name]
        near = {
            pair: seen
            for pair in TOLD_APART
            if (seen := round(distance(getattr(palette, pair[0]), getattr(palette, pair[1]), sight), 3)) < APART
        }
        assert not near

    def test_colours_of_job_output_are_readable(self, name: str) -> None:
        palette = DESIGNED[name]
        assert min(contrast(colour, palette.ground) for colour in palette.logs[1:8] + palette.logs[9:]) >= 4.5


def test_the_simulated_eyes_confuse_the_right_colours() -> None:
    """Otherwise the test above would prove nothing."""
    red, green = "#b04040", "#5c7a30"
    assert distance(red, green, "normal") > 2 * distance(red, green, "deuteranopia")
    assert distance("#3f7fbf", "#3f9f8f", "normal") > 2 * distance("#3f7fbf", "#3f9f8f", "tritanopia")


def test_sixteen_colours_can_be_read_upon_black_and_in_the_selected_row() -> None:
    assert min(contrast(on_xterm(getattr(ANSI, text)), "#000000") for text in TEXTS) >= 4.5
    assert contrast(on_xterm(ANSI.on_picked), on_xterm(ANSI.picked)) >= 4.5
    assert len({getattr(ANSI, role) for pair in TOLD_APART for role in pair if role not in ("ink", "quiet")}) == 5


@cases("name", [name for name, theme in BUILTIN_THEMES.items() if not theme.ansi])
def test_words_can_be_read_in_each_of_textuals_themes(name: str) -> None:
    palette = palette_of(BUILTIN_THEMES[name])
    assert min(contrast(getattr(palette, a), getattr(palette, b)) for a in TEXTS for b in GROUNDS) >= 4.5
    assert min(contrast(getattr(palette, a), getattr(palette, b)) for a, b in BARS) >= 4.5
    assert all(getattr(palette, a) != getattr(palette, b) for a, b in combinations(("good", "warn", "bad"), 2))
    assert len({getattr(palette, ground) for ground in GROUNDS}) == 4


WRITTEN, BEHIND = ("primary", "foreground", "success", "warning", "error"), ("background", "surface")
"""Colours of words and borders in style sheets, and the backgrounds they are on."""
ROUNDED = {
    **DESIGNED,
    **{name: palette_of(theme) for name, theme in BUILTIN_THEMES.items() if not theme.ansi},
}


@cases("name", ROUNDED)
def test_words_can_be_read_in_256_colours(name: str) -> None:
    palette = rounded(ROUNDED[name])
    least = 7.0 if name == "contrast" else 4.5
    assert min(contrast(getattr(palette, a), getattr(palette, b)) for a in TEXTS for b in GROUNDS) >= least
    assert min(contrast(getattr(palette, a), getattr(palette, b)) for a, b in BARS) >= least
    assert all(getattr(palette, a) != getattr(palette, b) for a, b in combinations(("good", "warn", "bad"), 2))
    assert len({getattr(palette, ground) for ground in GROUNDS}) == 4
    assert [colour for colour in palette.colours() if as_shown(colour) != colour] == []


@cases("sight", SIGHTS)
@cases("name", DESIGNED)
def test_states_in_256_colours_are_about_as_distinct_as_colours_rounded_one_by_one(name: str, sight: str) -> None:
    palette = rounded(DESIGNED[name])
    alone = {role: as_shown(getattr(DESIGNED[name], role)) for pair in TOLD_APART for role in pair}
    least = min(distance(alone[a], alone[b], sight) for a, b in TOLD_APART)
    found = min(distance(getattr(palette, a), getattr(palette, b), sight) for a, b in TOLD_APART)
    assert found >= 0.75 * min(least, APART)


def test_sixteen_colours_are_not_rounded() -> None:
    assert rounded(ANSI) is ANSI


@cases(
    ("environ", "is_rounded"),
    [
        ({"TERM": "tmux-256color"}, True),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "tmux-256color", "COLORTERM": "truecolor"}, False),
        ({"TERM": "tmux-256color", "TEXTUAL_COLOR_SYSTEM": "truecolor"}, False),
        ({"TERM": "xterm", "TEXTUAL_COLOR_SYSTEM": "256"}, True),
        ({"TERM": "linux"}, False),
        ({}, False),
    ],
)
async def test_a_terminal_of_256_colours_gets_such_a_palette(environ: dict[str, str], is_rounded: bool) -> None:
    appearance = appearance_of(ConsoleSettings(), environ)
    assert appearance.is_rounded is is_rounded
    async with on_screen(Console(look=replace(appearance, theme="gputui")), (80, 24)) as (console, _):
        drawn = {as_shown(colour) == colour for colour in colours_on(console)}
        assert drawn == {is_rounded}


@cases("is_rounded", [False, True])
@cases("name", [name for name in theme_names() if not is_ansi(name)])
def test_borders_and_texts_of_style_sheets_are_readable(name: str, is_rounded: bool) -> None:
    shown = Console(look=Appearance(name, is_rounded=is_rounded)).app.get_css_variables()
    on_terminal = {role: as_shown(shown[role]) if is_rounded else shown[role] for role in (*WRITTEN, *BEHIND)}
    assert min(contrast(on_terminal[word], on_terminal[ground]) for word in WRITTEN for ground in BEHIND) >= 4.5


@cases("name", ["nord", "textual-light", "gputui-light"])
async def test_style_sheets_have_these_colours_when_it_runs(name: str) -> None:
    async with on_screen(Console(look=Appearance(name, is_rounded=True)), (80, 24)) as (console, _):
        palette, theme = console.app.theming.palette(), console.app.current_theme
        wanted = theme_of(name, palette, dark=theme.dark).to_color_system().generate()
        worn = console.app.stylesheet._variables  # noqa: SLF001 - what style sheets were parsed with
        assert [key for key in wanted if key not in theme.variables and worn[key] != wanted[key]] == []
        assert theme.dark is (name == "nord")


def test_a_role_has_a_colour_of_its_own() -> None:
    """Two roles of one colour could not be exchanged for two."""
    roles = [getattr(DARK, name) for name in (*TEXTS, *GROUNDS, "faint", "history", *(ground for _, ground in BARS))]
    assert len(set(roles)) == len(roles)


class TestLook:
    def line(self, look: ThemeFilter, words: str, given: Style) -> Segment:
        return look.apply([Segment(words, given)], TextualColor.parse("#000000"))[0]

    def test_a_role_gets_the_themes_colour_and_keeps_its_weight(self) -> None:
        shown = self.line(ThemeFilter(LIGHT), "x", cells.RED_STRONG + Style(bgcolor=cells.RAISED)).style
        assert shown == Style(color=LIGHT.bad, bgcolor=LIGHT.raised, bold=True)

    def test_a_colour_without_a_role_stays(self) -> None:
        given = Style(color="#123456", bgcolor="#654321")
        assert self.line(ThemeFilter(LIGHT), "x", given).style == given

    def test_the_rendering_of_the_theme_is_free(self) -> None:
        assert not ThemeFilter(DARK).enabled
        assert ThemeFilter(LIGHT).enabled
        assert ThemeFilter(DARK, ascii_only=True).enabled

    def test_without_colours_the_selected_row_is_reversed(self) -> None:
        look = ThemeFilter(colourless=True)
        picked = self.line(look, "x", cells.GREEN + Style(bgcolor=cells.PICKED)).style
        assert picked is not None
        assert (picked.reverse, picked.color, picked.bgcolor) == (True, None, None)
        assert self.line(look, "x", cells.GREEN + Style(bgcolor=cells.RAISED)).style == Style()

    def test_in_sixteen_colours_the_selected_row_is_written_in_one(self) -> None:
        shown = self.line(ThemeFilter(ANSI), "x", cells.RED + Style(bgcolor=cells.PICKED)).style
        assert shown == Style(color="black", bgcolor="cyan")

    def test_sixteen_colours_never_rely_on_the_terminals_defaults(self) -> None:
        for given in (Style(), Style(color="default", bgcolor="default"), Style(bold=True)):
            shown = self.line(ThemeFilter(ANSI), "x", given).style
            assert shown is not None
            assert (shown.color, shown.bgcolor) == (Color.parse("white"), Color.parse("black"))
        left = self.line(ThemeFilter(palette_of(BUILTIN_THEMES["ansi-light"])), "x", Style(bold=True)).style
        assert left == Style(bold=True)

    def test_the_effect_of_a_click_is_kept(self) -> None:
        given = cells.PLAIN + Style.from_meta({"@click": "app.help"})
        for look in (ThemeFilter(LIGHT), ThemeFilter(colourless=True)):
            shown = self.line(look, "x", given).style
            assert shown is not None
            assert shown.meta == {"@click": "app.help"}


class TestChoosing:
    def test_the_settings_name_a_theme(self) -> None:
        assert appearance_of(ConsoleSettings(), FULL) == AS_DESIGNED
        assert appearance_of(ConsoleSettings(theme="nord"), FULL).theme == "nord"
        with pytest.raises(InputError, match=r"console\.theme: 'pink' is not a theme .*gputui-light"):
            appearance_of(ConsoleSettings(theme="pink"), FULL)

    @cases(
        ("environ", "few"),
        [
            ({"TERM": "xterm-16color"}, True),
            ({"TERM": "linux"}, True),
            ({"TERM": "screen"}, True),
            ({"TERM": "screen", "COLORTERM": "truecolor"}, False),
            ({"TERM": "screen-256color"}, False),
            ({"TERM": "xterm-kitty"}, False),
            ({"TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "standard"}, True),
        ],
    )
    def test_few_colours_get_their_own_theme(self, environ: dict[str, str], few: bool) -> None:
        assert has_few_colours(environ) is few
        assert appearance_of(ConsoleSettings(theme="nord"), environ).theme == ("gputui-16" if few else "nord")
        assert appearance_of(ConsoleSettings(theme="ansi-light"), environ).theme == "ansi-light"

    @cases(
        ("environ", "wanted"),
        [
            ({}, False),
            ({"LANG": "C"}, False),
            ({"LANG": "de_DE.UTF-8"}, False),
            ({"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.ISO-8859-15@euro"}, True),
            ({"LANG": "en_US.utf8", "TERM": "linux"}, True),
            ({"LC_CTYPE": "ja_JP.eucJP"}, True),
            ({"LANG": "de_DE.ISO-8859-1", "LC_CTYPE": "C.UTF-8"}, True),
            ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ],
    )
    def test_ascii_is_used_if_the_terminal_needs_it(self, environ: dict[str, str], wanted: bool) -> None:
        assert wants_ascii("auto", environ) is wanted
        assert wants_ascii("always", environ)
        assert not wants_ascii("never", environ)

    def test_the_last_choice_is_remembered_where_the_terminal_can_show_it(self, tmp_path: Path) -> None:
        kept = Preferences(tmp_path / "console.json")
        kept.put("look", {"theme": "nord"})
        kept.close()
        again = Preferences(tmp_path / "console.json")
        assert remembered_theme(AS_DESIGNED, again) == "nord"
        assert remembered_theme(Appearance("gputui-16", is_shallow=True), again) == "gputui-16"
        again.put("look", {"theme": "gone"})
        assert remembered_theme(AS_DESIGNED, again) == "gputui"

    def test_every_name_is_a_theme(self) -> None:
        assert set(theme_names()) == {theme.name for theme in themes()} | set(BUILTIN_THEMES)
        assert [name for name in theme_names() if is_ansi(name)] == ["gputui-16", "ansi-dark", "ansi-light"]


def colours_on(console: Console) -> set[str]:
    """Return every colour on the screen."""
    strips = console.strips
    found = {each for strip in strips for _, used, _ in strip if used for each in (used.color, used.bgcolor) if each}
    return {colour.name for colour in found}


@cases("name", ["gputui-light", "nord", "gputui-16", "ansi-light"])
async def test_a_theme_reaches_every_cell_at_once(name: str) -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        console.app.theming.try_on(name)
        await pilot.pause()
        await pilot.pause()
        shown = colours_on(console)
        roles = set(DARK.colours())
        assert not shown & roles
        wanted: Palette = palette_of(console.app.current_theme)
        assert {wanted.ground, wanted.ink, wanted.good, wanted.picked} <= shown
        if is_ansi(name):
            assert not {colour for colour in shown if colour.startswith("#")}


class TestThemeChooser:
    async def test_the_theme_under_the_cursor_is_previewed_and_escape_goes_back(self, tmp_path: Path) -> None:
        async with on_screen(Console(preferences=Preferences(tmp_path / "console.json")), (100, 40)) as (
            console,
            pilot,
        ):
            await pilot.press("ctrl+t", "j", "j")
            await pilot.pause()
            assert console.app.theme == "gputui-light"
            assert LIGHT.ground in colours_on(console)
            await pilot.press("escape")
            await pilot.pause()
            assert (console.app.theme, console.app.theming.kept) == ("gputui", "auto")
            assert not set(colours_on(console)) & {LIGHT.ground, LIGHT.ink}

    async def test_enter_keeps_the_theme_for_the_next_console(self, tmp_path: Path) -> None:
        path = tmp_path / "console.json"
        async with on_screen(Console(preferences=Preferences(path)), (100, 40)) as (_, pilot):
            await pilot.press("ctrl+t", "down", "down", "enter")
            await pilot.pause()
        again = Console(preferences=Preferences(path))
        assert again.app.theme == "gputui-light"
        async with again.app.run_test(size=(100, 40)) as pilot:
            await again.begin(pilot)
            assert {LIGHT.ground, LIGHT.good} <= colours_on(again)
            await pilot.press("ctrl+t", "home", "enter")
            await pilot.pause()
            assert (again.app.theme, again.app.theming.kept) == ("gputui", "auto")


class TestWithoutColours:
    async def test_no_screen_has_colours_without_a_colour_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        async with on_screen(Console(), (100, 36)) as (console, pilot):
            for keys in ((), ("question_mark",), ("escape", "s"), ("escape", "colon"), ("escape", "c")):
                await pilot.press(*keys)
                await pilot.pause()
                assert not colours_on(console), keys
            await pilot.press("escape")
            await pilot.pause()
            strips = console.strips
            assert any(used and used.reverse and "llama-7b" in text for strip in strips for text, used, _ in strip)
