"""Limit of the output that an engine keeps of a container: what is older is rotated away, without a word."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.units import format_size, parse_size
from gputui.runtime.docker.records import parse_time

if TYPE_CHECKING:
    from docker import APIClient

_OVERHEAD = {"json-file": 69, "local": 20}
"""Bytes that each driver adds to a message, at least."""
_DEFAULTS = {"local": ("20m", "5")}
"""Limits of drivers that have some by default."""
_FASTEST = 50 * 1024**2
"""Bytes per second that an engine logs at most."""


class LogLimit(Struct):
    """Limit of a container's log, and how much of it was read."""

    size: int = 0
    """Bytes of one file; 0: unlimited."""
    files: int = 1
    overhead: int = 0
    started_at: datetime | None = None
    read: int = 0
    """Bytes that the messages read so far take on the engine's disk, at least."""

    def count(self, message: bytes) -> None:
        """Count a message that was read."""
        self.read += len(message) + self.overhead

    @property
    def is_reached(self) -> bool:
        """Return whether the log is long enough to be one of which something was dropped.

        Such a log still fills all of its files but the newest.
        """
        return bool(self.size) and self.read >= self.size * (self.files - 1)

    def notice(self, first_at: datetime | None) -> str:
        """Return a sentence about lines that may be missing before the first, of that time; empty if none can be."""
        if not self.is_reached:
            return ""
        took = timedelta(seconds=self.size / _FASTEST)
        since = first_at - self.started_at if first_at and self.started_at else None
        is_start_late = since is not None and since < timedelta(0)  # a loaded engine notes it after the first lines
        if since is not None and since < took and not (is_start_late and self.files > 1):
            return ""  # too soon after the start for a whole file to have been written before it
        kept, limit = format_size(self.size * self.files), f"max-size={format_size(self.size)}, max-file={self.files}"
        return f"the engine keeps only the last {kept} of this output ({limit}): lines may be missing"


def limit_of(client: APIClient, container_id: str) -> LogLimit:
    """Return the limit of the container's log, without any output read."""
    inspected: Mapping[str, Any] = client.inspect_container(container_id)
    found = inspected["HostConfig"].get("LogConfig") or {}
    kind, config = str(found.get("Type")), found.get("Config") or {}
    default_size, default_files = _DEFAULTS.get(kind, ("-1", "1"))
    with suppress(InputError, ValueError):
        words, files = str(config.get("max-size", default_size)), int(config.get("max-file", default_files))
        size = 0 if words == "-1" else parse_size(words)
        return LogLimit(size, files, _OVERHEAD.get(kind, 0), parse_time(inspected["State"].get("StartedAt")))
    return LogLimit()
