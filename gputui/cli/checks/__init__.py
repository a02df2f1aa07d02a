"""The checks of `gputui doctor`: pure functions from facts to findings, a module per subject.

`gputui.cli.doctor` collects the facts. A new check is a function here that returns or yields `Check`, and a line there.
"""

from __future__ import annotations

from gputui.cli.checks.check import Check, Level, fail, ok, warn

__all__ = ["Check", "Level", "fail", "ok", "warn"]
