"""Checks of the runtimes, and of whether containers get GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.cli.checks.check import Check, fail, ok, warn
from gputui.domain.container import RuntimeStatus


def of_runtime(status: RuntimeStatus) -> Iterator[Check]:
    """Judge whether a runtime answers, and pass on its warnings."""
    if not status.up:
        yield fail(status.name, status.text, "No job of this runtime can start.", "")
        return
    yield ok(status.name, status.text)
    for warning in status.warnings:
        text, _, hint = warning.partition("; ")
        what, _, why = text.partition(": ")
        yield warn(status.name, what, f"{why[:1].upper()}{why[1:]}." if why else "", hint)


def of_toolkit(found: str | None) -> Check:
    """Judge NVIDIA's Container Toolkit, without which containers get no GPUs."""
    if found:
        return ok("toolkit", found)
    hint = "sudo apt install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker\n"
    hint += "sudo systemctl restart docker"
    why = "Containers get no GPUs without it, so no job with GPUs starts."
    return fail("toolkit", "NVIDIA's Container Toolkit was not found on this host", why, hint)
