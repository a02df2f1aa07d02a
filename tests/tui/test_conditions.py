"""Conditions: each cause, their order, the words of the status line, since when, and their end."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace
from rich.style import Style

from gputui.cli.demo import HINT as DEMO_HINT
from gputui.console.console import FIRST_HINT
from gputui.domain.conditions import MOST_FAILURES, Condition, ConditionTracker, conditions
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import (
    DiskUse,
    Drain,
    GpuFault,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    ProbeCode,
    ProbeStatus,
)
from gputui.domain.snapshot import EMPTY, Controls, Leader, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.tui.present.cells import AMBER, PLAIN, RED, VIOLET, Cell
from gputui.tui.present.status import status_line
from gputui.tui.screens.help import notice_lines
from tests.cases import cases
from tests.factories import NOW, job, sample, snapshot, uuid, view
from tests.tui.console import Console, on_screen
from tests.tui.sample import HERE, HOST, OK, rich_snapshot

AGO = NOW - timedelta(minutes=20)
SECOND = timedelta(seconds=1)


def text(cell: Cell) -> str:
    return "".join(words for words, _ in cell)


def of_gpu(state: GpuState = GpuState.ALLOCATED, **changes: object) -> Snapshot:
    return healthy(view(6, state, **changes))


def healthy(*views: GpuView, **changes: object) -> Snapshot:
    """Return a healthy node, except for these GPUs and changes."""
    made = snapshot(gpus=[view(0), *views], leader=HERE, leads_here=True)
    return replace(made, nodes=(replace(made.nodes[0], probe=OK),), **changes)


def of_node(**changes: object) -> Snapshot:
    made = healthy()
    return replace(made, nodes=(replace(made.nodes[0], **changes),))


def slowed(*reasons: str) -> Snapshot:
    return of_gpu(sample=sample(6, throttle=reasons, temperature=91.0, power=640.0, power_limit=700.0))


def disk(used: float, full_in: timedelta | None = None) -> Snapshot:
    found = DiskUse("/data", ("state",), 1000, round(1000 * (1 - used)), full_in)
    return of_node(host=replace(HOST, disks=(found,)))


def failed(*ids: int, state: JobState = JobState.FAILED, at: timedelta = timedelta(minutes=20)) -> Snapshot:
    return healthy(jobs=tuple(job(i, name=f"train-{i}").evolve(state=state, ended_at=NOW - at) for i in ids))


LOST, XID = Health(HealthCode.LOST, "fell off the bus"), Health(HealthCode.XID, "Xid 48: uncorrectable memory error")
CONTAINER = Holder("container", "jupyter", "carol", image="jupyter:7")
PROCESS = Holder("process", "python", "eve", pid=4711)
DOCKER = RuntimeStatus("docker", up=False, text="Docker does not answer", since=AGO)
FAULT = Controls(faults={uuid(6): GpuFault("Xid 48", AGO)})
SILENT = Leader(812, "node1", "root", "serve", AGO, silent_for=timedelta(minutes=3))

CAUSES: dict[str, tuple[Callable[[], Snapshot], str, Style | None, str]] = {
    "lost": (lambda: of_gpu(health=LOST), "✗ GPU 6 lost", RED, "gputui doctor"),
    "sick": (lambda: replace(of_gpu(health=XID), controls=FAULT), "✗ GPU 6 sick", RED, "gputui resume 6"),
    "not read": (lambda: of_gpu(stale=True, age=timedelta(minutes=20)), "! GPU 6 not read", AMBER, "gputui doctor"),
    "throttled": (lambda: slowed("too hot", "power cap"), "✗ GPU 6 throttled", RED, "check cooling"),
    "power-capped": (lambda: slowed("power cap"), "! GPU 6 capped", AMBER, "nvidia-smi -i 6 -pl"),
    "foreign container": (
        lambda: of_gpu(GpuState.FOREIGN, holders=(CONTAINER,)),
        "GPU 6 in foreign use",
        VIOLET,
        "shows its processes",
    ),
    "foreign process beside a job": (
        lambda: of_gpu(holders=(Holder("job", "train"), PROCESS), job_id=5),
        "! GPU 6 shared with a foreign process",
        AMBER,
        "shows its processes",
    ),
    "drained": (
        lambda: of_gpu(GpuState.DRAINED, drain=Drain("fan noise", "alice", AGO)),
        "GPU 6 drained",
        PLAIN,
        "gputui resume 6",
    ),
    "hung driver": (
        lambda: of_node(probe=ProbeStatus(ProbeCode.WEDGED, "the driver hangs", AGO)),
        "✗ driver hung",
        RED,
        "",
    ),
    "hung driver at start": (
        lambda: of_node(gpus=(), probe=ProbeStatus(ProbeCode.WEDGED_AT_START, "the driver hangs", AGO)),
        "✗ driver hung",
        RED,
        "",
    ),
    "docker down": (lambda: of_node(runtimes=(DOCKER,)), "✗ docker down", RED, ""),
    "disk nearly full": (lambda: disk(0.98), "! /data 98% full", AMBER, "queue and logs need room"),
    "disk full": (lambda: disk(1.0), "✗ /data 100% full", RED, "queue and logs need room"),
    "disk that fills up": (lambda: disk(0.5, timedelta(minutes=25)), "! /data full in 25m00s", AMBER, ""),
    "disk below its floor": (
        lambda: healthy(notices=(Notice("warning", "5G left on the disk of /data", short="disk low"),)),
        "! disk low",
        AMBER,
        "",
    ),
    "queue that cannot be written": (
        lambda: healthy(notices=(Notice("error", "no space left", halts=True, short="disk full"),)),
        "✗ disk full",
        RED,
        "",
    ),
    "failures": (lambda: failed(7, 8), "! 2 failed in 1h", AMBER, ""),
    "nobody scheduling": (
        lambda: replace(healthy(), leader=None, leads_here=False),
        "○ no scheduler",
        RED,
        "",
    ),
    "a scheduler that hangs": (
        lambda: replace(healthy(), leader=SILENT, leads_here=False),
        "○ not responding",
        RED,
        "",
    ),
    "paused queue": (
        lambda: healthy(controls=Controls(paused=True, paused_by="root")),
        "‖ PAUSED",
        AMBER,
        "",
    ),
}


@cases("name", CAUSES)
def test_each_condition_is_shown_in_words_and_colour_until_it_is_over(name: str) -> None:
    make, words, style, todo = CAUSES[name]
    seen = make()
    found = conditions(seen, NOW)
    line = status_line(seen, "node1", found=found)
    assert (words, style) in [(part.rstrip(), shown) for part, shown in line]
    if name != "a scheduler that hangs":  # its notice is made where the snapshot is
        assert todo in found[0].todo
        assert words.startswith("✗ ") is (found[0].severity == "error" and not words.startswith("○"))
    over = conditions(healthy(), NOW)
    assert over == ()
    assert words not in text(status_line(healthy(), "node1", found=over))


@cases(
    ("silent", "words"),
    [
        (1, "node n1 not read: ssh refuses"),
        (2, "nodes n1, n2 not read; n1: ssh refuses"),
        (4, "nodes n1, n2, n3, n4 not read; n1: ssh refuses"),
        (6, "nodes n1, n2, n3, n4 and 2 more not read; n1: ssh refuses"),
    ],
)
def test_unread_nodes_of_a_cluster_are_one_condition(silent: int, words: str) -> None:
    refused = ProbeStatus(ProbeCode.UNREACHABLE, "no readings: ssh refuses", AGO)
    read = snapshot(gpus=1).nodes[0]
    unread = (replace(read, name=f"n{number}", probe=refused) for number in range(1, silent + 1))
    seen = snapshot(leader=replace(HERE, kind="slurm"))
    found = conditions(replace(seen, nodes=(replace(read, probe=OK), *unread)), NOW)
    assert [each.text for each in found if each.severity == "warning"] == [words]


def test_conditions_say_since_when_they_last() -> None:
    for name in ("sick", "not read", "drained", "hung driver", "docker down", "failures"):
        assert conditions(CAUSES[name][0](), NOW)[0].since == AGO, name


def test_harmless_states_are_not_conditions() -> None:
    assert conditions(EMPTY, NOW) == ()
    assert conditions(slowed("sync boost"), NOW) == ()
    assert conditions(disk(0.9), NOW) == ()
    assert conditions(disk(0.5, timedelta(hours=2)), NOW) == ()
    assert conditions(failed(7, state=JobState.CANCELLED), NOW) == ()
    assert conditions(failed(7, at=timedelta(minutes=61)), NOW) == ()


def all_at_once() -> Snapshot:
    views = [
        view(1, GpuState.DRAINED, drain=Drain("", "alice", AGO)),
        view(2, sample=sample(2, throttle=("power cap",))),
        view(3, GpuState.FOREIGN, holders=(CONTAINER,)),
        view(4, sample=sample(4, throttle=("too hot",))),
        *(view(index, health=LOST) for index in (5, 6, 7)),
    ]
    jobs = failed(7, 8).jobs
    made = healthy(*views, jobs=jobs, notices=(Notice("warning", "live-restore is off"),))
    return replace(made, nodes=(replace(made.nodes[0], runtimes=(DOCKER,)),))


def test_the_worst_condition_comes_first_and_the_rest_is_counted() -> None:
    seen = all_at_once()
    found = conditions(seen, NOW)
    told = text(status_line(seen, "n", found=found, key="!")).split(" │ ")[-1]
    assert told == (
        "✗ docker down  ✗ 3 GPUs lost  ✗ GPU 4 throttled  ! GPU 2 capped  ! 2 failed in 1h  ! 1 warning  "
        "GPU 3 in foreign use  GPU 1 drained  ! shows all"
    )
    assert text(status_line(seen, "n", 69, found=found)).endswith("│ ✗ docker down  and 5 more")
    assert text(status_line(seen, "n", 94, found=found, key="!")).endswith("│ ✗ docker down  ✗ 3 lost  and 4 more")


def test_two_gpus_are_named_and_more_are_counted() -> None:
    both = healthy(view(3, health=LOST), view(6, health=LOST))
    assert "✗ GPUs 3,6 lost" in text(status_line(both, "n", found=conditions(both, NOW)))


def test_the_disk_is_reported_once() -> None:
    both = replace(disk(0.98), notices=(Notice("warning", "5G left on the disk of /data", short="disk low"),))
    assert [condition.kind for condition in conditions(both, NOW)] == ["disk low"]


def test_many_failures_are_counted() -> None:
    found = conditions(failed(*range(1, 60)), NOW)
    assert len(found) == MOST_FAILURES + 1
    assert found[-1].text == "49 other jobs failed in the last hour"
    assert "! 59 failed in 1h" in text(status_line(healthy(), "n", found=found))


def test_foreign_text_cannot_control_the_terminal() -> None:
    evil = Holder("container", "\x1b[31mevil", "e\x07ve", image="i\x1b]0;x")
    seen = of_gpu(GpuState.FOREIGN, holders=(evil,), drain=Drain("a\x1b[2J", "b\x1b[0m", AGO))
    assert all(condition.text.isprintable() for condition in conditions(seen, NOW))


LASTING = Condition("error", "GPU 6 is lost", "lost", gpu="6")


def test_a_condition_lasts_since_its_first_observation() -> None:
    tracker = ConditionTracker()
    assert tracker.update([LASTING], NOW)[0].since is None, "it was there before"
    later = NOW + 60 * SECOND
    assert tracker.update([], later) == ()
    assert tracker.update([LASTING], later + SECOND)[0].since == later + SECOND
    other_words = Condition("error", "GPU 6 is lost since long", "lost", gpu="6")
    assert tracker.update([other_words], later + 9 * SECOND)[0].since == later + SECOND


def test_a_condition_that_fluctuates_is_shown_while_it_holds() -> None:
    tracker, used = ConditionTracker(), of_gpu(GpuState.FOREIGN, holders=(CONTAINER,))

    def is_shown(second: int, seen: Snapshot) -> bool:
        return bool(tracker.look(replace(seen, taken_at=NOW + second * SECOND), NOW + second * SECOND))

    assert not is_shown(0, healthy())
    assert not any(is_shown(second, used if second % 4 else healthy()) for second in range(1, 41))
    assert [is_shown(second, used) for second in range(41, 60)] == [second >= 51 for second in range(41, 60)]
    assert [is_shown(second, healthy()) for second in range(60, 80)] == [second < 70 for second in range(60, 80)]


def test_a_fault_is_shown_at_once_and_goes_at_once() -> None:
    tracker = ConditionTracker()
    tracker.look(healthy(), NOW)
    assert tracker.look(of_gpu(health=LOST), NOW + SECOND)
    assert tracker.look(healthy(), NOW + 2 * SECOND) == ()


def test_no_condition_exists_before_the_first_snapshot() -> None:
    tracker = ConditionTracker()
    tracker.look(EMPTY, NOW)
    (lost,) = tracker.look(of_gpu(health=LOST), NOW + SECOND)
    assert lost.since is None, "it was there before the console was opened"


def test_now_lists_each_condition_with_its_begin_and_remedy() -> None:
    lost = Condition("error", "GPU 6 is lost", "lost", gpu="6", todo="`gputui doctor` checks the driver")
    dated = Condition("information", "GPU 1 is drained", "drained", gpu="1", since=AGO)
    lines = [text(line) for line in notice_lines((lost, dated), (), NOW, 100)]
    assert lines[0].startswith("Now         worst first")
    assert lines[1:3] == [
        "✗ error     GPU 6 is lost",
        "            since before this console was opened · `gputui doctor` checks the driver",
    ]
    assert lines[4].strip() == f"since {AGO.astimezone():%H:%M} (20m00s)"


async def test_the_console_shows_conditions_and_lists_all_under_now() -> None:
    async with on_screen(Console(rich_snapshot()), (200, 50)) as (console, pilot):
        assert "✗ GPU 7 lost  ! 2 failed in 1h  GPU 3 in foreign use  GPU 6 drained" in console.screen_text
        await pilot.press("exclamation_mark")
        await pilot.pause()
        for words in ("Now ", "GPU 7 is lost", "drained by alice", "`gputui resume 6`", "Enter on it shows why"):
            assert words in console.screen_text
        await pilot.press("escape")
        await console.show(pilot, healthy())
        assert "GPU 7" not in console.screen_text.splitlines()[0]


@cases("hint", [FIRST_HINT, DEMO_HINT])
async def test_a_hint_for_newcomers_stays_until_the_first_key(hint: str) -> None:
    console = Console(healthy())
    console.app.services.hint.text = hint
    async with on_screen(console, (80, 24)) as (_, pilot):
        *_, line, keys = console.screen_text.splitlines()
        assert line.strip().endswith(": finds a command by name")
        assert all(f"{key} " not in keys for key in re.findall(r"(\S+) (?:changes|lists|finds) ", line))
        await pilot.press("j")
        await console.begin(pilot)
        assert "finds a command" not in console.screen_text
    assert console.preferences.get("hint") == {"seen": True}


def test_a_start_that_is_held_up_counts_as_waiting() -> None:
    starting = job(1).to(JobState.CONFIGURING)
    seen = healthy(jobs=(starting, job(2).to(JobState.CONFIGURING)))
    assert "2 running     0 waiting" in text(status_line(seen, "n"))
    held_up = replace(seen, progress={1: "starting: docker does not answer"})
    assert "1 running     1 waiting" in text(status_line(held_up, "n"))
