"""Delivery to hooks: commands, a webhook, mail."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.event import Event, disk_low, ended, weekly_report
from gputui.domain.settings import HookSettings
from gputui.domain.state import JobState
from gputui.engine.hooks import Deliver, NotDeliveredError, sinks
from tests.cases import cases
from tests.factories import NOW, running
from tests.waiting import until

FAILED = ended(
    running(7, name="bad\nname\x1b[31m").evolve(
        state=JobState.FAILED, ended_at=NOW, exit_code=3, cause=Cause(CauseCode.NON_ZERO_EXIT, "exit code 3")
    )
)
DISK = disk_low("/state", 5, "5B left", NOW)


def only(settings: HookSettings) -> Deliver:
    [(_, _, deliver)] = sinks(settings, "atlas")
    return deliver


def wanted(settings: HookSettings, event: Event) -> bool:
    [(_, wants, _)] = sinks(settings, "atlas")
    return wants(event)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_commands_of_hooks(tmp_path: Path) -> None:
    # a command gets JSON and the main points
    command = script(tmp_path / "hook", f'cat > {tmp_path}/given; echo "$GPUTUI_EVENT $GPUTUI_JOB_ID" > {tmp_path}/env')
    only(HookSettings(on_job_end=(command,)))(FAILED)
    told = json.loads((tmp_path / "given").read_text())
    assert (told["event"], told["host"], told["job"]["id"], told["job"]["exit_code"]) == ("job_failed", "atlas", 7, 3)
    assert "\x1b" not in told["text"]
    assert (tmp_path / "env").read_text() == "job_failed 7\n"
    # commands get the events they ask for
    assert wanted(HookSettings(on_job_end=("x",)), FAILED)
    assert not wanted(HookSettings(on_job_end=("x",)), DISK)
    assert wanted(HookSettings(on_notice=("x",)), DISK)
    assert not wanted(HookSettings(mail_to=("a@b",)), ended(running(1).evolve(state=JobState.COMPLETED, ended_at=NOW)))
    assert list(sinks(HookSettings(), "atlas")) == []
    # a missing command is reported
    with pytest.raises(NotDeliveredError, match="No such file"):
        only(HookSettings(on_job_end=(str(tmp_path / "none"),)))(FAILED)


@cases(
    ("text", "what"),
    [("echo broken >&2; exit 4", "exit code 4: broken"), ("kill -9 $$", "exit code -9")],
)
def test_a_failed_command_is_reported_with_its_exit_code(tmp_path: Path, text: str, what: str) -> None:
    deliver = only(HookSettings(on_job_end=(script(tmp_path / "hook", text),)))
    with pytest.raises(NotDeliveredError, match=what):
        deliver(FAILED)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    command = script(tmp_path / "hook", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    settings = HookSettings(on_job_end=(command,))
    deliver = only(HookSettings(on_job_end=(command,), timeout=settings.timeout / 60))
    before = time.monotonic()
    with pytest.raises(NotDeliveredError, match=r"did not end within 0\.5 s"):
        deliver(FAILED)
    assert time.monotonic() - before < 20
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_running(child), "it runs on")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Receiver(BaseHTTPRequestHandler):
    answer = 204
    location = ""
    bodies: ClassVar[list[dict[str, object]]]

    def do_POST(self) -> None:
        type(self).bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.answer)
        if self.location:
            self.send_header("Location", self.location)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[type[Receiver], str]]:
    class Own(Receiver):
        bodies: ClassVar[list[dict[str, object]]] = []

    with serving(Own) as url:
        yield Own, url


@contextmanager
def serving(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yield the address of a server of this kind."""
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


def test_webhooks(receiver: tuple[type[Receiver], str]) -> None:
    # a webhook gets the same JSON
    server, url = receiver
    only(HookSettings(webhook=url))(FAILED)
    [body] = server.bodies
    assert body == json.loads(json.dumps(FAILED.document("atlas")))
    server.answer = 503
    with pytest.raises(NotDeliveredError, match="answered 503"):
        only(HookSettings(webhook=url))(FAILED)
    # a webhook without a server says so
    with pytest.raises(NotDeliveredError, match="refused"):
        only(HookSettings(webhook="http://127.0.0.1:9/"))(FAILED)


def test_mails(tmp_path: Path) -> None:
    # mail goes through sendmail and no name adds a header
    sendmail = script(tmp_path / "sendmail", f'echo "$@" > {tmp_path}/args; cat > {tmp_path}/mail')
    only(HookSettings(mail_to=("ops@example.org", "b@example.org"), sendmail=sendmail))(FAILED)
    mail = message_from_bytes((tmp_path / "mail").read_bytes(), policy=default)
    assert (tmp_path / "args").read_text() == "-t -i\n"
    assert mail["To"] == "ops@example.org, b@example.org"
    assert mail["Subject"].strip().startswith("[gputui atlas] Job 7 bad")
    assert "failed" in mail["Subject"]
    assert json.loads(mail.get_content().partition("\n\n")[2])["job"]["id"] == 7
    assert os.linesep not in mail["Subject"]
    # a weekly report is mailed with its page and posted without
    sendmail = script(tmp_path / "sendmail", f"cat > {tmp_path}/mail")
    page = f"<!doctype html><p>é {'long line ' * 500}</p>\n"
    made = {"table": "TENANT  JOBS\nälice   3", "report": {"total": {"gpu_hours": 1, "jobs": 3}}, "page": page}
    event = weekly_report(made, NOW)
    only(HookSettings(mail_to=("ops@example.org",), sendmail=sendmail))(event)
    content = (tmp_path / "mail").read_bytes()
    mail = message_from_bytes(content, policy=default)
    body = mail.get_body(("plain",))
    [attached] = mail.iter_attachments()
    assert body is not None
    assert body.get_content() == f"{event.text}\n\nTENANT  JOBS\nälice   3\n"
    assert (attached.get_content_type(), attached.get_filename()) == ("text/html", "gputui-report-2026-03-02.html")
    assert attached.get_content() == page
    assert max(map(len, content.splitlines())) < 999
    assert event.document("atlas")["report"].keys() == {"table", "report"}


def test_a_process_with_thousands_of_descriptors_runs_commands(tmp_path: Path) -> None:
    """select() refuses descriptors above 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    opened = [os.open("/dev/null", os.O_RDONLY)]
    try:
        while opened[-1] < 1100:
            opened.append(os.dup(opened[0]))
        with pytest.raises(NotDeliveredError, match="exit code 3"):
            only(HookSettings(on_job_end=(script(tmp_path / "hook", "echo no >&2; exit 3"),)))(FAILED)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_flood_of_errors_is_not_kept(tmp_path: Path) -> None:
    flood = "head -c 64M /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo last words >&2; exit 3"
    deliver = only(HookSettings(on_job_end=(script(tmp_path / "hook", flood),)))
    before = peak()
    with pytest.raises(NotDeliveredError, match="exit code 3: last words"):
        deliver(FAILED)
    assert peak() - before < 16 * 1024


def peak() -> int:
    """Return the peak memory of this process, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_command_that_reads_nothing_and_leaves_a_child_behind_ends_at_once(tmp_path: Path) -> None:
    deliver = only(HookSettings(on_job_end=(script(tmp_path / "hook", "sleep 600 >&2 &"),)))
    before = time.monotonic()
    deliver(FAILED)
    assert time.monotonic() - before < 15


class Slow(Receiver):
    """Sends a byte every tenth of a second and never ends."""

    drips = "head"

    def do_POST(self) -> None:
        if self.drips == "body":
            self.send_response(500)
            self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"x")
                time.sleep(0.1)


@cases(("drips", "what"), [("head", "did not answer within 0.5 s"), ("body", "answered 500")])
def test_a_server_that_answers_byte_by_byte_is_abandoned(drips: str, what: str) -> None:
    kind = type("Own", (Slow,), {"bodies": [], "drips": drips})
    with serving(kind) as url:
        before = time.monotonic()
        with pytest.raises(NotDeliveredError, match=what):
            only(HookSettings(webhook=url, timeout=timedelta(seconds=0.5)))(FAILED)
        assert time.monotonic() - before < 10


def test_a_slow_tls_handshake_is_abandoned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(NotDeliveredError, match=r"did not answer within 0\.5 s"):
            only(HookSettings(webhook=url, timeout=timedelta(seconds=0.5)))(FAILED)


@cases("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(receiver: tuple[type[Receiver], str], code: int) -> None:
    server, url = receiver
    server.bodies.clear()
    server.answer, server.location = code, url.replace("/hook", "/elsewhere")
    with pytest.raises(NotDeliveredError, match=f"answered {code}, a redirect to http://127.*elsewhere"):
        only(HookSettings(webhook=url))(FAILED)
    assert len(server.bodies) == 1


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    with serving(type("Own", (Receiver,), {"bodies": []})) as plain_url, pytest.raises(NotDeliveredError):
        only(HookSettings(webhook=plain_url.replace("http:", "https:")))(FAILED)


def test_a_proxy_of_the_environment_is_used(
    receiver: tuple[type[Receiver], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = receiver
    monkeypatch.setenv("http_proxy", url.removesuffix("/hook"))
    monkeypatch.setenv("no_proxy", "")
    only(HookSettings(webhook="http://hooks.example.org/x"))(FAILED)
    assert len(server.bodies) == 1
