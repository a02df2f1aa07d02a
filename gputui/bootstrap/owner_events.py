"""Snapshots of the process that schedules, for a console that does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputui.api.follower import Follower
    from gputui.config import Options
    from gputui.domain.snapshot import Snapshot

PATIENCE = 5.0
"""Seconds for which a console waits for an answer of the process that it follows."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries to connect, at most."""


class OwnerEvents:
    """Follows the owner of a state directory; see `engine.process.host.FollowPort`. `next` is for one thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._follower: Follower | None = None
        self._seen = 0

    @property
    def answers(self) -> bool:
        follower = self._follower
        return follower is not None and not follower.problem

    def next(self, seconds: float, gpu: str | None) -> tuple[Snapshot, float] | None:
        follower = self._follower or self._started()
        if follower is None:
            return None
        if follower.is_owned is not False:
            follower.wait(self._seen, seconds)
        self._seen = follower.number
        if follower.is_owned is False or not follower.has_snapshot:
            return None
        if not follower.problem:
            follower.look_at(gpu)
        return follower.snapshot, follower.age

    def _started(self) -> Follower | None:
        """Begin to follow; None if this user reads the files."""
        from gputui.api.follower import Follower
        from gputui.api.wire import to_sockets
        from gputui.bootstrap.owner import client_of, is_asked

        if not is_asked(self._options):
            return None
        dial = to_sockets(map(Path, self._options.sockets.paths))
        client = client_of(self._options, dial, patience=PATIENCE)
        self._follower, self._seen = Follower(client, longest_pause=LONGEST_PAUSE), 0
        self._follower.start()
        return self._follower

    def stop(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
