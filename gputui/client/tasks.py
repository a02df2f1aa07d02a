"""The client for tasks of asyncio, which is loaded with its first call."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from gputui.client.client import TIMEOUT, Client

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")

_AHEAD = 1000
"""Results that wait for a task."""


class AsyncClient:
    """`Client` for tasks of asyncio: calls run in threads of their own. A cancelled task ends what it waits for."""

    def __init__(
        self, where: str | None = None, *, timeout: float = TIMEOUT, tell: Callable[[str], None] | None = None
    ) -> None:
        """Take the arguments of `Client`; reads the settings of this user."""
        self._client = Client(where, timeout=timeout, tell=tell)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    @staticmethod
    def _later(
        method: Callable[Concatenate[Client, P], T],
    ) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(client: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
            branch = client._client.branch()
            async with aclosing(_results((method(branch, *args, **options) for _ in "1"), branch.close)) as found:
                return await anext(found)

        return call

    @staticmethod
    def _each(
        method: Callable[Concatenate[Client, P], Iterator[T]],
    ) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]]:
        @wraps(method)
        async def iterate(client: AsyncClient, /, *args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
            branch = client._client.branch()
            async with aclosing(_results(method(branch, *args, **options), branch.close)) as found:
                async for each in found:
                    yield each

        return iterate

    ask = _later(Client.ask)
    about = _later(Client.about)
    submit = _later(Client.submit)
    sweep = _later(Client.sweep)
    submit_all = _later(Client.submit_all)
    expected_start = _later(Client.expected_start)
    jobs = _later(Client.jobs)
    history = _each(Client.history)
    job = _later(Client.job)
    explain = _later(Client.explain)
    gpus = _later(Client.gpus)
    act = _later(Client.act)
    cancel = _later(Client.cancel)
    hold = _later(Client.hold)
    release = _later(Client.release)
    requeue = _later(Client.requeue)
    set_priority = _later(Client.set_priority)
    undo = _later(Client.undo)
    wait = _later(Client.wait)
    wait_all = _later(Client.wait_all)
    as_ended = _each(Client.as_ended)
    events = _each(Client.events)
    logs = _each(Client.logs)


async def _results(source: Iterator[T], stop: Callable[[], object]) -> AsyncGenerator[T, None]:
    """Yield what an iterator yields in a thread of its own; `stop` ends what that waits for."""
    import asyncio

    loop, room, is_over = asyncio.get_running_loop(), threading.Semaphore(_AHEAD), threading.Event()
    found: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()

    def put(each: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(found.put_nowait, each)

    def run() -> None:
        try:
            for each in source:
                room.acquire()
                if is_over.is_set():
                    return
                put((each,))
        except BaseException as error:  # noqa: BLE001 - a border: the task raises it
            put(error)
        else:
            put(None)

    threading.Thread(target=run, name="gputui", daemon=True).start()
    try:
        while (each := await found.get()) is not None:
            if isinstance(each, BaseException):
                raise each
            room.release()
            yield each[0]
    finally:
        is_over.set()
        room.release()
        stop()
