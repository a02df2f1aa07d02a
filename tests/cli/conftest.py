"""Fixtures of the commands: an isolated environment and a store in memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from gputui import __version__, bootstrap, thin
from gputui import config as options
from gputui.api.rights import Visibility
from gputui.bootstrap import adapters
from gputui.bootstrap.backend import LocalBackend, Owned
from gputui.cli.main import owned_commands
from gputui.cli.main import run as run_command
from gputui.config import Options, resolve
from gputui.domain.access import Caller, Role
from gputui.domain.decoding import decode_json
from gputui.domain.errors import InputError, ParseLocallyError
from gputui.domain.job import Job
from gputui.domain.settings import AccessSettings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.ports import JobStore
from gputui.ports.backend import CommandLine, DirectBackend
from tests.factories import ACTOR, NOW, FakeClock
from tests.memory_store import MemoryJobStore
from tests.results import Result


class KeptStore(MemoryJobStore):
    """Store that outlives the command that closes it."""

    def close(self) -> None:
        self.closed = True

    def clear(self) -> None:
        """Forget all, for the next row of a table."""
        self.__init__()  # type: ignore[misc]


CALLER = Caller(ACTOR.uid, ACTOR.uid, (), ACTOR.user, Role.OPERATOR)
Run = Callable[..., Result]
_NOTHING_KNOWN = Snapshot(taken_at=NOW)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of this machine and of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith("GPUTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)  # which a scheduler of an earlier test keeps
    monkeypatch.setattr("gputui.runtime.docker.endpoint._recorded", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg-config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.setattr(options, "SITE_CONFIG", tmp_path / "site.toml")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(bootstrap, "clock", lambda: clock)
    return clock


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> KeptStore:
    """Return the store that every command of a test opens."""
    store = KeptStore()
    monkeypatch.setattr(bootstrap, "open_store", lambda options, waiting=None: store)
    monkeypatch.setattr(bootstrap, "has_queue", lambda options: True)
    monkeypatch.setattr(bootstrap, "actor", lambda: ACTOR)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture())
    return store


def picture(base: Snapshot = _NOTHING_KNOWN) -> Callable[[Options, JobStore], Snapshot]:
    """Make `current_snapshot` return the store's jobs in `base`."""

    def current_snapshot(options: Options, store: JobStore, *, planned: bool = True) -> Snapshot:
        jobs = tuple(store.jobs().values())
        order = base.order or tuple(job.id for job in jobs)
        return replace(base, jobs=jobs, controls=store.controls(), order=order)

    return current_snapshot


def local(store: KeptStore) -> DirectBackend:
    """Return a backend that reads this store."""
    owned = Owned(store, lambda: EMPTY, Visibility(AccessSettings()))
    return cast("DirectBackend", LocalBackend(Options(Path("/nonexistent")), owned=owned))


BY_OWNER = thin.COMMANDS | {"gpus_asked_for", "hostile_names", "job_actions", "job_ids", "sweep", "times_everywhere"}
"""Modules of tests whose commands the owner of a queue runs, each by the name of its file.

`test_both_ways` shows that these commands say and do the same in a process of their own.
"""


@pytest.fixture
def run(request: pytest.FixtureRequest, store: KeptStore, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command, in this process or by the owner of the queue."""
    run_one = owned_command if request.module.__name__.rpartition(".test_")[2] in BY_OWNER else run_command

    def run(*arguments: str) -> Result:
        code = run_one(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def hung_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of an engine that never answers, which commands await for a moment only."""
    monkeypatch.setattr(adapters, "_HASTE", timedelta(seconds=0.3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hung.sock"))
        listener.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/hung.sock")
        yield f"unix://{tmp_path}/hung.sock"


def owned_command(arguments: Sequence[str]) -> int:
    """Run a command as the owner of the queue does for a thin client, and print what it says as that does."""
    words = list(arguments)
    if (place := thin.command_in(words)) is None:
        return run_command(words)
    try:
        asked = decode_json(thin.message(words, words[place], __version__).encode(), CommandLine)
        found = resolve(state=words[1] if place else None)
        commands = owned_commands(found, lambda caller: bootstrap.open_backend(found), lambda *refusal: None)
        result = commands(CALLER, asked)
    except (ParseLocallyError, InputError, OSError, UnicodeEncodeError):  # the client runs it itself
        return run_command(words)
    return thin.printed(result.encoded())


def put(store: JobStore, *jobs: Job) -> None:
    """Store jobs unchanged; ids are assigned from 1."""
    with store.transaction() as transaction:
        for job in jobs:
            added = transaction.add(job)
            transaction.put(replace(job, id=added.id))
