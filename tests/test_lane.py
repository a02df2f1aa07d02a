"""The test line leaves out optional parts that have not changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lane import IS_LONG, PARTS, unchanged_parts

pytestmark = pytest.mark.skipif(IS_LONG, reason="the long lane leaves out no part")


def test_a_part_runs_when_its_code_or_its_tests_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUTUI_TEST_REQUIRE", raising=False)
    trace = tmp_path / "gputui" / "replay" / "trace.py"
    trace.parent.mkdir(parents=True)
    trace.write_text("")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "begin")):
        subprocess.run(("git", "-C", str(tmp_path), *words), check=True)
    assert unchanged_parts(tmp_path) == tuple(PARTS)
    trace.write_text("# changed")
    new = tmp_path / "tests" / "web" / "test_new.py"
    new.parent.mkdir(parents=True)
    new.write_text("")
    assert set(PARTS) - set(unchanged_parts(tmp_path)) == {"replay", "web"}
    monkeypatch.setenv("GPUTUI_TEST_REQUIRE", "")
    assert unchanged_parts(tmp_path) == ()


def test_without_git_all_parts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUTUI_TEST_REQUIRE", raising=False)
    assert unchanged_parts(tmp_path) == ()
