"""Telemetry on the page of a job: lines, graphs as wide as fits, and unknown values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta

from gputui.domain.job import Attempt
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import AttemptTelemetry, Consumption, Spread
from gputui.domain.telemetry_series import Measured, Tally, TallyRecord
from gputui.domain.text import width
from gputui.tui.present.detail import telemetry_lines
from tests.cases import cases
from tests.factories import GIB, NOW, sample
from tests.tui.console import Console, until
from tests.tui.test_job_page import opened

ATTEMPT = Attempt(2, started_at=NOW - timedelta(hours=1))
GRAPHS = set("▁▂▃▄▅▆▇█")


def measured(minutes: int = 60, gap: int = 20) -> Measured:
    """Return the telemetry of a job with a wave of load, and a gap of ten minutes after `gap` minutes."""
    tally = Tally(TallyRecord(1, NOW.timestamp() - 60 * minutes))
    for second in range(10, 60 * minutes, 10):
        if gap * 60 < second < (gap + 10) * 60:
            continue
        at = NOW - timedelta(minutes=minutes) + timedelta(seconds=second)
        load = round(0.5 + 0.5 * math.sin(second / 300), 2)
        heat = 40 + 45 * load
        hot = ("power cap",) if load > 0.95 else ()
        used = int(30 * GIB * min(1.0, second / 600))
        tally.add(
            sample(at=at, utilization=load, memory_used=used, power=100 + 600 * load, temperature=heat, throttle=hot)
        )
        tally.add_host(Consumption(1.5 * second, 4 * GIB, 5 * GIB, 1000 * second, 0), at.timestamp())
    return Measured(tally.summary(NOW.timestamp()), tally.series())


def test_on_a_tall_narrow_page_graphs_are_above_the_words() -> None:
    lines = telemetry_lines(ATTEMPT, measured(), 60, is_tall=True)
    place = [label for label, _ in lines].index("power")
    [(graph, _)], [(words, _)] = lines[place][1], lines[place + 1][1]
    assert width(graph) == 60
    assert words.startswith("mean ")
    assert lines[place + 1][0] == ""


def told(found: Measured, room: int, *, has_graphs: bool = True) -> dict[str, str]:
    lines = telemetry_lines(ATTEMPT, found, room, has_graphs=has_graphs)
    return {label: "".join(words for words, _ in line) for label, line in lines}


def drawn(line: str) -> str:
    return "".join(each for each in line if each in GRAPHS)


@cases("room", [80, 110, 200])
def test_graphs_are_as_wide_as_the_room_allows(room: int) -> None:
    lines = told(measured(), room)
    assert list(lines) == [
        "measured",
        "GPU time",
        "GPU use",
        "GPU mem",
        "power",
        "heat",
        "slowed",
        "CPU",
        "memory",
        "disks",
    ]
    widths = {width(line) for label, line in lines.items() if label in {"GPU use", "CPU"}}
    assert max(widths) <= room
    assert lines["measured"].startswith("attempt 2, GPUs for ")
    for label in ("GPU use", "power", "heat", "CPU", "memory"):
        assert len(drawn(lines[label])) >= 14, label
    assert drawn(lines["GPU time"]) == drawn(lines["disks"]) == ""


def test_graphs_have_gaps_and_the_heights_of_the_readings() -> None:
    line = told(measured(), 160)["GPU use"]
    cells = line[: line.index("  mean")]
    assert {"▁", "█"} <= set(cells)
    left, right = math.floor(len(cells) * 20.5 / 60), math.ceil(len(cells) * 29 / 60)
    assert set(cells[left + 1 : right - 1]) == {" "}


def test_without_space_or_series_only_words_are_shown() -> None:
    found = measured()
    for lines in (told(found, 60), told(found, 160, has_graphs=False), told(Measured(found.summary), 160)):
        assert drawn("".join(lines.values())) == ""
        assert lines["GPU use"].startswith("mean ")
    assert told(Measured(), 160) == {}
    cpu = Measured(AttemptTelemetry(cpu=3.0, cpus=Spread(1.0, 1.0, 1.0)))
    assert told(cpu, 160) == {"measured": "attempt 2", "CPU": "3s of CPU time; mean 1, p95 1, peak 1 CPUs"}


async def test_the_page_reads_telemetry_in_a_thread() -> None:
    asked: list[int] = []

    def read(job_id: JobId) -> Mapping[int, Measured]:
        asked.append(job_id)
        return {1: measured()}

    console = Console(measured=read)
    async with opened(console, (160, 60), 104) as (pilot, _):
        await until(pilot, lambda: "GPU-hours allocated" in console.screen_text)
        shown = console.screen_text
        assert "kWh in all" in shown
        assert "1.5" in next(line for line in shown.splitlines() if "of CPU time" in line)
        assert asked == [104]
