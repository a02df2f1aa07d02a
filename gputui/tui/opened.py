"""A driver that takes over a terminal on which the first picture stands already, and keeps that picture anew."""

from __future__ import annotations

from typing import Any

from textual._compositor import LayoutUpdate
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from gputui.tui.opening import OTHER_SCREEN, TIME, Opening
from gputui.tui.steady import SteadyDriver


class OpenedDriver(SteadyDriver):
    """The console's, but for what was done already."""

    opening: Opening | None = None
    """As long as its picture is on the screen."""

    def start_application_mode(self) -> None:
        """Take it over, and know what to leave behind."""
        super().start_application_mode()
        if self.opening is not None:
            self.attrs_before = self.opening.hand_over()
            self.opening = None

    def write(self, data: str) -> None:
        """Write, but do not turn to the other screen anew: some terminals would clear it."""
        if self.opening is None or data != OTHER_SCREEN:
            super().write(data)


def taking_over(opening: Opening) -> type[LinuxDriver] | None:
    """A driver for what this opening shows; None where it shows nothing."""
    if opening.attributes is None:
        return None
    return type("TakingOver", (OpenedDriver,), {"opening": opening})


def drawn_on(app: App[Any], time: str) -> str | None:
    """What is on the screen, for an opening to keep; None where it does not show the time, or not alone."""
    update = app.screen._compositor.render_update(full=True)
    if len(app.screen_stack) > 1 or not isinstance(update, LayoutUpdate) or not time:
        return None
    drawn = update.render_segments(app.console)
    return drawn.replace(time, TIME, 1) if time in drawn and TIME not in drawn else None
