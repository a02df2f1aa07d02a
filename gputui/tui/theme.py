"""The console's one theme: calm and dark, a few colours with meaning."""

from __future__ import annotations

from textual.theme import Theme

from gputui.tui.present import style

THEME = Theme(
    name="gputui",
    primary=style.ACCENT,
    secondary=style.OTHER,
    accent=style.ACCENT,
    foreground=style.INK,
    background=style.GROUND,
    surface=style.RAISED,
    panel=style.RAISED,
    success=style.GOOD,
    warning=style.WARN,
    error=style.BAD,
    dark=True,
    variables={"border": style.FAINT, "input-selection-background": f"{style.ACCENT} 35%"},
)
