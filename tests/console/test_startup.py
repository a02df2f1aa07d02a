"""Early probe: it reads GPUs while the console is imported, and the scheduler takes it over."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.bootstrap import adapters, hosting
from gputui.config import Options, ProbeSpec
from gputui.console import startup
from gputui.console.startup import EarlyProbe
from gputui.domain.snapshot import Leader
from gputui.engine.feed import Feed
from gputui.engine.leadership import Leadership
from tests.factories import NOW


class Probe:
    """Probe that counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Probe]:
    probes: list[Probe] = []

    def make(options: Options, store_id: str = "") -> Probe:
        probes.append(Probe())
        return probes[-1]

    monkeypatch.setattr(adapters, "make_probe", make)
    return probes


def test_the_early_probe_reads_at_once_and_the_scheduler_takes_it_over(tmp_path: Path, made: list[Probe]) -> None:
    options = Options(state=tmp_path, runtime="process")
    early = EarlyProbe(options, may_lead=True)
    assert not made
    early.start()
    assert made[0].calls == ["start"]
    store = bootstrap.open_store(options)
    host = hosting.make_host(options, store, Feed(), "console", started=early.take)
    probes: list[object] = [host.open_adapters().probe for _ in range(2)]
    assert probes == made
    assert len(made) == 2
    early.close()
    assert made[0].calls == ["start"]
    store.close()


def test_an_unused_probe_is_ended(tmp_path: Path, made: list[Probe]) -> None:
    early = EarlyProbe(Options(state=tmp_path), may_lead=True)
    early.start()
    early.close()
    assert made[0].calls == ["start", "close"]
    early.start()  # by the scheduler's thread, when the console was closed at once
    assert len(made) == 1


def test_no_early_probe_starts_when_none_is_needed(tmp_path: Path, made: list[Probe]) -> None:
    options = Options(state=tmp_path)
    EarlyProbe(options, may_lead=False).start()
    EarlyProbe(startup.read_only(options), may_lead=True).start()
    EarlyProbe(Options(state=tmp_path, probe=ProbeSpec(simulated=2)), may_lead=True).start()
    leadership = Leadership(tmp_path)
    assert leadership.acquire(Leader(os.getpid(), "here", "alice", "serve", NOW))
    EarlyProbe(options, may_lead=True).start()
    leadership.release()
    assert not made
    EarlyProbe(options, may_lead=True).start()
    assert made


def test_a_missing_driver_prints_nothing_on_the_terminal(
    tmp_path: Path, made: list[Probe], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for logger in (logging.getLogger(), logging.getLogger("gputui")):
        monkeypatch.setattr(logger, "handlers", [])  # as in a command
    with closing(EarlyProbe(Options(state=tmp_path), may_lead=True)) as early:
        early.start()
        logging.getLogger("gputui.gpus.supervisor").warning("there is no driver")
    assert capfd.readouterr().err == ""
