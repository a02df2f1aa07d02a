"""The status line: its fixed places, and alarms in words beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.style import Style

from gputui.domain.conditions import (
    CAPPED,
    DISK_FULL,
    DRAINED,
    FAILED,
    FOREIGN,
    IDLE,
    INTRUDER,
    KINDS,
    THROTTLED,
    Condition,
    ranked,
)
from gputui.domain.gpu import LOST, SICK, GpuState
from gputui.domain.snapshot import Controls, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.tui.present.cells import AMBER, BLUE, GREEN, PLAIN, RED, VIOLET, Cell, width_of
from gputui.tui.present.status import status_line
from tests.cases import cases
from tests.factories import array, snapshot, view
from tests.tui.sample import HERE, SERVE

BAR = " │ "
SMALL = 80 - len("00:00:00") - 3
"""Cells for the line in a terminal of 80 columns."""
IDLE_LONG = Condition("warning", "", IDLE, "2 GPUs idle 7m: #5, pid 22110 root")


def text(line: Cell) -> str:
    return "".join(words for words, _ in line)


def of(kind: str, gpu: str = "7") -> Condition:
    return Condition(KINDS[kind].severity, f"GPU {gpu} {kind}", kind, subject=gpu, gpu=gpu)


def with_counts(running: int, waiting: int, free: int) -> Snapshot:
    jobs = [array(range(waiting), 9000)] if waiting else []
    jobs += [array(range(running)).evolve(state=JobState.RUNNING)] if running else []
    gpus = [view(n, GpuState.FREE if n < free else GpuState.ALLOCATED) for n in range(8)]
    return snapshot(jobs=jobs, gpus=gpus, leader=HERE, leads_here=True)


_texts = st.text("abc def/训:%", min_size=1, max_size=50).filter(str.strip)
_alarms = st.lists(
    st.builds(of, st.sampled_from(list(KINDS)), st.sampled_from(["0", "7", "gpu12:3"]))
    | st.builds(lambda words: Condition("error", words, words, words), _texts)
    | st.builds(lambda words: Condition("warning", words), _texts)
    | st.just(IDLE_LONG),
    max_size=12,
)


@given(
    st.integers(0, 240),
    st.tuples(st.integers(0, 20_000), st.integers(0, 2_000_000), st.integers(0, 8)),
    _alarms,
    st.booleans(),
    st.sampled_from(["", "!"]),
)
def test_the_line_fits_and_nothing_left_of_the_alarms_moves(
    room: int, counts: tuple[int, int, int], alarms: list[Condition], read_only: bool, key: str
) -> None:
    def shown(seen: Snapshot, found: Sequence[Condition]) -> Cell:
        return status_line(seen, "node1", room, found=found, read_only=read_only, key=key)

    calm, busy = shown(with_counts(0, 0, 0), ()), shown(with_counts(*counts), ranked(alarms))
    assert width_of(busy) <= room
    left, places = (_NUMBER.sub(lambda found: " " * len(found[0]), text(line)) for line in (calm, busy))
    assert places.startswith(left)


_NUMBER = re.compile(r"\d+[kMG]?")


@given(_alarms.filter(lambda found: any(each.severity != "information" for each in found)), st.booleans())
def test_at_80_columns_the_worst_alarm_is_said_in_words(alarms: list[Condition], read_only: bool) -> None:
    found = [each for each in ranked(alarms) if each.kind or each.severity == "warning"]
    line = status_line(with_counts(8, 14, 0), "node1", SMALL, found=found, read_only=read_only, key="!")
    told = text(line).partition(BAR)[2]
    assert told
    assert not re.match(r"[!✗ ]*(\+|and )", told)
    if found[0].gpu:
        assert found[0].gpu in told or re.search(r"\d+ ", told)


@cases(
    ("found", "told"),
    [
        ((), ""),
        ((of(LOST),), "✗ GPU 7 lost  ! shows all"),
        ((of(LOST), IDLE_LONG), "✗ GPU 7 lost  ! 2 idle 7m"),
        ((IDLE_LONG,), "! 2 idle 7m"),
        ((of(LOST), of(LOST, "6"), of(CAPPED)), "✗ 2 lost  ! GPU 7 capped"),
        ((of(LOST), of(THROTTLED), IDLE_LONG), "✗ GPU 7 lost  and 2 more: !"),
        ((of(LOST), of(SICK), of(IDLE), of(CAPPED)), "✗ GPU 7 lost  and 3 more: !"),
        ((of(LOST), of(FOREIGN)), "✗ GPU 7 lost  GPU 7 foreign"),
        ((of(FAILED), of(DRAINED)), "! 1 failed in 1h"),
        ((of(FOREIGN), of(DRAINED)), "GPU 7 foreign  GPU 7 drained"),
    ],
)
def test_a_terminal_of_80_columns(found: tuple[Condition, ...], told: str) -> None:
    line = text(status_line(with_counts(8, 14, 0), "node1", SMALL, found=found, key="!"))
    assert line == f"● sched    8 run   14 wait  0/8 free{BAR if told else ''}{told}"


def test_wide_terminals_name_host_and_alarms_in_full() -> None:
    line = text(status_line(with_counts(8, 14, 0), "node1", 109, found=(of(LOST), IDLE_LONG), key="!"))
    assert line == "node1 │ ● scheduling      │    8 run    14 wait │ 0/8 free │ ✗ GPU 7 lost  ! 2 idle 7m"
    line = text(status_line(with_counts(8, 14, 0), "node1", 189, found=(of(LOST), IDLE_LONG), key="!"))
    assert line == (
        "gputui node1 │ ● scheduling      │    8 running    14 waiting │ 0 of 8 GPUs free"
        " │ ✗ GPU 7 lost  ! 2 GPUs idle 7m: #5, pid 22110 root  ! shows all"
    )


@cases(
    ("states", "short", "wide"),
    [
        ((GpuState.UNKNOWN,) * 4, " –/4 free", "– of 4 GPUs free"),
        ((GpuState.UNKNOWN,) * 3 + (GpuState.ALLOCATED,), " –/4 free", "– of 4 GPUs free"),
        ((GpuState.UNKNOWN,) * 3 + (GpuState.FREE,), " 1/4 free", "1 of 4 GPUs free"),
        ((GpuState.DRAINED,) * 4, " 0/4 free", "0 of 4 GPUs free"),
        ((), " –/– free", "– of – free"),
    ],
)
def test_free_gpus_are_not_counted_while_no_reading_tells(states: tuple[GpuState, ...], short: str, wide: str) -> None:
    gpus = [view(n, state, stale=state is GpuState.ALLOCATED) for n, state in enumerate(states)]
    seen = snapshot(gpus=gpus, leader=HERE, leads_here=True)
    assert text(status_line(seen, "node1", SMALL)).endswith(short)
    assert text(status_line(seen, "node1", 189)).endswith(wide)


def test_the_machine_of_an_engine_elsewhere_is_named_first() -> None:
    here = with_counts(8, 14, 0)
    away = replace(here, nodes=tuple(replace(node, name="gpu1", is_elsewhere=True) for node in here.nodes))
    assert text(status_line(away, "laptop", 189)).startswith("gputui gpu1 from laptop │ ● scheduling")
    assert text(status_line(away, "laptop", 109)).startswith("gpu1 │ ● scheduling")
    lost = status_line(away, "laptop", SMALL, found=(of(LOST),), key="!")
    assert text(lost) == "gpu1 ● sched    8 run   14 wait  0/8 free │ ✗ GPU 7 lost  ! shows all"
    assert "gpu1" not in text(status_line(away, "laptop", 30))


PAUSED = Controls(paused=True, paused_by="root")
ELSEWHERE = replace(SERVE, kind="console")


@cases(
    ("changes", "wide", "narrow", "style"),
    [
        ({}, "● scheduling", "● sched", GREEN),
        ({"controls": PAUSED}, "‖ PAUSED", "‖ PAUSED", AMBER),
        ({"notices": (Notice("error", "disk full", halts=True),)}, "✗ starts nothing", "✗ halted", RED),
        ({"leads_here": False, "leader": None}, "○ no scheduler", "○ nobody", RED),
        ({"leads_here": False, "leader": SERVE}, "◐ serve schedules", "◐ serve", BLUE),
        ({"leads_here": False, "leader": ELSEWHERE}, "◐ another console", "◐ console", BLUE),
        ({"leads_here": False, "leader": replace(SERVE, kind="slurm")}, "● Slurm", "● Slurm", GREEN),
        ({"leads_here": False, "leader": replace(SERVE, kind="kubernetes")}, "● Kubernetes", "● cluster", GREEN),
        (
            {"leads_here": False, "leader": replace(SERVE, silent_for=timedelta(hours=3))},
            "○ not responding",
            "○ silent",
            RED,
        ),
    ],
)
def test_who_schedules_has_one_place(changes: dict[str, object], wide: str, narrow: str, style: Style) -> None:
    seen = replace(with_counts(8, 14, 0), **changes)
    for room, words in ((189, wide), (109, wide), (SMALL, narrow)):
        line = status_line(seen, "node1", room)
        assert words in [part.strip() for part, shown in line if shown == style]
        assert text(line).index(" run") == text(status_line(with_counts(1, 1, 1), "node1", room)).index(" run")


@cases(
    ("kind", "severity", "colour"),
    [
        *((kind, "error", RED) for kind in (LOST, SICK, THROTTLED, DISK_FULL)),
        *((kind, "warning", AMBER) for kind in (IDLE, CAPPED, FAILED, INTRUDER)),
        (FOREIGN, "information", VIOLET),
        (DRAINED, "information", PLAIN),
    ],
)
def test_red_asks_for_action_and_amber_for_a_look(kind: str, severity: str, colour: Style) -> None:
    line = status_line(with_counts(0, 0, 8), "node1", found=(of(kind),))
    assert KINDS[kind].severity == severity
    assert next(style for words, style in line if "7" in words or "failed" in words) == colour
