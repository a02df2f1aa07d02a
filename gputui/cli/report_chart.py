"""Chart of GPU-hours over time, drawn by pygal as SVG that runs no script and loads nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias
from xml.etree import ElementTree

from gputui.domain.accounting import OUTCOMES
from gputui.domain.installing import install_line

Bars: TypeAlias = Sequence[tuple[str, Mapping[str, float]]]
"""Day of each bar, with its GPU-hours by outcome."""
_NARROWEST, _WIDEST, _HEIGHT = 640, 1190, 300
_PER_BAR = 120
"""Maximum width of a bar, unless the chart is at its narrowest."""
_MOST_LABELS = 12
"""Maximum number of dates below the chart."""


def lacking() -> str:
    """Return the sentence about the library if it is not installed; else nothing."""
    if find_spec("pygal") is not None:
        return ""
    line = install_line(["pygal>=3.1,<4"], sys.prefix, has_pip=find_spec("pip") is not None)
    return f"The chart is left out, because pygal is not installed: {line}"


def chart(bars: Bars, title: str) -> str:
    """Return stacked bars as an SVG element; its page sets the colors `--ink`, `--faint`, `--line` and `--OUTCOME`."""
    pygal = _library()
    drawn = pygal.StackedBar(
        width=min(_WIDEST, max(_NARROWEST, _PER_BAR * len(bars))),
        height=_HEIGHT,
        explicit_size=True,
        style=_style(pygal),
        js=[],
        margin=8,
        legend_at_bottom=True,
        legend_at_bottom_columns=len(OUTCOMES),
        legend_box_size=11,
        max_scale=8,
        truncate_label=-1,
        show_minor_x_labels=False,
        x_labels_major_every=math.ceil(len(bars) / _MOST_LABELS),
        value_formatter=lambda hours: f"{hours:,.10g}",
    )
    drawn.uuid = "over-time"  # random otherwise: the same figures give the same page
    drawn.x_labels = [day for day, _ in bars]
    for name in OUTCOMES:
        drawn.add(name, [_value(day, hours[name], name) for day, hours in bars])
    return _plain(drawn.render(), title)


def _library() -> Any:
    """Import pygal, without the finder of map plugins that it installs: Python 3.11 warns of its old interface.

    Other new finders stay: importlib_metadata replaces the one by which Python finds installed packages.
    """
    import pygal

    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]
    return pygal


def _style(pygal: Any) -> Any:
    return pygal.style.Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--faint)",
        foreground_strong="var(--ink)",
        foreground_subtle="var(--line)",
        guide_stroke_color="var(--line)",
        guide_stroke_dasharray="0",
        major_guide_stroke_color="var(--line)",
        major_guide_stroke_dasharray="0",
        colors=tuple(f"var(--{name})" for name in OUTCOMES),
        font_family="inherit",
        label_font_size=12,
        major_label_font_size=12,
        legend_font_size=13,
        opacity=1,
    )


def _value(day: str, hours: float, name: str) -> dict[str, object] | None:
    return {"value": hours, "tooltip": f"{day}: {hours:,.1f} GPU-hours {name}"} if hours else None


def _plain(svg: bytes, title: str) -> str:
    """Return the SVG for a page: without namespaces, comments, script, and what cannot be seen without a script."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    for element in [*root.iter()]:
        for child in [*element]:
            if child.tag in {"desc", "script"} or (child.get("class") == "bar" and child.find("title") is None):
                element.remove(child)
    for own in root.findall("title"):
        own.text = title
    root.set("role", "img")
    return ElementTree.tostring(root, encoding="unicode")
