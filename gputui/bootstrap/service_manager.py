"""What a service tells systemd: that it is ready, lives, and ends (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """The service manager of this process; tells nobody if there is none. Safe to use from any thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._is_ready = False

    def beat(self) -> None:
        """Tell that the process lives; the first time that it is ready, from when on systemd waits for the next."""
        signs = [] if self._is_ready else ["READY=1"]
        self._is_ready = True
        self._tell(*signs, "WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that the process ends."""
        self._tell("STOPPING=1")

    def _tell(self, *signs: str) -> None:
        """Send the signs; a manager that does not take them is not waited for."""
        if not self._address.startswith(("/", "@")):
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto("\n".join(signs).encode(), address)
