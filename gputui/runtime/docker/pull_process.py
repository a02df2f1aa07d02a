"""Image pulls, each in its own process, so that a hanging pull can be ended at any time.

docker-py waits without limit for a registry that does not answer, and a blocking call in a thread cannot be ended. The
engine aborts a pull as soon as the connection that requested it is closed.

Credentials come from the file of `docker login` and its helper programs. What cannot be used is no reason not to pull:
`docker pull` goes on without it too, and most images are public. But it is told, for it is the likely reason when the
registry then refuses. docker-py's own search raises errors for it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.errors import Cause, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.domain.text import format_duration, format_limit
from gputui.runtime.docker.connection import cause_of, fault
from gputui.runtime.docker.endpoint import config_directory, environment, read_settings

if TYPE_CHECKING:
    from docker import APIClient

HELPER_PATIENCE = 20.0
"""Seconds that a helper may take: one that waits for somebody to unlock a keyring never answers."""
_TOKEN_USER = "<token>"  # noqa: S105 - what Docker calls the user of a token
_FIELDS = ("username", "password", "identitytoken", "registrytoken")
_NONE_STORED = ("credentials not found", "no credentials", "credentials server url is missing")
_LONGEST_WORDS = 200


class Credentials(Struct, frozen=True):
    """Credentials for one registry."""

    auth: Mapping[str, str] = {}
    """Fields of the engine's AuthConfig; empty: none are stored."""
    problem: str = ""
    """Reason why stored credentials cannot be used."""


class _UnusableError(Exception):
    """Credentials that cannot be used; the text says why, and names the file or helper."""


def _object(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = settings.get(key) or {}
    if not isinstance(found, dict):
        raise _UnusableError(f"{key} in {_login_file()} is not an object")
    return found


def find_credentials(image: str, asking: Callable[[str], None] = lambda _: None) -> Credentials:
    """Return the credentials for the image's registry; `asking` is called with the name of a helper that is asked.

    Raises docker.errors.InvalidRepository for an invalid name.
    """
    from docker.auth import INDEX_NAME, INDEX_URL, resolve_index_name, resolve_repository_name
    from docker.utils import parse_repository_tag

    registry, _ = resolve_repository_name(parse_repository_tag(image)[0])
    server = INDEX_URL if registry == INDEX_NAME else registry
    try:
        settings = _login_settings()
        if helper := str(_object(settings, "credHelpers").get(server) or settings.get("credsStore") or ""):
            asking(helper)
            if found := _ask_helper(helper, server):
                return Credentials(found)
        # else those that stand in the file itself
        entries = _object(settings, "auths")
        host = resolve_index_name(server)
        same = (one for key, one in entries.items() if resolve_index_name(key) == host)
        entry = entries.get(server) or next(same, None)
        if not entry:
            return Credentials()
        try:
            stored = {key: str(entry[key]) for key in _FIELDS if entry.get(key)}
            if entry.get("auth"):
                user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
                stored |= {"username": user, "password": password.rstrip("\0")}
        except (ValueError, TypeError, AttributeError) as error:
            what = f"the entry for {host} in {_login_file()} is damaged: run `docker login {host}`"
            raise _UnusableError(what) from error
        return Credentials({**stored, "serveraddress": server} if stored else {})
    except _UnusableError as error:
        return Credentials(problem=str(error))


def credential_warnings() -> Iterator[str]:
    """Yield what prevents the use of stored credentials, as far as it shows without asking a helper."""
    effect = "images are pulled without those credentials"
    try:
        settings = _login_settings()
        helpers = _object(settings, "credHelpers")
    except _UnusableError as error:
        yield f"{error}: {effect}; repair the file"
        return
    for helper in dict.fromkeys(str(one) for one in (settings.get("credsStore"), *helpers.values()) if one):
        if shutil.which(_program(helper)) is None:
            yield f"{_missing_helper(helper)}: {effect}; install it, or remove it from the file and `docker login`"


def _login_file() -> Path:
    return config_directory() / "config.json"


def _login_settings() -> Mapping[str, Any]:
    try:
        found = json.loads(read_settings(_login_file()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"it is not JSON in line {getattr(error, 'lineno', 1)}"
        raise _UnusableError(f"{_login_file()} cannot be read ({why})") from error
    if not isinstance(found, dict):
        raise _UnusableError(f"{_login_file()} is not a JSON object")
    return found


def _program(helper: str) -> str:
    return f"docker-credential-{helper}"


def _missing_helper(helper: str) -> str:
    return f"{_program(helper)}, which {_login_file()} names, is not on the PATH"


def _ask_helper(helper: str, server: str) -> Mapping[str, str]:
    name = _program(helper)
    if (program := shutil.which(name)) is None:
        raise _UnusableError(_missing_helper(helper))
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen([program, "get"], stdin=pipe, stdout=pipe, stderr=pipe) as process:  # noqa: S603 - the user's config.json names it, as for docker
            try:
                out, err = process.communicate(server.encode(), timeout=HELPER_PATIENCE)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise _UnusableError(f"{name} did not answer within {HELPER_PATIENCE:g} s") from error
    except OSError as error:
        raise _UnusableError(f"{program} cannot be run: {error.strerror}") from error
    if process.returncode:
        said = " ".join((out or err).decode(errors="replace").split())[:_LONGEST_WORDS]
        if said.lower().startswith(_NONE_STORED):
            return {}
        raise _UnusableError(f"{name} failed with code {process.returncode}{said and f': {said}'}")
    try:
        found = json.loads(out)
        user, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _UnusableError(f"{name} answered with something else than credentials") from error
    if not secret:
        return {}
    if user == _TOKEN_USER:
        return {"identitytoken": secret, "serveraddress": server}
    return {"username": user, "password": secret, "serveraddress": server}


_DONE = {"Download complete", "Verifying Checksum", "Extracting", "Pull complete", "Already exists"}
_RATE_LIMIT = re.compile("rate.?limit|too ?many ?requests", re.IGNORECASE)
"""Words of a registry that refuses for a while, whatever the status: 429, or 403 "denied"."""
_NO_RIGHTS = re.compile("denied|unauthorized|authentication required|no basic auth", re.IGNORECASE)
_NO_MOVE = ("Retrying", "Waiting")
_LOOK_EVERY = 0.2
"""Seconds between two checks for cancellation."""
_TELL_STALL_AFTER = 60.0
"""Seconds without progress after which the message mentions it."""
_SAY_EVERY = 1.0
"""Seconds between signs of progress that do not change the message."""


class PullProgress(Struct, eq=False):
    """Progress of a pull: bytes received of the layers known so far."""

    _layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    _share: float = 0.0
    _said: str = ""
    _states: dict[str, tuple[str, object]] = field(default_factory=dict)
    moves: int = 0
    """Number of events that made progress; waiting for a retry does not count."""

    def update(self, event: Mapping[str, Any]) -> str | None:
        layer, status = event.get("id"), str(event.get("status", ""))
        detail = event.get("progressDetail") or {}
        state = (status, detail.get("current"))
        if self._states.get(layer or "") != state and not status.startswith(_NO_MOVE):
            self._states[layer or ""] = state
            self.moves += 1
        if layer and status == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif layer in self._layers and status in _DONE:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        words = "pulling"
        if total := sum(each[1] for each in self._layers.values()):
            # never decreases, although late layers make the total larger
            self._share = max(self._share, sum(each[0] for each in self._layers.values()) / total)
            words = f"pulling {self._share:.0%}".replace("%", " %")
        if status == "Extracting" and self._share == 1:
            words = "unpacking"
        before, self._said = self._said, words
        return words if words != before else None


def has_image(client: APIClient, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.inspect_image(image)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return False
    return True


def pull(client: APIClient, image: str, tell: Callable[[str | None], None]) -> None:
    """Pull the image, reporting progress as messages, or as None for progress without a new message.

    Raises RuntimeFault with a cause that distinguishes faults of the job from those of the registry.
    """
    from docker.errors import APIError

    found = find_credentials(image, lambda helper: tell(f"asking docker-credential-{helper}"))
    without = f", without credentials: {found.problem}" if found.problem else ""
    progress, moves = PullProgress(), 0
    try:
        for event in client.pull(image, stream=True, decode=True, auth_config=dict(found.auth)):
            if "error" in event:
                raise pull_fault(image, str(event["error"]), found.problem)
            words = progress.update(event)
            if words or progress.moves > moves:
                moves = progress.moves
                tell(words and f"{words}{without}")
    except APIError as error:
        raise pull_fault(image, str(error.explanation or error), found.problem) from error


def pull_fault(image: str, text: str, problem: str = "") -> RuntimeFault:
    """Return the error for a failed pull: the job's fault if the image does not exist, else the network's or machine's.

    `problem`: why stored credentials could not be used. Then a refusal for want of rights is the machine's fault.
    """
    cause = cause_of(text)
    is_for_want_of_rights = bool(problem and _NO_RIGHTS.search(text))
    if cause.code is CauseCode.DISK_FULL:
        return fault(text)
    if cause.code is CauseCode.IMAGE_NOT_FOUND and not (is_for_want_of_rights or _RATE_LIMIT.search(text)):
        return fault(text)
    why = f"; it was pulled without credentials: {problem}" if problem else ""
    hint = "repair it, or `docker login`" if is_for_want_of_rights else "is the registry up?"
    return RuntimeFault(Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {cause.text}{why}"), hint=hint)


class PullRequest(msgspec.Struct):
    """Request to the pull process, as a line of JSON."""

    image: str
    settings: RuntimeSettings


class PullReply(msgspec.Struct, omit_defaults=True):
    """Reply of the pull process, as a line of JSON; an empty one is a sign of progress."""

    words: str | None = None
    cause: Cause | None = None
    """Cause of a failure, in the last reply."""
    hint: str | None = None
    is_done: bool = False
    """True if the image is present, in the last reply."""


def pull_by_process(
    image: str, settings: RuntimeSettings, tell: Callable[[str], None], cancelled: threading.Event
) -> None:
    """Pull in a process of its own, and return once the image is present.

    Raises RuntimeFault when the engine or the registry refuses, when there is no progress for
    `RuntimeSettings.pull_stall`, and when `cancelled` is set.
    """
    # -P: keeps a json.py in the current directory from being imported instead of Python's own
    command = [sys.executable, "-P", "-m", "gputui.runtime.docker.pull_process"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - this Python, and our own module
        command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0, start_new_session=True, env=environment()
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(PullRequest(image, settings)) + b"\n")
        _follow(process, image, settings.pull_stall, tell, cancelled)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with any ssh that it started
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:  # stuck in the kernel
            threading.Thread(target=process.wait, name="pull-undertaker", daemon=True).start()


def _follow(
    process: subprocess.Popen[bytes],
    image: str,
    stall: timedelta,
    tell: Callable[[str], None],
    cancelled: threading.Event,
) -> None:
    assert process.stdout is not None
    descriptor, rest = process.stdout.fileno(), b""
    words, told, moved_at = "pulling", "", time.monotonic()
    readable = select.poll()  # select() takes no descriptors above 1023
    readable.register(descriptor, select.POLLIN)
    while True:
        if cancelled.is_set():
            raise RuntimeFault(Cause(CauseCode.CANCELLED, f"the pull of {image} was cancelled"))
        if readable.poll(1000 * _LOOK_EVERY):
            if not (data := os.read(descriptor, 65536)):
                raise _failed(image, f"the pull ended with code {process.wait()}")
            *lines, rest = (rest + data).split(b"\n")
            for said in (decode_json(line, PullReply) for line in lines):
                moved_at = time.monotonic()
                words = said.words or words
                if said.cause is not None and said.cause.code is CauseCode.RUNTIME_UNAVAILABLE:
                    raise RuntimeUnavailableError(said.cause.text, hint=said.hint)
                if said.cause is not None:
                    raise RuntimeFault(said.cause, hint=said.hint)
                if said.is_done:
                    return
        idle = time.monotonic() - moved_at
        if idle > stall.total_seconds():
            raise _failed(image, f"no progress for {format_limit(stall)}")
        shown = words
        if idle >= _TELL_STALL_AFTER:
            shown = f"{words}, no progress for {format_duration(timedelta(seconds=idle // 10 * 10))}"
        if shown != told:
            told = shown
            tell(shown)


def _failed(image: str, why: str) -> RuntimeFault:
    cause = Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {why}")
    return RuntimeFault(cause, hint="does the registry answer?")


def main() -> None:
    """Pull one image for the parent process, and end when the parent does."""
    from gputui.runtime.docker.connection import Connection

    def end_with_parent() -> None:
        while os.read(0, 1024):  # until its end of standard input is closed
            pass
        os._exit(1)

    asked = decode_json(sys.stdin.buffer.readline(), PullRequest)
    threading.Thread(target=end_with_parent, daemon=True).start()
    said_at = 0.0

    def tell(words: str | None) -> None:
        nonlocal said_at
        if words is not None or time.monotonic() - said_at >= _SAY_EVERY:
            said_at = time.monotonic()
            _send_reply(PullReply(words))

    last = PullReply(is_done=True)
    try:
        Connection(asked.settings).call(lambda client: pull(client, asked.image, tell), patient=False, is_long=True)
    except RuntimeFault as error:
        last = PullReply(cause=error.cause, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - the border of this process: every failure becomes a reply
        text = f"cannot pull {asked.image}: {type(error).__name__}: {error}"
        last = PullReply(cause=Cause(CauseCode.PULL_FAILED, text))
    _send_reply(last)


def _send_reply(said: PullReply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
