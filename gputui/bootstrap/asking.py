"""A command that the owner of the queue did not answer, asked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gputui.api.wire import to_sockets
from gputui.bootstrap.owner import NEXT_WITHIN, client_of, unanswered
from gputui.config import Options
from gputui.domain.errors import NoOwnerError


def ask_again(
    path: str, body: bytes, key: str, options: Options, tell: Callable[[str], None], waited: float
) -> bytes | None:
    """Send the request of a command again, until its owner or the next one answers, and return the answer's body.

    None: nobody owns the queue now, and this process may open it. Raises NoOwnerError if it may not, StoreBusyError for
    an owner who does not answer, and the error that the answer tells. `waited` are the seconds since the first try.
    """
    may_open = options.sockets.in_process
    absence = 0.0 if may_open else NEXT_WITHIN
    client = client_of(options, to_sockets([Path(path)]), tell, absence=absence, waited=waited)
    try:
        return client.request("POST", "/v1/cli", body, key=key).body
    except NoOwnerError:
        if may_open:
            return None
        raise unanswered(path) from None
    finally:
        client.close()
