"""Handlers: one method for each row of the table of routes, by its name.

They run in threads of the server, and may block. The backend of a call has the caller's rights, and his eyes: handlers
look at nothing else of the queue.
"""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import chain, count, islice
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import asdict, replace

from gputui import __version__
from gputui.api import http
from gputui.api.events import EventHub
from gputui.api.http import Answer, Handoff, HttpError, Request, Response, answer_to, encoded, own_json
from gputui.api.rights import Visibility
from gputui.api.routes import UPGRADE, WHO_MAY, Route, Scope, document, find_route
from gputui.domain.access import AuditEntry, Caller, Role, digest, others_job, stored_key, targets_of
from gputui.domain.action import Action, Edit, EditJobs, typed
from gputui.domain.as_json import (
    explanation_json,
    gpu_json,
    host_json,
    job_detail_json,
    job_json,
    measured_attempt,
    recurring_json,
)
from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import AccessError, CapabilityError, GputuiError, InputError, NotFoundError
from gputui.domain.filter import by_month, in_order, latest_first, meant, parse_filter, parse_states, seen
from gputui.domain.job import Job, attempt_with_output
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Snapshot
from gputui.domain.spec_values import check_execution, check_gpus
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.ports.backend import ActionChange, Attach, CommandLine, DirectBackend, LogRequest, RunCommand, StreamRequest

log = logging.getLogger(__name__)


class OwnerServices(Struct, frozen=True):
    """Services of the process that owns the queue. All may be called from any thread."""

    settings: Settings
    store_id: str
    leader: Callable[[], Leader]
    """Returns this process as others see it."""
    caller_of: Callable[[http.Peer, Mapping[str, str]], Caller]
    """Returns who asks, by the process at the other end and the request's headers, which only the audit believes."""
    backend: Callable[[Caller], DirectBackend]
    """Returns the queue with the rights of a caller; close it after use."""
    latest: Callable[[], Snapshot]
    """Returns the last published snapshot, which holds all secrets: see `visibility`."""
    visibility: Visibility
    """Hides from callers what is not theirs to see."""
    subscribe: Callable[[Callable[[Snapshot], None]], Callable[[], None]]
    """Has a function called with each new snapshot, in the scheduler's thread; returns one that ends that."""
    refused: Callable[[Caller, str, str], None]
    """Writes a refusal into the audit log: the caller, the rule's name, and what was asked for. Limited in rate."""
    focus: Callable[[str | None], object]
    """Has the throughput of this GPU read besides."""
    stream: Callable[[Caller, JobId, StreamRequest, socket.socket, bytes], object]
    """Gives a connection to a process of its own that serves the stream; the bytes came behind the request.

    The head of the answer is sent here too: 101 and frames, or of a `LogRequest` without frames 200 and plain bytes.
    Whether the caller may is checked before. Returns soon; safe in a thread of the pool.
    """
    command: RunCommand | None = None
    """Runs a command for its caller; None: this owner runs none."""
    metrics: Callable[[], bytes] | None = None
    """Returns the page of metrics; empty, or None: this owner keeps none."""
    backup: Callable[[], Iterator[bytes]] | None = None
    """Yields a backup of one moment as a tar archive; None: this owner makes none."""
    home: Callable[[int], str] = lambda uid: ""
    """Returns the home directory of a user; empty: unknown."""


MOST_BYTES = 8 * 1024**2
"""Bytes of output in one answer."""
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})", re.ASCII)
_TYPE = "application/octet-stream"
_BYTES = (("Accept-Ranges", "bytes"),)


@runtime_checkable
class LogFile(Protocol):
    """Output in a file, which may be large, and have lines of any length."""

    size: int

    def part(self, first: int, count: int) -> bytes: ...


def log_answer(lines: Iterable[bytes], wanted: str | None) -> Response:
    """Return the lines, or the range of their bytes that the header `Range` names; raises HttpError.

    A range that is too long is shortened. Other forms of ranges are ignored, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(wanted.strip()) if wanted else None
    first = int(match[1]) if match else 0
    last = min(int(match[2]) if match and match[2] else first + MOST_BYTES - 1, first + MOST_BYTES - 1)
    data, size = bytearray(), 0
    if match is None or last < first:
        for line in lines:
            data += line + b"\n"
            if len(data) > MOST_BYTES:
                hint = "?tail=1000 for its end, Range: bytes=0- for a part, or ?follow=true"
                raise HttpError(413, f"it has more than {MOST_BYTES} bytes", hint=hint)
        return Response(body=bytes(data), content_type=_TYPE, headers=_BYTES)
    if isinstance(lines, LogFile):
        data, size = bytearray(lines.part(first, last + 1 - first)), lines.size
    else:
        for line in lines:
            begin, size = size, size + len(line) + 1
            if size > first:
                data += (line + b"\n")[max(0, first - begin) : last + 1 - begin]
            if size > last:
                break
    if not data:
        raise HttpError(416, f"there are {size} bytes", headers=(("Content-Range", f"bytes */{size}"),))
    headers = (("Content-Range", f"bytes {first}-{first + len(data) - 1}/*"), *_BYTES)
    return Response(206, bytes(data), _TYPE, headers)


MOST_CHANGES = 20_000
"""Maximum number of changes that can be undone."""


class KeptChanges(Struct, eq=False):
    """Changes that can be undone by their numbers, as long as this owner lives."""

    _changes: dict[int, tuple[int, ActionChange]] = field(default_factory=dict)
    """Changes with the uid of whoever made them."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(time.time_ns() // 10**9 * 10**6))
    """Numbers that no owner before has given: one of those would undo something else."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(
        self, caller: Caller, changes: Iterable[ActionChange], indices: Mapping[str, str]
    ) -> list[http.ChangeNumber]:
        with self._lock:
            noted = {next(self._numbers): change for change in tuple(changes)[-MOST_CHANGES:]}
            self._changes |= {number: (caller.uid, change) for number, change in noted.items()}
            while len(self._changes) > MOST_CHANGES:
                del self._changes[next(iter(self._changes))]
        return [http.ChangeNumber(number, change.subject(indices), change.done) for number, change in noted.items()]

    def of(self, caller: Caller, numbers: Iterable[int]) -> list[ActionChange]:
        """Return the caller's changes with these numbers; raises NotFoundError, also for those of others."""
        with self._lock:
            found = [self._changes.get(number) for number in numbers]
        changes = [each[1] for each in found if each is not None and each[0] == caller.uid]
        if len(changes) < len(found):
            what = f"{len(found) - len(changes)} of these changes were made before this owner began, or too long ago"
            raise NotFoundError(what)
        return changes


FORECAST_TIME = 10.0
"""Seconds after which a forecast is cut."""
MOST_FORESEEN = 100
"""Actions of one forecast: each is checked before the time of the forecast begins."""
MOST_LISTED = 100_000
_MOST_WAITING = 4 * 1024**2
"""Bytes of an answer that wait for the client."""
_IN_A_LINE = 100
"""Jobs or records in a line of the whole history."""


class Call(Struct, frozen=True):
    """A request with everything that its handler needs, checked as far as the table of routes says."""

    request: Request
    caller: Caller
    backend: DirectBackend
    """Queue with the caller's rights; closed when the handler returns."""
    parts: Mapping[str, str]
    """Parts of the path by their names."""
    query: Mapping[str, Any]
    body: Any = None
    job: Job | None = None
    """Job that the route is about, whole; the caller may read it, or act on it, as the route's role says."""

    @property
    def wants_own(self) -> bool:
        return http.OWN in self.request.headers.get("accept", "")

    @property
    def wants_stream(self) -> bool:
        return self.request.headers.get("upgrade", "").strip().lower() == UPGRADE

    @property
    def the_job(self) -> Job:
        assert self.job is not None
        return self.job


class Handlers(Struct, eq=False):
    """Answers each route with an `Answer`, or with a value that is encoded as JSON; errors are raised."""

    _services: OwnerServices
    _events: EventHub
    _changes: KeptChanges = field(default_factory=KeptChanges)
    _forecast_room: threading.BoundedSemaphore = field(default_factory=partial(threading.BoundedSemaphore, 2))
    _forecast_lock: threading.Lock = field(default_factory=threading.Lock)

    def about(self, call: Call) -> http.AboutView:
        about, leader, caller = call.backend.about(), self._services.leader(), call.caller
        access, silence = self._services.settings.access, leader.silent_for.total_seconds()
        return http.AboutView(
            gputui=__version__,
            api=http.API,
            oldest=http.OLDEST,
            host=about.host,
            store=self._services.store_id,
            owner=http.OwnerView(leader.pid, leader.kind, leader.user, leader.started_at, silence),
            caller=http.CallerView(caller.uid, caller.user, caller.role.name.lower(), caller.groups, caller.job),
            home=self._services.home(caller.uid),
            lacking={str(name): sentence for name, sentence in about.caps.lacking.items()},
            engine=about.caps.engine,
            lacking_options=about.caps.options,
            scheduler=about.scheduler,
            policy=about.policy,
            agents=http.AgentLimits(access.agent_priority, access.agent_gpus),
        )

    def _picture(self, call: Call) -> Snapshot:
        return call.backend.snapshots().read()

    def snapshot(self, call: Call) -> Response:
        return encoded(replace(self._picture(call), leads_here=False))

    def jobs(self, call: Call) -> Response:
        query, snapshot = call.query, self._picture(call)
        wanted = parse_states((query["state"],), "state") if query["state"] else frozenset()
        words = query["filter"]
        if words and "~" in words:
            hint = "take the jobs, and match them yourself"
            raise InputError("patterns (~) are not matched here", where="filter", hint=hint)
        chosen = parse_filter(words, where="filter") if words else None
        jobs, after = in_order(snapshot), query["after"]
        if after is not None:
            place = next((at for at, job in enumerate(jobs) if job.id == after), None)
            if place is None:
                raise GputuiError(f"job {after} is not in the list any more", where="after", hint="begin again")
            jobs = jobs[place + 1 :]
        with_ended = query["all"] or bool(chosen and chosen.fields & {"state", "is", "id", "exit"})
        listed = (
            job
            for job in jobs
            if (job.state in wanted if wanted else with_ended or not job.state.is_terminal)
            and (query["tenant"] is None or job.spec.tenant == query["tenant"])
        )
        found = (chosen.part(seen(job, snapshot)) if chosen else job for job in listed)
        return _page(call, (job for job in found if job is not None), snapshot, lambda job: str(job.id))

    def history(self, call: Call) -> Answer:
        since, queue, accepted = call.query["since"], call.backend.queue, call.request.headers.get("accept", "")
        if accepted in {http.JOBS, http.RECORDS}:
            values = queue.past(since) if accepted == http.JOBS else queue.records(since)
            return _streamed(call, _lines(values), accepted)
        until, last = None, (-math.inf, 0)
        if cursor := call.query["cursor"]:
            at, dash, number = cursor.rpartition("-")
            try:
                if not dash or not number.isdigit() or len(cursor) > 64:
                    raise ValueError
                last, until = (-float(at), -int(number)), datetime.fromtimestamp(float(at), UTC)
            except (ValueError, OverflowError, OSError):
                what, hint = "it is no place in the history", "take it from the header Next"
                raise InputError(what, where="cursor", hint=hint) from None
        left = by_month(job for job in queue.past(since, until) if latest_first(job) > last)
        return _page(call, left, Snapshot(), lambda job: f"{job.end.timestamp()!r}-{job.id}")

    def gpus(self, call: Call) -> Response:
        if call.wants_own:
            return encoded(self._picture(call).nodes)
        told = ((node, view) for node in self._picture(call).nodes for view in node.gpus)
        return encoded([gpu_json(view) | {"node": node.name, "host": host_json(node.host)} for node, view in told])

    def controls(self, call: Call) -> Response:
        snapshot = self._picture(call)
        if call.wants_own:
            return encoded(snapshot.controls)
        plain = msgspec.to_builtins(asdict(snapshot.controls), enc_hook=dict)
        return encoded({**plain, "windows": msgspec.to_builtins(snapshot.windows)})

    def recurring(self, call: Call) -> Response:
        found = call.backend.queue.recurring().values()
        return encoded(tuple(found) if call.wants_own else [recurring_json(each) for each in found])

    def audit(self, call: Call) -> Response:
        since, job_id = call.query["since"], call.query["job"]
        entries = call.backend.queue.audit_log() if job_id is None else _audit(call, call.backend.job(job_id))
        wanted = (entry for entry in entries if since is None or entry.at >= since)
        found = deque(wanted, _checked_limit(call.query["limit"]))
        return encoded(tuple(found) if call.wants_own else [msgspec.to_builtins(entry) for entry in found])

    def images(self, call: Call) -> list[str]:
        return list(call.backend.images())

    def job(self, call: Call) -> Response:
        job = call.the_job
        told: object = job
        if not call.wants_own:
            told = job_detail_json(job, self._picture(call), _audit(call, job), call.backend.measured(job.id))
        return encoded(told, headers=(("ETag", revision(job)),))

    def explain(self, call: Call) -> dict[str, Any]:
        from gputui.domain.policy.whatif import explain

        snapshot, given = self._picture(call), call.the_job
        job = meant(snapshot, snapshot.job(given.id) or given, is_whole=True)
        if job.state is not JobState.PENDING:
            why = f" ({job.end_words})" if job.state.is_terminal and job.cause else ""
            raise GputuiError(f"job {job.shown_id} is {job.state}{why}: it does not wait")
        return explanation_json(job, explain(snapshot, job, self._services.settings, datetime.now(UTC)))

    def telemetry(self, call: Call) -> Response:
        job, found = call.the_job, call.backend.measured(call.the_job.id)
        if call.wants_own:
            return Response(body=own_json(found))
        kept = ("number", "gpus", "started_at", "ended_at", "efficiency", "telemetry", "series")
        told = (measured_attempt(attempt, found.get(attempt.number)) for attempt in job.attempts)
        return encoded({"id": job.id, "attempts": [{name: each[name] for name in kept} for each in told]})

    def processes(self, call: Call) -> Response:
        return encoded(tuple(call.backend.processes(call.the_job.id)))

    def log(self, call: Call) -> Answer:
        query, text = call.query, call.parts["attempt"]
        if text != "latest" and not (text.isascii() and text.isdigit() and len(text) < 7):
            raise InputError("it is no attempt", where="attempt", hint="its number, or latest")
        attempt = None if text == "latest" else int(text)
        attempt_with_output(call.the_job, attempt)
        wanted = LogRequest(
            attempt, query["tail"], query["stamped"], query["follow"], call.wants_stream, query["apart"]
        )
        if wanted.follow or wanted.in_frames:
            return self._handed(call, call.the_job.id, wanted)
        with closing(call.backend.log(call.the_job.id, wanted)) as stream:
            return log_answer(stream, call.request.headers.get("range"))

    def attach(self, call: Call) -> Answer:
        if not call.wants_stream:
            headers = (("Upgrade", UPGRADE), ("Connection", "Upgrade"))
            raise HttpError(426, "this is a stream", hint=f"Upgrade: {UPGRADE}", headers=headers)
        return self._handed(call, call.the_job.id, call.body)

    def execute(self, call: Call) -> Answer:
        check_execution(call.body)
        return self.attach(call)

    def _handed(self, call: Call, job_id: JobId, wanted: StreamRequest) -> Handoff:
        return Handoff(lambda link, early: self._services.stream(call.caller, job_id, wanted, link, early))

    def submit(self, call: Call) -> Answer:
        submissions: tuple[Submission, ...] = call.body.jobs
        action = SubmitJobs(submissions)
        if call.query["dry_run"]:
            from gputui.domain.policy.whatif import submitted, timeline

            done = call.backend.foresee(action)
            starts: tuple[datetime | None, ...] = done.starts
            if not starts:  # of an array that of its first element
                with self._forecast_turn() as is_wanted:
                    changed = submitted(*done.jobs)(self._picture(call))
                    known = timeline(changed, self._services.settings, datetime.now(UTC), is_wanted=is_wanted).starts
                starts = tuple(known.get(job.id) for job in done.jobs)
            return encoded(http.NewIds(tuple(job_id for job in done.jobs for job_id in job.ids), starts))
        if not call.query["anyway"]:
            check_gpus(submissions, call.backend.known_gpus, "gpus", "?anyway=true")
        if call.wants_stream and (len(submissions) != 1 or submissions[0].array):
            raise InputError("one job has one stream", where="jobs")
        done = call.backend.act(action)
        if call.wants_stream:
            return self._handed(call, done.ids[0], Attach(call.query["detach_keys"], from_start=True))
        return encoded(http.NewIds(done.ids), 200 if done.is_repeated else 201)

    @contextmanager
    def _forecast_turn(self) -> Iterator[Callable[[], bool]]:
        """Yield what tells whether there is still time. One forecast is made at a time, while one waits."""
        if not self._forecast_room.acquire(blocking=False):
            raise HttpError(503, "other forecasts are being made", headers=(("Retry-After", "1"),))
        try:
            with self._forecast_lock:
                until = time.monotonic() + FORECAST_TIME
                yield lambda: time.monotonic() < until
        finally:
            self._forecast_room.release()

    def act(self, call: Call) -> http.Acted:
        return self._acted(call, call.body)

    def edit(self, call: Call) -> http.Acted:
        edit: Edit = call.body
        job, wanted = call.the_job, call.request.headers.get("if-match", "").strip()
        if wanted and wanted != "*" and revision(job) not in (each.strip() for each in wanted.split(",")):
            what = f"job {job.shown_id} was changed meanwhile: nothing is edited"
            raise HttpError(412, what, where="If-Match", hint="edit it as it is now")
        return self._acted(call, EditJobs((job.id,), edit, job if wanted else None))

    def _acted(self, call: Call, action: Action) -> http.Acted:
        done = call.backend.foresee(action) if call.query["dry_run"] else call.backend.act(action)
        shown = own_json if call.wants_own else lambda job: msgspec.json.encode(job_json(job))
        indices = {view.gpu.uuid: str(view.gpu.index) for view in self._services.latest().gpus} if done.changes else {}
        return http.Acted(
            ids=done.ids,
            changes=tuple(self._changes.keep(call.caller, done.changes, indices)),
            jobs=tuple(Raw(shown(job)) for job in done.jobs),
            window=done.window,
        )

    def undo(self, call: Call) -> http.Undone:
        changes = self._changes.of(call.caller, call.body.numbers)
        whys = {id(change): why for change, why in call.backend.undo(changes)}
        return http.Undone(tuple(whys.get(id(change), "") for change in changes))

    def forecast(self, call: Call) -> http.Forecasted:
        from gputui.domain.policy.whatif import change_of, compared

        if len(call.body.actions) > MOST_FORESEEN:
            raise InputError("they are too many for one forecast", where="actions", hint=f"{MOST_FORESEEN} at most")
        for action in call.body.actions:
            call.backend.foresee(action)
        now = datetime.now(UTC)
        changes = [change_of(action, now) for action in call.body.actions]
        with self._forecast_turn() as is_wanted:
            found = compared(
                self._picture(call),
                lambda snapshot: reduce(lambda changed, change: change(changed), changes, snapshot),
                self._services.settings,
                now,
                is_wanted=is_wanted,
            )
            is_cut = not is_wanted()
        starts = tuple(http.StartMove(each.job_id, each.before, each.after, each.is_stopped) for each in found.shifts)
        places = tuple(http.PlaceMove(each.job_id, each.before, each.after) for each in found.moves)
        return http.Forecasted(starts, places, is_cut)

    def events(self, call: Call) -> Answer:
        last_id = call.request.headers.get("last-event-id", "")
        return self._events.stream(call.caller, self.about(call), call.query["kinds"] or "", last_id)

    def focus(self, call: Call) -> Response:
        self._events.focus(call.caller, call.body)
        return Response(204)

    def backup(self, call: Call) -> Answer:
        if (make := self._services.backup) is None:
            raise CapabilityError("this owner of the queue does not have it", hint="gputui state backup")
        return _streamed(call, iter(make()), "application/gzip")

    def metrics(self, call: Call) -> Answer:
        if not (page := self._services.metrics() if self._services.metrics is not None else b""):
            raise CapabilityError("this owner of the queue keeps no metrics", hint="the setting metrics.enabled")
        return Response(body=page, content_type="text/plain; version=0.0.4; charset=utf-8")

    def openapi(self, call: Call) -> Response:
        return Response(body=document())

    def command(self, call: Call) -> Answer:
        line: CommandLine = call.body
        if self._services.command is None or line.version != __version__:
            raise HttpError(421, f"the owner of the queue is gputui {__version__}", hint="run the command yourself")
        return Response(body=self._services.command(call.caller, line).encoded(), content_type=_TYPE)


def _audit(call: Call, job: Job) -> list[AuditEntry]:
    found = chain.from_iterable(map(call.backend.queue.audit_log, targets_of(job)))
    return sorted(found, key=lambda entry: entry.at)


def revision(job: Job) -> str:
    return f'"{digest(own_json((job.spec, job.priority, job.held, job.topped_at)))}"'


def _checked_limit(limit: int) -> int:
    if not 0 < limit <= MOST_LISTED:
        raise InputError("it is out of range", where="limit", hint=f"1 to {MOST_LISTED}")
    return limit


def _streamed(call: Call, parts: Iterator[bytes], content_type: str) -> http.Stream:
    first = next(parts, b"")  # an error that it may have is told as one

    def begin(out: http.Outlet) -> Callable[[], object]:
        """Send the parts from a thread of their own, as fast as the client takes them, until it is gone."""
        is_over = threading.Event()

        def send() -> None:
            try:
                for part in chain((first,), parts):
                    while out.waiting > _MOST_WAITING and not is_over.wait(0.02):
                        pass
                    if is_over.is_set() or not out.send(part):
                        return
                out.close()
            except Exception:  # a border: the client is told by the missing end
                log.exception("the answer to %s %s failed", call.request.method, call.request.path[:200])
                out.cut_off()

        threading.Thread(target=send, name="gputui-stream", daemon=True).start()
        return is_over.set

    return http.Stream(begin, content_type)


def _lines(values: Iterable[Any]) -> Iterator[bytes]:
    """Yield lines of some values each; the last is empty, so that a client knows that it has all."""
    left = iter(values)
    while some := tuple(islice(left, _IN_A_LINE)):
        yield own_json(some) + b"\n"
    yield b"[]\n"


def _page(call: Call, jobs: Iterator[Job], snapshot: Snapshot, place: Callable[[Job], str]) -> Response:
    """Return the first jobs, encoded one by one: a page of them would need many times the room of its text."""
    body, comma, last = bytearray(b"["), b"", None
    for last in islice(jobs, _checked_limit(call.query["limit"])):
        body += comma
        body += own_json(last) if call.wants_own else b"\n" + json.dumps(job_json(last, snapshot)).encode()
        comma = b","
    body += b"]\n" if call.wants_own else b"\n]\n"
    headers = (("Next", place(last)),) if last is not None and next(jobs, None) is not None else ()
    return Response(body=bytes(body), headers=headers)


_BOOLEANS = {"": True, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_GPUTUI_API = re.compile(r"(\d{1,3})\.\d{1,3}", re.ASCII)


class Router(Struct, eq=False):
    """Answers requests, in any thread; errors are answers too, and refusals stand in the audit log."""

    _services: OwnerServices
    _handlers: Handlers

    def __call__(self, request: Request) -> Answer:
        caller: Caller | None = None
        try:
            route, parts = find_route(request.method, request.path)
            if (given := request.headers.get("gputui-api")) is not None:
                match = _GPUTUI_API.fullmatch(given.strip())
                if match is None:
                    raise HttpError(400, "it is no version", where="Gputui-Api", hint=f"such as {http.API}")
                if match[1] != http.API.partition(".")[0]:
                    what = (
                        f"the client speaks version {given.strip()} of the interface, the owner of the queue {http.API}"
                    )
                    raise HttpError(400, what, where="Gputui-Api", hint="update the older one")
            caller = self._services.caller_of(request.peer, request.headers)
            return self._answer(request, route, parts, caller)
        except AccessError as error:
            if caller is not None:
                asked = f"{request.method} {request.path}"[:200]
                self._services.refused(caller, error.rule, f"{asked}: {error.what}")
            return answer_to(error)
        except GputuiError as error:
            return answer_to(error)
        except msgspec.MsgspecError as error:
            return answer_to(HttpError(400, str(error)[:500]))
        except Exception as error:
            log.exception("cannot answer %s %s", request.method, request.path[:200])
            return answer_to(error)

    def _answer(self, request: Request, route: Route, parts: Mapping[str, str], caller: Caller) -> Answer:
        if caller.role < route.role:
            what = f"{caller.user} is {_NAMES[caller.role]} of this queue: this is for {WHO_MAY[route.role]}"
            raise AccessError(what, rule=f"role-{route.role.name.lower()}", hint=_HINTS[route.role])
        key = request.headers.get("idempotency-key")
        if key is not None and request.method in {"POST", "PATCH", "PUT"}:
            caller = replace(caller, key=stored_key(key, request.method, request.path, request.query, request.body))
        body = _decoded(route, request)
        known = {each.name: each for each in route.query}
        if unknown := sorted(request.query.keys() - known.keys()):
            hint = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError("there is no such parameter", where=unknown[0][:100], hint=hint)
        query = {
            name: _value(name, each.type, request.query[name]) if name in request.query else each.default
            for name, each in known.items()
        }
        with closing(self._services.backend(caller)) as backend:
            job = None
            if route.scope is Scope.JOB:
                job = backend.job(job_id(parts["id"]))
                is_open = route.handler == "log" and self._services.settings.access.show_logs
                if route.role is not Role.VIEWER and not (is_open or caller.may_act_on(job)):
                    raise others_job(job, _ON_A_JOB[route.handler])
            call = Call(request, caller, backend, parts, query, body, job)
            result = getattr(self._handlers, route.handler)(call)
            return result if isinstance(result, Response | http.Stream | Handoff) else encoded(result, route.status)


_ON_A_JOB = {
    "edit": "edit it",
    "processes": "see its processes",
    "log": "read its output",
    "attach": "attach to it",
    "execute": "enter it",
}
"""Words for what a route does to a job, by its handler."""
_NAMES = {Role.VIEWER: "a viewer", Role.USER: "a user"}
_HINTS = {
    Role.USER: "an operator lists users in access.users",
    Role.OPERATOR: "root lists operators in policy.operators",
}


def job_id(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InputError("it is no id of a job", where="id", hint="a number, as `gputui queue` lists it")
    return int(text)


def _decoded(route: Route, request: Request) -> Any:
    if route.body is None:
        if request.body and route.method == "GET":
            raise HttpError(400, "this takes no body")
        return None
    try:
        found = decode_json(request.body, route.body)
        if isinstance(found, Edit):
            return found.typed()
        if isinstance(found, http.Forecast):
            return http.Forecast(tuple(map(typed, found.actions)))
        return typed(found) if isinstance(found, Action) else found
    except msgspec.ValidationError as error:
        raise HttpError(422, str(error)[:500], where="body") from error
    except msgspec.DecodeError as error:
        raise HttpError(400, f"the body is no JSON: {str(error)[:200]}", where="body") from error


def _value(name: str, kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise InputError("it is neither true nor false", where=name)
        return _BOOLEANS[text.lower()]
    if kind is int:
        if not _NUMBER.fullmatch(text):
            raise InputError("it is no whole number from 0", where=name)
        return int(text)
    if kind is datetime:
        try:
            at: datetime = convert(text, datetime)
        except msgspec.ValidationError:
            at = datetime.min  # noqa: DTZ901 - without a zone, so refused
        if at.tzinfo is None:
            hint = "such as 2026-12-01T09:00:00Z; in a query + is written %2B"
            raise InputError("it is no time with a zone", where=name, hint=hint)
        return at
    return text
