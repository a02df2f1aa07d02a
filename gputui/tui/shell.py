"""A shell inside a running job, on the console's own terminal."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App, SuspendNotSupported

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.tui.aside import AsideApp
from gputui.tui.interiors import Interiors
from gputui.tui.messages import WishFailed
from gputui.tui.present.detail import job_title

_NOT_RUN = (126, 127)
"""What shells and docker exec report for a command that could not be run."""


async def open_shell(app: App[Any], interiors: Interiors, job: Job) -> None:
    """Open it and wait for its end; what goes wrong is told in a sentence."""
    if not isinstance(app, AsideApp):
        return
    where = f"a shell in job {job.id}"
    try:
        shell = await asyncio.to_thread(interiors.shell, job)
        words = f"job {job_title(job)}: {plain(shell.where, 200)}; exit or Ctrl-D brings the console back"
        code = await app.run_aside(shell, words)
    except GputuiError as error:
        app.post_message(WishFailed(GputuiError(error.what, where=where, hint=error.hint)))
    except SuspendNotSupported:
        hint = "open the console in a terminal"
        app.post_message(WishFailed(GputuiError("this screen cannot be lent to a shell", where=where, hint=hint)))
    except OSError as error:
        app.post_message(WishFailed(GputuiError(f"{error.filename}: {error.strerror}", where=where)))
    else:
        if code in _NOT_RUN:
            app.post_message(WishFailed(GputuiError(f"it could not be opened (exit code {code})", where=where)))
