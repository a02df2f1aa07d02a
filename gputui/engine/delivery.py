"""Telling somebody: a command, a webhook, a mail. Each call may take its whole time-out; workers make it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.message import EmailMessage
from functools import partial
from typing import TypeAlias

from gputui.domain.errors import GputuiError
from gputui.domain.event import Event
from gputui.domain.settings import HookSettings
from gputui.domain.text import plain

Deliver: TypeAlias = Callable[[Event], None]
"""Tells somebody of it, or raises NotDeliveredError."""


class NotDeliveredError(GputuiError):
    """Nobody was told; it may be tried again."""


def sinks(settings: HookSettings, host: str) -> Iterator[tuple[str, Callable[[Event], bool], Deliver]]:
    """Each way of telling that is set: its name, what it wants to hear of, and how it is done."""
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
    """The command with the event as JSON on its standard input, and its main points in the environment."""
    told = {"GPUTUI_EVENT": event.name, "GPUTUI_EVENT_ID": event.id, "GPUTUI_TEXT": event.text}
    if event.is_about_job:
        told |= {"GPUTUI_JOB_ID": str(event.data["id"]), "GPUTUI_JOB_STATE": event.data["state"]}
    _spawn(command, json.dumps(event.document(host)).encode(), seconds, told)


def _spawn(command: tuple[str, ...], given: bytes, seconds: float, environ: dict[str, str]) -> None:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **environ},
            start_new_session=True,  # so that its children can be ended with it
        )
    except OSError as error:
        raise NotDeliveredError(f"{plain(command[0], 200)}: {error.strerror}") from error
    with process:
        try:
            _, errors = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise NotDeliveredError(f"did not end within {seconds:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = plain(errors.decode(errors="replace").strip().rpartition("\n")[2], 200)
        raise NotDeliveredError(f"exit code {process.returncode}" + (f": {last}" if last else ""))


def _post(url: str, host: str, seconds: float, event: Event) -> None:
    import urllib.error
    import urllib.request

    body = json.dumps(event.document(host)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "gputui"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=seconds):
            return
    except urllib.error.HTTPError as error:
        error.close()
        raise NotDeliveredError(f"answered {error.code}") from error
    except (OSError, ValueError) as error:
        raise NotDeliveredError(plain(str(getattr(error, "reason", error)), 200)) from error


def _mail(sendmail: str, to: tuple[str, ...], host: str, seconds: float, event: Event) -> None:
    message = EmailMessage()
    message["To"] = ", ".join(to)
    message["Subject"] = plain(f"[gputui {host}] {event.text}", 150)
    message["Auto-Submitted"] = "auto-generated"
    message["X-Gputui-Event"] = plain(event.id)
    message.set_content(f"{event.text}\n\n{json.dumps(event.document(host), indent=2)}\n")
    _spawn((sendmail, "-t", "-i"), message.as_bytes(), seconds, {})
