"""Hooks: announces ended jobs, sick GPUs and a full disk to commands, a webhook and mail, without delaying any tick."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

from gputui.domain.arrays import Entries
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.event import PAGE, Event, ended, health_changes, untold, weekly_report
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.settings import HookSettings, Settings, WeeklyTime, parse_weekly
from gputui.domain.snapshot import Notice
from gputui.domain.text import plain
from gputui.engine.files import read_file, replace_file
from gputui.ports import NO_MONITOR, JobStore, Monitor

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

log = logging.getLogger(__name__)

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
        yield "on_job_end", lambda event: event.is_about_job, partial(_run, settings.on_job_end, host, seconds)
    if settings.on_notice:
        yield "on_notice", lambda event: not event.is_about_job, partial(_run, settings.on_notice, host, seconds)
    if settings.webhook:
        hears, url = settings.webhook_events, settings.webhook
        yield (
            "webhook",
            lambda event: event.name in hears,
            lambda event: post(url, json.dumps(event.document(host)).encode(), seconds),
        )
    if settings.mail_to:
        gets = settings.mail_events
        mail = partial(_mail, settings.sendmail, settings.mail_to, host, seconds)
        yield "mail", lambda event: event.name in gets, mail


def _run(command: tuple[str, ...], host: str, seconds: float, event: Event) -> None:
    """Run the command with the event as JSON on its standard input and its main fields in the environment."""
    variables = {"GPUTUI_EVENT": event.name, "GPUTUI_EVENT_ID": event.id, "GPUTUI_TEXT": event.text}
    if event.is_about_job:
        variables |= {"GPUTUI_JOB_ID": str(event.data["id"]), "GPUTUI_JOB_STATE": event.data["state"]}
    _spawn(command, json.dumps(event.document(host)).encode(), seconds, variables)


def _spawn(command: tuple[str, ...], given: bytes, seconds: float, environ: dict[str, str]) -> None:
    """Run a command to its end, within the time; raise NotDeliveredError unless it exits with 0."""
    # a file in memory, so that a command that does not read its input blocks nothing
    with os.fdopen(os.memfd_create("gputui-event", os.MFD_CLOEXEC), "wb+") as stdin:
        stdin.write(given)
        stdin.seek(0)  # after all is written
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's settings name it
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
        if data == b"":  # it has closed its stderr
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            return kept
        if has_ended and data is None:
            return kept
    return None


def _mail(sendmail: str, to: tuple[str, ...], host: str, seconds: float, event: Event) -> None:
    from email.message import EmailMessage  # half a megabyte, which a console without mail does not need

    message = EmailMessage()
    message["To"] = ", ".join(to)
    message["Subject"] = plain(f"[gputui {host}] {event.text}", 150)
    message["Auto-Submitted"] = "auto-generated"
    message["X-Gputui-Event"] = plain(event.id)
    text = event.data.get("table") or json.dumps(event.document(host), indent=2)
    message.set_content(f"{event.text}\n\n{text}\n")
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

    def watch(self, connection: socket.socket) -> socket.socket:
        """Shut this connection down too; keeps a copy, because TLS takes over the socket."""
        with self._lock:
            self._connections.append(connection.dup())
        if self.is_over:
            self._end()
        return connection

    def close(self) -> None:
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
    from urllib3 import Timeout
    from urllib3.exceptions import HTTPError

    deadline = _Deadline(seconds)
    headers = {"Content-Type": "application/json", "User-Agent": "gputui", "Connection": "close"}
    try:
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
                _judge(response)
            finally:
                response.close()
    except (HTTPError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None)  # the innermost that urllib3 gives
        words = str(reason if isinstance(reason, Exception) else error)
        raise NotDeliveredError(
            f"did not answer within {seconds:g} s" if deadline.is_over else plain(words, 200)
        ) from error
    finally:
        deadline.close()


def _manager(url: str, deadline: _Deadline) -> PoolManager:
    """Return a manager whose connections the deadline watches, through the proxy of the environment, if any."""
    import urllib.request  # a megabyte, which a console without webhooks does not need

    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.util import parse_url

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return deadline.watch(super()._new_conn())

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return deadline.watch(super()._new_conn())

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


def _judge(response: BaseHTTPResponse) -> None:
    """Raise NotDeliveredError unless the answer is 2xx; redirects are not followed, as they lose the event."""
    from urllib3.exceptions import HTTPError

    if 200 <= response.status < 300:
        return
    what = f"answered {response.status}"
    if 300 <= response.status < 400:
        to = plain(response.headers.get("Location", "nowhere"), 200)
        hint = "redirects are not followed: set hooks.webhook to the final address"
        raise NotDeliveredError(f"{what}, a redirect to {to}", hint=hint)
    with suppress(HTTPError, OSError):  # the first line, if it arrived in time
        if said := plain(response.read(MOST_READ).decode(errors="replace").strip().partition("\n")[0], 200):
            what = f"{what}: {said}"
    raise NotDeliveredError(what)


FILE = "weekly-report"
REPORT_WITHIN = 300.0
"""Maximum seconds for creating a report."""
TRY_AGAIN = timedelta(minutes=10)
"""Time after which a report that could not be made is tried again."""
MakeReport: TypeAlias = Callable[[datetime, datetime], Mapping[str, Any]]
"""Returns the report of a period: `report`, as its JSON, `table`, as text, and `page`, as HTML.

Takes seconds; raises GputuiError.
"""


class WeeklyReport(Struct, eq=False):
    """Creates reports that are due, by a worker. `update` is called at every tick and never blocks.

    The time of the last one is kept in a file, so that the next scheduler does not send it again.
    """

    _directory: Path
    _at: WeeklyTime
    _max_age: timedelta
    """A report that was due longer ago is skipped."""
    _make: MakeReport
    _workers: Executor
    _wake: Callable[[], None] = lambda: None
    _made: Event | None = None
    _begun: datetime | None = None
    """Time of the report that is being created, or was created last."""
    _failed_at: datetime | None = None

    def update(self, now: datetime) -> Event | None:
        made, self._made = self._made, None
        due = self._at.last(now)
        failed_at = self._failed_at
        is_to_begin = due != self._begun or (failed_at is not None and not failed_at <= now < failed_at + TRY_AGAIN)
        if is_to_begin and now - due <= self._max_age:
            self._begun, self._failed_at = due, None
            self._workers.submit(self._work, due, now)
        return made

    def close(self) -> None:
        self._workers.shutdown(wait=False)

    def _work(self, due: datetime, now: datetime) -> None:
        last = ""
        with suppress(OSError):
            last = read_file(self._directory / FILE).decode(errors="replace").strip()
        try:
            if last != due.isoformat():
                self._made = weekly_report(self._make(self._at.before(due), due), due)
                try:
                    replace_file(self._directory / FILE, f"{due.isoformat()}\n".encode())
                except OSError as error:  # the next scheduler sends it again
                    log.warning("the time of the weekly report is not kept: %s", error)
        except (GputuiError, OSError) as error:
            log.warning("the weekly report cannot be made: %s; it is tried again", error)
            self._failed_at = now
        except Exception:  # the border of a worker
            log.exception("making the weekly report")
        self._wake()


def weekly_of(
    settings: Settings, directory: Path, make: MakeReport, workers: Executor, wake: Callable[[], None] = lambda: None
) -> WeeklyReport | None:
    """Return the creator of the weekly reports that the settings ask for; None if they are off."""
    if not settings.report.weekly:
        return None
    at, max_age = parse_weekly(settings.report.weekly), settings.hooks.max_age
    return WeeklyReport(directory, at, max_age, make, workers, wake)


def made_report(options: Sequence[str], since: datetime, until: datetime) -> Mapping[str, Any]:
    """Return the report of a period, created by other processes, which take no time from this one."""
    period = ("report", "--since", since.isoformat(), "--until", until.isoformat())
    found = []
    for form in ("table", "json", "html"):
        command = (sys.executable, "-P", "-m", "gputui", *options, *period, "--format", form)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=REPORT_WITHIN, check=False)  # noqa: S603 - this Python, and our own module
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GputuiError(str(error)) from error
        if done.returncode:
            raise GputuiError(plain(done.stderr.strip(), 200))
        found.append(done.stdout)
    table, report, page = found
    return {"table": table, "report": json.loads(report), PAGE: page}


RecordEnds: TypeAlias = Callable[[Sequence[tuple[Event, Job]]], None]
"""Records durably which ends were announced. It may raise errors of its store; then it is called again."""


def stored_ends(store: JobStore) -> RecordEnds:
    """Return the function that records in the jobs of a store that their ends were announced."""

    def record(ends: Sequence[tuple[Event, Job]]) -> None:
        with store.transaction() as transaction:
            for event, ended_job in ends:
                with suppress(NotFoundError):
                    for job in transaction.chosen(ended_job.ids):
                        if job.ended_at == event.at:
                            transaction.put(job.evolve(announced_end_at=event.at))

    return record


class Announcer:
    """Puts events into the outboxes of their targets. `update` is called at every tick and never blocks.

    Whether an end has been announced is recorded, so a restarted scheduler announces it: each end is announced at least
    once, and a receiver recognises a repetition by the event's id. Health of GPUs and the disk are announced by the
    scheduler that saw them. Each target has its own outbox: a slow one delays no other.
    """

    def __init__(
        self,
        record: RecordEnds,
        settings: HookSettings,
        sinks: Iterable[tuple[str, Callable[[Event], bool], Deliver]],
        workers: Callable[[str], Executor],
        wake: Callable[[], None] = lambda: None,
        monitor: Monitor = NO_MONITOR,
        weekly: WeeklyReport | None = None,
    ) -> None:
        """Create an outbox for each sink; `workers` creates its executor, given a name."""
        self._weekly = weekly
        self._record_ends = record
        self._settings = settings
        self._outboxes = tuple(
            Outbox(name, wants, deliver, settings.tries, workers(f"hook-{name}"), wake, monitor.delivered)
            for name, wants, deliver in sinks
        )
        self._under_way: dict[str, tuple[Event, Job]] = {}
        """Ends of jobs, by event id, that are being announced or are not recorded as announced yet."""
        self._jobs: Entries | None = None
        """Jobs whose ends have been examined; None if they have to be examined again."""
        self._views: tuple[GpuView, ...] | None = None

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        return tuple(Notice("warning", text) for outbox in self._outboxes for text in outbox.notices(now))

    def update(self, jobs: Entries, views: tuple[GpuView, ...], now: datetime) -> None:
        if not self._outboxes:
            return
        for outbox in self._outboxes:
            outbox.try_again(now)
        done = [
            (event, job)
            for event, job in self._under_way.values()
            if not any(event.id in outbox.waiting for outbox in self._outboxes)
        ]
        if done:  # they are forgotten only once that is recorded, so an error of the store loses none
            self._record_ends(done)
        for event, _ in done:
            del self._under_way[event.id]
        if self._views is not None:
            for event in health_changes(self._views, views, now):
                self.announce(event, now)
        self._views = views
        if self._weekly is not None and (report := self._weekly.update(now)) is not None:
            self.announce(report, now)
        if done:  # these jobs were read before that was recorded
            self._jobs = None
        elif jobs is not self._jobs:
            self._announce_ends(jobs, now)

    @property
    def is_telling(self) -> bool:
        return bool(self._under_way) or any(outbox.waiting for outbox in self._outboxes)

    def announce(self, event: Event, now: datetime) -> None:
        for outbox in self._outboxes:
            if outbox.wants(event):
                outbox.put(event, now)

    def close(self) -> None:
        for outbox in self._outboxes:
            outbox.close()
        if self._weekly is not None:
            self._weekly.close()

    def _announce_ends(self, jobs: Entries, now: datetime) -> None:
        """Announce ends while outboxes have room; the others stay in the store until then."""
        self._jobs = jobs
        for job in untold(jobs.values(), now, self._settings.max_age):
            event = ended(job)
            if event.id in self._under_way:
                continue
            wanting = [outbox for outbox in self._outboxes if outbox.wants(event)]
            if wanting and all(outbox.is_busy for outbox in wanting):
                self._jobs = None
                if all(outbox.is_busy for outbox in self._outboxes):
                    return
                continue
            self._under_way[event.id] = (event, job)
            self.announce(event, now)


BUSY = 64
"""Number of unfinished deliveries from which an event for this target only stays in the store."""
MOST = 1000
"""Number of unfinished deliveries from which further ones are dropped, since other targets do not wait for this one."""
TOLD_FOR = timedelta(hours=1)
"""Time for which a notice mentions dropped deliveries, after the last one."""
_FIRST_PAUSE = timedelta(seconds=5)
_LONGEST_PAUSE = timedelta(minutes=20)


class _Delivery(Struct):
    event: Event
    tries: int = 0
    under_way: bool = False
    again_at: datetime | None = None


class Outbox(Struct, eq=False):
    """Queue of deliveries to one target. Never blocks: workers deliver.

    `delivered` is called with the name and the result of each try: `ok`, `failed` or `dropped`.
    """

    name: str
    wants: Callable[[Event], bool]
    _deliver: Deliver
    _tries: int
    _workers: Executor
    _wake: Callable[[], None]
    _delivered: Callable[[str, str], object] = lambda hook, result: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[str, _Delivery] = field(default_factory=dict)
    """Deliveries that are not done yet, by the event's id."""
    _fault: str = ""
    _lost: int = 0
    _lost_at: datetime | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether too many deliveries wait; new ones should then stay in the store."""
        return len(self.waiting) >= BUSY

    def put(self, event: Event, now: datetime) -> None:
        """Deliver the event, at once if a worker is free; drop it if too many wait."""
        with self._lock:
            if len(self.waiting) >= MOST:
                self._lose(event, now, f"{MOST} deliveries wait already")
                return
            delivery = self.waiting[event.id] = _Delivery(event)
        self._begin(delivery)

    def try_again(self, now: datetime) -> None:
        with self._lock:
            resting = [each for each in self.waiting.values() if each.tries and not each.under_way]
        for delivery in resting:
            if delivery.tries >= self._tries:
                with self._lock:
                    del self.waiting[delivery.event.id]
                    self._lose(delivery.event, now, f"{delivery.tries} tries failed")
            elif delivery.again_at is None:
                delivery.again_at = now + min(_FIRST_PAUSE * 4 ** (delivery.tries - 1), _LONGEST_PAUSE)
            elif now >= delivery.again_at:
                self._begin(delivery)

    def notices(self, now: datetime) -> list[str]:
        with self._lock:
            said = [f"hooks.{self.name}: {self._fault}"] if self._fault else []
            if self._lost_at is not None and now - self._lost_at > TOLD_FOR:
                self._lost, self._lost_at = 0, None
            if self._lost:
                said.append(f"hooks.{self.name}: deliveries dropped: {self._lost}, waiting: {len(self.waiting)}")
            return said

    def close(self) -> None:
        self._workers.shutdown(wait=False)

    def _begin(self, delivery: _Delivery) -> None:
        delivery.under_way, delivery.again_at = True, None
        delivery.tries += 1
        self._workers.submit(self._work, delivery)

    def _work(self, delivery: _Delivery) -> None:
        fault = ""
        try:
            self._deliver(delivery.event)
        except NotDeliveredError as error:
            fault = str(error)
        except Exception as error:  # the border of a worker
            log.exception("telling %s of %s", self.name, delivery.event.id)
            fault = type(error).__name__
        with self._lock:
            delivery.under_way = False
            self._fault = fault
            if not fault:
                del self.waiting[delivery.event.id]
        self._delivered(self.name, "failed" if fault else "ok")
        if fault:
            log.warning("hooks.%s: %s, try %d: %s", self.name, delivery.event.id, delivery.tries, fault)
        self._wake()

    def _lose(self, event: Event, now: datetime, why: str) -> None:
        self._lost += 1
        self._delivered(self.name, "dropped")
        self._lost_at = now
        log.warning("hooks.%s: %s is dropped: %s", self.name, event.id, why)
