"""`gputui top`: frames of the console as plain text."""

from __future__ import annotations

import re
import sys
import time
from datetime import timedelta

import pytest

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.cli import terminal
from gputui.config import Options
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.gpu_history import STEP, Step, TakenStep
from gputui.domain.snapshot import Leader
from gputui.domain.text import width
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.cli.test_gpus import Still
from tests.factories import NOW, job, running, snapshot, uuid, view
from tests.tui.sample import NAMES

LEADER = Leader(812, "node1", "root", "serve", NOW)


@pytest.fixture
def busy(store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> KeptStore:
    """Two GPUs, a job with a strange name on one of them, and a queue of many."""
    put(store, running(1, on=(uuid(0),), name=NAMES[0]), *(job(i, name=NAMES[i % 8], gpus=1) for i in range(2, 30)))
    base = snapshot(gpus=[view(0, job_id=1), view(1)], leader=LEADER)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(base))
    return store


@pytest.mark.usefixtures("busy")
class TestFrame:
    def test_a_frame_has_status_gpus_and_queue_in_plain_lines(self, run: Run) -> None:
        result = run("top")
        lines = result.out.splitlines()
        assert (result.code, result.err) == (0, "")
        assert "serve schedules" in lines[0]
        assert lines[2].split()[:2] == ["GPU", "UTIL"]
        assert " HELD BY · 2x H100 80GB" in lines[2], "the model is said once"
        assert "#1 训练大模型" in lines[3]
        assert lines[5].startswith(" 2 GPUs ")
        assert lines[7].split()[:2] == ["ID", "STATE"]
        assert len(lines) == 8 + 29
        assert "\x1b" not in result.out

    @cases("room", [79, 80, 133])
    def test_columns_stay_aligned_under_wide_names_at_odd_widths(self, run: Run, room: int) -> None:
        lines = [line for line in run("top", "--width", str(room)).out.splitlines() if line]
        assert max(map(width, lines)) <= room
        queue = lines[lines.index(next(line for line in lines if line.split()[:1] == ["ID"])) :]
        gpus_at = width(queue[0][: queue[0].index("GPUS")]) + len("GPUS") - 1
        assert {_at(line, gpus_at) for line in queue[1:]} == {"1"}

    def test_a_frame_keeps_to_its_width_height_and_letters(self, run: Run) -> None:
        assert max(map(width, run("top", "--width", "41").out.splitlines())) == 41
        lines = run("top", "--height", "12").out.splitlines()
        assert len(lines) == 12
        assert lines[-1] == " … and 26 jobs more"
        assert len(run("top", "--height", "4").out.splitlines()) == 4
        plain, strange = run("top", "--ascii").out, run("top").out
        assert plain.isascii()
        assert [width(line) for line in plain.splitlines()] == [width(line) for line in strange.splitlines()]
        assert run("top", "--width", "3").code == 2
        assert run("top", "-n", "-1").code == 2

    def test_several_frames_have_graphs(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        assert "HISTORY" not in run("top", "--width", "160").out
        several = run("top", "-n", "3", "-i", "5s", "--width", "160").out
        assert (several.count("serve schedules"), several.count("HISTORY"), pauses) == (3, 3, [5.0, 5.0])

    def test_one_frame_includes_the_history(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        taken = [TakenStep(NOW - ago * STEP, {uuid(0): Step(ago / 10)}) for ago in range(10, 0, -1)]
        monkeypatch.setattr(bootstrap, "gpu_past", lambda options: taken)
        told = run("top", "--width", "160").out
        assert "HISTORY" in told
        assert "█▅▃▁" in told

    def test_a_terminal_gets_colours_unless_told_not_to(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
        monkeypatch.setattr(terminal, "width", lambda: 100)
        monkeypatch.setenv("TERM", "xterm-16color")
        monkeypatch.delenv("COLORTERM", raising=False)
        monkeypatch.delenv("NO_COLOR", raising=False)
        coloured = run("top").out
        assert re.search(r"\x1b\[92[;m]", coloured)
        assert "38;" not in coloured
        assert "\x1b" not in run("top", "--no-color").out
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in run("top").out


def _at(line: str, cell: int) -> str:
    """Return the text of that cell."""
    return next((line[at] for at in range(len(line)) if width(line[:at]) >= cell), "")


def test_without_a_scheduler_top_reads_the_gpus_itself(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, job(1, name="waits", gpus=1))
    measured = snapshot(gpus=1)
    monkeypatch.setattr(adapters, "measured_snapshot", lambda options, store, probe: measured)
    out = run("top").out
    assert "no scheduler runs" in out
    assert "H100" in out
    assert "waits" in out


def test_the_queue_is_shown_even_without_readable_gpus(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, job(1, name="waits", gpus=1))

    def fails(options: object, store: object, probe: object) -> None:
        raise GputuiError("no driver")

    monkeypatch.setattr(adapters, "measured_snapshot", fails)
    result = run("top")
    assert (result.code, "waits" in result.out) == (0, True)


def test_what_is_read_early_is_waited_for_no_longer_than_by_gpus(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    def made(options: Options, **_: object) -> Still:
        asked.append(options)
        return Still(ProbeReading(ProbeStatus(ProbeCode.UNREACHABLE, "it hangs")))

    monkeypatch.setattr(adapters, "make_probe", made)
    assert "it hangs" in run("--runtime", "process", "top").out
    assert asked[0].settings.runtime.docker_timeout == asked[0].settings.gpus.hang_after == timedelta(seconds=5)
