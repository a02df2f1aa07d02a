"""The summary line: all GPUs together, and the host, at every width."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace
from rich.style import Style

from gputui.domain.gpu import DiskUse
from gputui.domain.gpu_history import Steady
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.frame import FrameSize, frame
from gputui.tui.present.cells import AMBER, PLAIN, RED, Cell, width_of
from gputui.tui.present.status import summary_line
from tests.cases import cases
from tests.factories import GIB, NOW, gpu, sample, snapshot, uuid, view
from tests.tui.console import Console
from tests.tui.sample import HOST, rich_snapshot

GPUS = [
    view(i, sample=sample(i, utilization=0.5 + i / 4, memory_used=20 * GIB, power=600.0, power_limit=700.0))
    for i in range(2)
]


def seen(**changes: object) -> Snapshot:
    made = snapshot(gpus=GPUS)
    return replace(made, nodes=(replace(made.nodes[0], host=replace(HOST, **changes)),))


def text(cell: Cell) -> str:
    return "".join(words for words, _ in cell)


def style_of(words: str, **changes: object) -> Style:
    return next(style for part, style in summary_line(seen(**changes), NOW) if words in part)


def test_the_summary_is_one_line() -> None:
    assert text(summary_line(seen(), NOW)) == (
        "2 GPUs 62%  40/160G  1.2/1.4 kW │ CPU ███      38%  load 12  RAM ███▎     210/512G  swap 0%"
        "  /data ██████▌  81%  ↓ 1.2 GB/s  ↑ 310 MB/s"
    )


@cases("room", range(10, 220, 7))
def test_a_narrow_summary_keeps_the_most_important_parts(room: int) -> None:
    line = summary_line(seen(), NOW, room)
    assert width_of(line) <= room
    kept = {40: ("2 GPUs", "CPU", "RAM"), 76: ("kW", "/data"), 100: ("load", "GB/s")}
    assert all(word in text(line) for least, words in kept.items() if room >= least for word in words)


def test_unknown_values_are_left_out() -> None:
    nothing = dict.fromkeys(("cpu", "load", "memory_total", "swap_total", "received"))
    assert text(summary_line(seen(**nothing, disks=()), NOW)) == "2 GPUs 62%  40/160G  1.2/1.4 kW"
    blind = [view(0, sample=sample(0, utilization=None, memory_used=None, power=None)), view(1, sample=None)]
    assert text(summary_line(snapshot(gpus=blind), NOW)) == "2 GPUs"
    assert summary_line(EMPTY, NOW) == ()
    stale = [*GPUS, replace(view(2, sample=sample(2, utilization=1.0)), stale=True)]
    assert text(summary_line(snapshot(gpus=stale), NOW)).startswith("3 GPUs 62%")


def test_an_old_reading_of_the_host_is_not_shown() -> None:
    assert text(summary_line(seen(), NOW + timedelta(minutes=1))) == "2 GPUs 62%  40/160G  1.2/1.4 kW"


def test_instances_of_a_gpu_are_not_counted_twice() -> None:
    whole = replace(GPUS[0], gpu=gpu(0, mig_enabled=True))
    part = replace(GPUS[1], gpu=gpu(0, uuid="MIG-1", mig_parent=uuid(0)))
    assert text(summary_line(snapshot(gpus=[whole, part]), NOW)).startswith("1 GPU")


def test_values_over_thresholds_are_coloured() -> None:
    disk = HOST.disks[0]
    assert style_of("38%") == PLAIN
    assert style_of("93%", cpu=0.93) == PLAIN
    assert style_of("70", load=70.0) == AMBER
    assert style_of("/512G", memory_used=470 * GIB) == AMBER
    assert style_of("/512G!", memory_used=505 * GIB) == AMBER
    assert style_of("20%", swap_used=8 * GIB // 5) == AMBER
    assert style_of("92%", disks=(replace(disk, free=disk.total * 8 // 100),)) == PLAIN
    assert style_of("99%!", disks=(replace(disk, free=disk.total // 100),)) == AMBER
    assert style_of("100%✗", disks=(replace(disk, free=0),)) == RED


def test_a_figure_of_the_host_that_comes_and_goes_is_not_marked() -> None:
    steady: Steady[tuple[str, str]] = Steady()

    def is_marked(second: int, load: float) -> bool:
        now = NOW + second * timedelta(seconds=1)
        return "load 70!" in text(summary_line(seen(load=load, sampled_at=now), now, steady=steady))

    assert not is_marked(0, 12.0)
    assert not any(is_marked(second, 70.0 if second % 3 else 12.0) for second in range(1, 40))
    told = [is_marked(second, 70.0) for second in range(40, 60)]
    assert told == [second >= 50 for second in range(40, 60)]


def test_a_disk_that_is_full_soon_says_when() -> None:
    soon = replace(HOST.disks[0], full_in=timedelta(minutes=25))
    assert text(summary_line(seen(disks=(soon,)), NOW)).count("81% full in 25m00s") == 1
    later = replace(soon, full_in=timedelta(hours=5))
    assert "full in" not in text(summary_line(seen(disks=(later,)), NOW))


def test_names_of_disks_are_short_and_harmless() -> None:
    docker = DiskUse("/var/lib/docker", ("docker",), 100, 50)
    evil = DiskUse("/a\x1b[31m", ("state",), 100, 50)
    line = text(summary_line(seen(disks=(docker, evil)), NOW))
    assert "  docker █" in line
    assert "\x1b" not in line


async def test_the_summary_has_its_own_row_only_on_tall_screens() -> None:
    screen = Console()
    async with screen.app.run_test(size=(120, 36)) as pilot:
        await screen.begin(pilot)
        assert "kW │ CPU" in screen.screen_text
        await screen.resize(pilot, 80, 24)
        await screen.begin(pilot)
        assert "kW │" not in screen.screen_text
        (title,) = [line for line in screen.screen_text.splitlines() if " LOG " in line]
        assert title.endswith(" 8 GPUs 36% │ CPU 38%  RAM 210/512G ")


def test_top_prints_the_summary() -> None:
    lines = [text(line) for line in frame(rich_snapshot(), NOW, "node1", FrameSize(140))]
    assert sum("kW │ CPU" in line for line in lines) == 1
