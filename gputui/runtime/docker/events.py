"""Watches the engine's events in a thread; they are only a reason to list containers, not a complete record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.runtime.docker.connection import FIRST_PAUSE, Connection
from gputui.runtime.docker.create import STORE
from gputui.threads import Watcher

if TYPE_CHECKING:
    from gputui.runtime.docker.transport import EngineClient

log = logging.getLogger(__name__)

Lost: TypeAlias = Callable[[RuntimeFault], None]

# no `oom`: it comes by the dozen, ends nothing, and the following `die` shows whether it was one
_EVENTS = ["die", "start"]


class EventWatcher:
    """Calls `wake` after ends of containers, starts of foreign ones, and returns of the engine.

    The engine forgets its events when it restarts, and a lost engine ends the stream silently. So the end of the stream
    only means to reconnect, and `wake` then makes the caller list the containers.
    """

    def __init__(
        self,
        connection: Connection,
        store_id: str,
        on_end: Callable[[str], None],
        on_event: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._store_id = store_id
        self._on_end = on_end
        self._on_event = on_event
        self._closed = threading.Event()
        self._client: EngineClient | None = None
        self._since: int | None = None

    def start(self, wake: Callable[[], None], lost: Lost, back: Callable[[], None]) -> None:
        """Start a daemon thread; it calls `lost` with the reason when the engine is lost, and `back` on its return."""
        Watcher("docker-events", partial(self._run, wake, lost, back)).start()

    def close(self) -> None:
        """Make the thread end soon."""
        self._closed.set()
        if client := self._client:
            client.shut_down()

    def _run(self, wake: Callable[[], None], lost: Lost, back: Callable[[], None]) -> None:
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            why: RuntimeFault = RuntimeUnavailableError(
                f"Docker at {self._connection.where} closed the connection: reconnecting"
            )
            try:
                self._watch(wake, back)
                pause = FIRST_PAUSE
            except RuntimeFault as error:
                why = error
            if self._closed.is_set():
                return
            lost(why)
            self._closed.wait(pause)
            pause = min(pause * 2, self._connection.longest_pause)

    def _watch(self, wake: Callable[[], None], back: Callable[[], None]) -> None:
        """Follow events until the stream ends; raises RuntimeFault when the engine does not answer at all."""
        client = self._client = self._connection.open()
        try:
            with self._connection.translated():
                filters = {"type": ["container"], "event": _EVENTS}
                stream = client.events(decode=True, since=self._since, filters=filters)
            if self._closed.is_set():
                return
            back()
            wake()
            for event in stream:
                if nanoseconds := event.get("timeNano"):
                    # whole seconds: repeated events only wake once more
                    self._since = int(nanoseconds) // 10**9
                    self._on_event(int(nanoseconds))
                actor = event.get("Actor") or {}
                is_ours = (actor.get("Attributes") or {}).get(STORE) == self._store_id
                if event.get("Action") == "die":
                    self._on_end(str(actor.get("ID", "")))
                    wake()
                elif not is_ours:
                    wake()
        except RuntimeFault:
            raise
        # whatever the stream or `wake` raised, the thread must live on to reconnect
        except Exception:
            log.debug("the event stream broke", exc_info=True)
        finally:
            self._client = None
            client.close()
            self._connection.forget()
