"""`gputui --read-only`: a console that schedules never."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.cli.main import run
from gputui.config import Options, ProbeSpec
from gputui.console import console, startup
from gputui.engine.feed import Feed


@pytest.mark.parametrize(("kind", "may_lead"), [("console", False), ("serve", True)])
def test_such_a_console_never_schedules_and_serve_does_all_the_same(tmp_path: Path, kind: str, may_lead: bool) -> None:
    plain = Options(state=tmp_path, probe=ProbeSpec(simulated=1), runtime="process")
    store = bootstrap.open_store(plain)
    try:
        assert bootstrap.make_host(plain, store, Feed(), kind).may_lead
        looking = startup.read_only(plain)
        assert bootstrap.make_host(looking, store, Feed(), kind).may_lead is may_lead
    finally:
        store.close()


def test_the_option_is_for_the_console_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--read-only", "queue"]) == 2
    assert "--read-only is for the console alone" in capsys.readouterr().err


def test_the_option_reaches_the_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Options] = []

    def opened(options: Options, **_: object) -> int:
        seen.append(options)
        return 0

    monkeypatch.setenv("TEXTUAL_DRIVER", "none")  # no terminal is asked for
    monkeypatch.setattr(console, "run", opened)
    assert run(["--state", str(tmp_path), "--config", "/dev/null", "--read-only"]) == 0
    assert seen[0].settings.console.read_only
