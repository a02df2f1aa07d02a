"""`gputui --read-only`: a console that never schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.cli.main import run
from gputui.config import Options, ProbeSpec
from gputui.console import console, startup
from gputui.engine.feed import Feed
from tests.cases import cases


@cases(("kind", "may_lead"), [("console", False), ("serve", True)])
def test_a_read_only_console_never_schedules_but_serve_ignores_the_option(
    tmp_path: Path, kind: str, may_lead: bool
) -> None:
    plain = Options(state=tmp_path, probe=ProbeSpec(simulated=1), runtime="process")
    store = bootstrap.open_store(plain)
    try:
        assert hosting.make_host(plain, store, Feed(), kind).may_lead
        looking = startup.read_only(plain)
        assert hosting.make_host(looking, store, Feed(), kind).may_lead is may_lead
    finally:
        store.close()


def test_the_option_is_only_for_the_console(capsys: pytest.CaptureFixture[str]) -> None:
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
