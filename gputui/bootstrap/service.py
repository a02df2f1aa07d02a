"""The owner of the queue, as this process finds it at its sockets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.domain.errors import GputuiError

if TYPE_CHECKING:
    from gputui.api.messages import AboutView

PATIENCE = 5.0
"""Seconds to wait for an answer."""


def about(options: Options, patience: float = PATIENCE) -> AboutView:
    """Return what the owner of the queue tells of itself and of who asks; raises NoOwnerError and GputuiError."""
    from gputui.api.client import ApiClient
    from gputui.api.messages import AboutView
    from gputui.api.wire import to_sockets

    client = ApiClient(to_sockets(map(Path, options.sockets.paths)), patience=patience)
    try:
        found: AboutView = client.ask("GET", "/v1/about", result=AboutView)
        return found
    finally:
        client.close()


def unanswered(path: str) -> GputuiError:
    """Return the error for a service that has the queue, and at whose socket this user finds nobody."""
    if os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=True):  # noqa: PTH110 - a text
        what = f"the service of this machine does not admit {_name()}: the socket is closed to this account"
        hint = f"ls -l {path}    # an operator adds accounts to its group; log in again afterwards"
        return GputuiError(what, where=path, hint=hint)
    hint = "sudo systemctl start gputui.socket gputui.service    # a queue of your own: gputui --state DIRECTORY …"
    return GputuiError("the service of this machine does not run", where=path, hint=hint)


def _name() -> str:
    from gputui.bootstrap import user_name

    return user_name(os.geteuid())
