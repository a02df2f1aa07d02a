"""Names of keys: Textual's, those displayed, and those in a settings file."""

from __future__ import annotations

from gputui.domain.conditions import keyed

_SHOWN = r"""
slash /  ampersand &  comma ,  full_stop .  left_parenthesis (  right_parenthesis )  left_square_bracket [
right_square_bracket ]  less_than_sign <  greater_than_sign >  shift+left Shift-←  shift+right Shift-→
question_mark ?  asterisk *  vertical_line |  backslash \  exclamation_mark !  plus +  equals_sign =  minus -
colon :  enter Enter  escape Esc  space Space  tab Tab  shift+tab Shift-Tab  down ↓  up ↑  left ←  right →
pagedown PgDn  pageup PgUp  home Home  end End  ctrl+p Ctrl-P  ctrl+c Ctrl-C  ctrl+d Ctrl-D  ctrl+u Ctrl-U
"""
NAMES = dict(pair.split() for line in _SHOWN.strip().splitlines() for pair in line.split("  "))
"""Names of keys as they are shown, by Textual's."""
_OTHERS = """
esc escape  return enter  pgdn pagedown  pgup pageup  page_down pagedown  page_up pageup
del delete  ins insert  ← left  → right  ↑ up  ↓ down
"""
_WORDS = dict(pair.split() for line in _OTHERS.strip().splitlines() for pair in line.split("  "))
"""Alternative names of keys, from keyboards and help texts."""
_WHOLE = frozenset(
    {"enter", "escape", "space", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"}
    | {"up", "down", "left", "right", *(f"f{number}" for number in range(1, 25))}
)
_MODIFIERS = ("ctrl", "alt", "shift")


def key_name(key: str) -> str:
    """Return the display name of a key: `Shift-Tab`, `/`."""
    if key in NAMES:
        return NAMES[key]
    if len(key) == 1:
        return key
    *modifiers, last = key.split("+")
    parts = (*modifiers, NAMES.get(last, last))
    return "-".join(part[:1].upper() + part[1:] for part in parts)


def key_of(text: str) -> str | None:
    """Return Textual's name of a key that a person wrote: `x`, `/`, `Ctrl-K`, `f5`; None if unknown."""
    if len(text) == 1:
        return _character(text)
    *modifiers, last = (
        text.replace("-", "+").split("+")
        if text[-1] not in "+-"
        else (*text[:-2].replace("-", "+").split("+"), text[-1])
    )
    held = {modifier.lower() for modifier in modifiers}
    if not held <= set(_MODIFIERS):
        return None
    word = _WORDS.get(last.lower(), last.lower())
    base = word if word in _WHOLE or (word in NAMES and not held) else None
    if len(last) == 1 and last not in _WORDS:  # Shift with a letter is written as the capital
        base = None if "shift" in held else _character(last.lower() if held else last)
    return None if base is None else "+".join((*(each for each in _MODIFIERS if each in held), base))


def _character(character: str) -> str | None:
    from gputui.tui.textual_internals import key_of_character

    if character == " ":
        return "space"
    if character in _WORDS:
        return _WORDS[character]
    return key_of_character(character) if character.isprintable() else None


def order_words() -> str:
    return (
        f"Jobs of higher priority always go first: {keyed('raise')} and {keyed('lower')} change the "
        f"priority, {keyed('move_up')} and {keyed('move')} put a job just before or behind its neighbour, with the "
        f"priority and the rank of that, and {keyed('top')} puts it before all."
    )
