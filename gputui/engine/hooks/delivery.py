"""Delivery of an event to a command, a webhook or by mail. A call may take its whole timeout, so workers make it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gputui.domain.errors import GputuiError
from gputui.domain.event import PAGE, Event
from gputui.domain.settings import HookSettings
from gputui.domain.text import plain

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

__all__ = ["Deliver", "NotDeliveredError", "sinks"]

MOST_KEPT = 64 * 1024
"""Bytes of a command's stderr that are kept."""
_LOOK_EVERY = 0.2
"""Seconds between two checks whether a command has ended while its child keeps stderr open."""

Deliver: TypeAlias = Callable[[Event], None]
"""Delivers an event; raises NotDeliveredError."""


def sinks(settings: HookSettings, host: str) -> Iterator[tuple[str, Callable[[Event], bool], Deliver]]:
    """Yield each configured target: its name, the events it receives, and its delivery function."""
    seconds = settings.timeout.total_seconds()
    if settings.on_job_end:
        yield "on_job_end", _about_job, partial(_run, settings.on_job_end, host, seconds)
    if settings.on_notice:
        yield "on_notice", _about_machine, partial(_run, settings.on_notice, host, seconds)
    if settings.webhook:
        yield "webhook", _among(settings.webhook_events), partial(_post, settings.webhook, host, seconds)
    if settings.mail_to:
        mail = partial(_mail, settings.sendmail, settings.mail_to, host, seconds)
        yield "mail", _among(settings.mail_events), mail


def _about_job(event: Event) -> bool:
    return event.is_about_job


def _about_machine(event: Event) -> bool:
    return not event.is_about_job


def _among(names: tuple[str, ...]) -> Callable[[Event], bool]:
    return lambda event: event.name in names


def _run(command: tuple[str, ...], host: str, seconds: float, event: Event) -> None:
    """Run the command with the event as JSON on its standard input and its main fields in the environment."""
    told = {"GPUTUI_EVENT": event.name, "GPUTUI_EVENT_ID": event.id, "GPUTUI_TEXT": event.text}
    if event.is_about_job:
        told |= {"GPUTUI_JOB_ID": str(event.data["id"]), "GPUTUI_JOB_STATE": event.data["state"]}
    _spawn(command, json.dumps(event.document(host)).encode(), seconds, told)


def _spawn(command: tuple[str, ...], given: bytes, seconds: float, environ: dict[str, str]) -> None:
    """Run a command to its end, within the time; raise NotDeliveredError unless it exits with 0."""
    with _input(given) as stdin:
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,  # so that its children can be ended with it
            )
        except OSError as error:
            raise NotDeliveredError(f"{plain(command[0], 200)}: {error.strerror}") from error
    with process:
        try:
            errors = _errors_until_end(process, time.monotonic() + seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if errors is None:
        raise NotDeliveredError(f"did not end within {seconds:g} s")
    if process.returncode:
        last = plain(errors.decode(errors="replace").strip().rpartition("\n")[2], 200)
        raise NotDeliveredError(f"exit code {process.returncode}" + (f": {last}" if last else ""))


@contextmanager
def _input(given: bytes) -> Iterator[int]:
    """Create a file in memory with the input, so that a command that does not read it blocks nothing."""
    fd = os.memfd_create("gputui-event", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(given)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _errors_until_end(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """Return the end of the command's stderr once it has ended; None if the time is over first.

    Output beyond `MOST_KEPT` bytes is discarded. A child that keeps stderr open is not waited for.
    """
    assert process.stderr is not None
    stream, kept = process.stderr.fileno(), b""
    os.set_blocking(stream, False)
    readable = select.poll()  # select() takes no descriptors above 1023
    readable.register(stream, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        has_ended = process.poll() is not None
        ready = readable.poll(0 if has_ended else 1000 * min(left, _LOOK_EVERY))
        data = os.read(stream, MOST_KEPT) if ready else None
        kept = (kept + (data or b""))[-MOST_KEPT:]
        if data == b"":
            return kept if _ends(process, deadline) else None
        if has_ended and data is None:
            return kept
    return None


def _ends(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the end of a command that has closed its stderr."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _post(url: str, host: str, seconds: float, event: Event) -> None:
    post(url, json.dumps(event.document(host)).encode(), seconds)


def _mail(sendmail: str, to: tuple[str, ...], host: str, seconds: float, event: Event) -> None:
    from email.message import EmailMessage  # half a megabyte, which a console without mail does not need

    message = EmailMessage()
    message["To"] = ", ".join(to)
    message["Subject"] = plain(f"[gputui {host}] {event.text}", 150)
    message["Auto-Submitted"] = "auto-generated"
    message["X-Gputui-Event"] = plain(event.id)
    told = event.data.get("table") or json.dumps(event.document(host), indent=2)
    message.set_content(f"{event.text}\n\n{told}\n")
    if page := event.data.get(PAGE):
        message.add_attachment(page, subtype="html", filename=f"gputui-report-{event.at:%Y-%m-%d}.html")
    _spawn((sendmail, "-t", "-i"), message.as_bytes(), seconds, {})


MOST_READ = 2048
"""Bytes of a refusal that are read for its description."""


class NotDeliveredError(GputuiError):
    """The event was not delivered; it may be tried again."""


class _Deadline:
    """Timer that shuts down the connections of one request when its time is over."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down too; keeps a copy, because TLS takes over the socket."""
        with self._lock:
            self._connections.append(connection.dup())
        if self.is_over:
            self._end()

    def close(self) -> None:
        """Stop the timer and close the copies."""
        self._timer.cancel()
        with self._lock:
            while self._connections:
                self._connections.pop().close()

    def _end(self) -> None:
        self.is_over = True
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def post(url: str, body: bytes, seconds: float) -> None:
    """POST JSON; raise NotDeliveredError unless a 2xx answer arrives in time."""
    from urllib3.exceptions import HTTPError

    deadline = _Deadline(seconds)
    try:
        with _answer(url, body, seconds, deadline) as response:
            _judge(response)
    except NotDeliveredError:
        raise
    except (HTTPError, OSError, ValueError) as error:
        what = f"did not answer within {seconds:g} s" if deadline.is_over else plain(_words(error), 200)
        raise NotDeliveredError(what) from error
    finally:
        deadline.close()


@contextmanager
def _answer(url: str, body: bytes, seconds: float, deadline: _Deadline) -> Iterator[BaseHTTPResponse]:
    from urllib3 import Timeout

    headers = {"Content-Type": "application/json", "User-Agent": "gputui", "Connection": "close"}
    with _manager(url, deadline) as manager:
        response = manager.request(
            "POST",
            url,
            body=body,
            headers=headers,
            timeout=Timeout(total=seconds),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            yield response
        finally:
            response.close()


def _manager(url: str, deadline: _Deadline) -> PoolManager:
    """Return a manager whose connections the deadline watches, through the proxy of the environment, if any."""
    import urllib.request  # a megabyte, which a console without webhooks does not need

    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.util import parse_url

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

    pools: dict[str, Any] = {
        "http": type("PlainPool", (urllib3.HTTPConnectionPool,), {"ConnectionCls": Plain}),
        "https": type("EncryptedPool", (urllib3.HTTPSConnectionPool,), {"ConnectionCls": Encrypted}),
    }
    target = parse_url(url)
    proxy = urllib.request.getproxies().get(target.scheme or "http")
    if proxy and not urllib.request.proxy_bypass(target.netloc or ""):
        manager: urllib3.PoolManager = urllib3.ProxyManager(proxy)
    else:
        manager = urllib3.PoolManager()
    manager.pool_classes_by_scheme = pools
    return manager


def _watched(connection: socket.socket, deadline: _Deadline) -> socket.socket:
    deadline.watch(connection)
    return connection


def _judge(response: BaseHTTPResponse) -> None:
    """Raise NotDeliveredError unless the answer is 2xx; redirects are not followed, as they lose the event."""
    if 200 <= response.status < 300:
        return
    what = f"answered {response.status}"
    if 300 <= response.status < 400:
        to = plain(response.headers.get("Location", "nowhere"), 200)
        hint = "redirects are not followed: set hooks.webhook to the final address"
        raise NotDeliveredError(f"{what}, a redirect to {to}", hint=hint)
    said = _beginning(response)
    raise NotDeliveredError(f"{what}: {said}" if said else what)


def _beginning(response: BaseHTTPResponse) -> str:
    """Return the first line of a refusal, as far as it arrived in time."""
    from urllib3.exceptions import HTTPError

    try:
        return plain(response.read(MOST_READ).decode(errors="replace").strip().partition("\n")[0], 200)
    except (HTTPError, OSError):
        return ""


def _words(error: Exception) -> str:
    """Return the innermost reason that urllib3 gives."""
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, Exception) else error)
