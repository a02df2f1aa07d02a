"""Requests to the owner of a queue by its socket."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gputui.api.callers import SUDO_UID
from gputui.api.client import ApiClient
from gputui.api.wire import to_sockets
from gputui.config import Options


def ask_again(path: str, body: bytes, key: str, options: Options, tell: Callable[[str], object]) -> bytes:
    """Send the request of a command again, until its owner or the next one answers, and return the answer's body.

    Raises NoOwnerError, StoreBusyError for one who does not answer, and the error that the answer tells.
    """
    sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    patience = options.settings.store.lock_timeout.total_seconds()
    client = ApiClient(
        to_sockets([Path(path)]),
        patience=patience,
        tell=tell,
        headers={SUDO_UID: sudo} if sudo.isdigit() else {},
    )
    return client.request("POST", "/v1/cli", body, key=key).body
