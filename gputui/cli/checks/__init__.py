"""The checks of `gputui doctor`: pure functions from facts to findings, a module per subject.

`gputui.cli.doctor` collects the facts. A new check is a function here that returns or yields a `DoctorCheck`, and a
line there.
"""

from __future__ import annotations

from gputui.cli.checks.check import CheckLevel, DoctorCheck, fail, ok, warn

__all__ = ["CheckLevel", "DoctorCheck", "fail", "ok", "warn"]
