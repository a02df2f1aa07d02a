"""Fixtures of the commands: an isolated environment and a store in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli.main import run as run_command
from gputui.config import Options, options
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.ports import JobStore
from tests.factories import ACTOR, NOW, FakeClock
from tests.memory_store import MemoryJobStore
from tests.results import Result


class KeptStore(MemoryJobStore):
    """Store that outlives the command that closes it."""

    def close(self) -> None:
        self.closed = True


Run = Callable[..., Result]
_NOTHING_KNOWN = Snapshot(taken_at=NOW)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of this machine and of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith("GPUTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)
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


@pytest.fixture
def run(store: KeptStore, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command."""

    def run(*arguments: str) -> Result:
        code = run_command(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


def put(store: JobStore, *jobs: Job) -> None:
    """Store jobs unchanged; ids are assigned from 1."""
    with store.transaction() as transaction:
        for job in jobs:
            added = transaction.add(job)
            transaction.put(replace(job, id=added.id))
