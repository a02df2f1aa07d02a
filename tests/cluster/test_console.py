"""The console over a cluster: its nodes, its engine and what it lacks."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from gputui.domain.cluster import Capability
from gputui.domain.gpu import Gpu, GpuState, GpuView, Health, HealthCode
from gputui.domain.job_spec import Submission
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.cluster.poll import ClusterPoll
from gputui.engine.feed import Feed
from gputui.tui.present.gpu import node_line
from gputui.tui.present.gpu_detail import remedy_lines
from gputui.tui.present.gpu_rows import GpuNode, GpuRow
from tests.cases import cases
from tests.cluster import scenes
from tests.cluster.console import ClusterConsole
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock, spec
from tests.tui.idle import share_style_sheets

SINGLE = "Slurm drains nodes, not single GPUs"
LACKING = {Capability.DRAIN_GPU: SINGLE, Capability.MOVE: "Slurm puts no job beside another"}


@pytest.fixture(autouse=True)
def _one_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    share_style_sheets(monkeypatch.setattr)


def three_nodes() -> FakeCluster:
    cluster = FakeCluster(FakeClock(), lacking=LACKING)
    for name in ("llama", "vit", "bert"):
        cluster.submit([Submission(spec(gpus=1, name=name, time_limit=timedelta(hours=8)))], name)
    cluster.submit([Submission(spec(gpus=2, name="wide"))] * 2, "wide")
    return cluster


def many_nodes() -> FakeCluster:
    cluster = FakeCluster(FakeClock(), {f"n{number:02}": 8 for number in range(1, 65)}, lacking=LACKING)
    for number in range(100):
        cluster.submit([Submission(spec(gpus=4, name=f"job{number}"))], str(number))
    return cluster


def line_with(console: ClusterConsole, text: str) -> str:
    return next(line for line in console.screen_text.splitlines() if text in line)


async def test_gpus_stand_below_their_nodes_with_the_allocation_and_say_that_they_are_not_read() -> None:
    console = ClusterConsole(three_nodes())
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        lines = console.screen_text.splitlines()
        assert "lab │ ● Slurm " in lines[0]
        place = next(number for number, line in enumerate(lines) if "▾ gpu1" in line)
        assert "no readings: no probe on this node" in lines[place]
        assert "#1 llama alice" in lines[place + 1]
        assert "#2 vit alice" in lines[place + 2]
        assert any(" wide " in line and "gpu3:0-1" in line for line in lines)
        assert "GPUs are not read" not in console.screen_text


async def test_many_nodes_have_a_line_each_that_opens() -> None:
    console = ClusterConsole(many_nodes())
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        assert "112/512 free" in console.screen_text
        assert "■■■■■■■■    0/8" in line_with(console, "▸ n01")
        assert "#1×4 job0 alice · #2×4 job1 alice" in line_with(console, "▸ n01")
        await console.press(pilot, "shift+tab", "enter")
        assert "▾ n01" in console.screen_text
        assert "#1 job0 alice" in console.screen_text
        await console.press(pilot, "o")
        assert "▸ n01" in console.screen_text
        await console.press(pilot, "O")
        assert "▾ n01" in console.screen_text


async def test_nodes_without_new_readings_say_since_when_and_why() -> None:
    cluster = scenes.many_nodes()
    console = ClusterConsole(cluster)
    console.clock.advance(4000)
    async with console.app.run_test(size=(160, 40)) as pilot:
        await console.show(pilot, scenes.with_troubles(cluster.snapshot()))
        assert "2 nodes not read" in console.screen_text.splitlines()[0]
        assert "GPUs are not read" not in console.screen_text
        late = line_with(console, "▸ gpu02")
        assert "–  H200      1m35s old  #2×4 vit-large bob" in late
        assert "  no readings: ssh: connect to host gpu02" in late
        assert "no readings: gputui is not installed there" in line_with(console, "▸ gpu04")
        assert "✗" in line_with(console, "▸ gpu05")
        assert "! 2 nodes not read" in console.screen_text
    cluster.end(1)


async def test_nodes_are_sorted_by_what_their_gpus_do() -> None:
    cluster = scenes.many_nodes()
    console = ClusterConsole(cluster)
    console.clock.advance(4000)
    async with console.app.run_test(size=(160, 40)) as pilot:
        await console.show(pilot, scenes.with_readings(cluster.snapshot()))
        await console.press(pilot, "shift+tab", "S", "z")
        found = re.findall(r"▸ gpu\d+ .*? (\d)/8 +(\d+)%", console.screen_text)
        ranks = [(-int(free), int(load)) for free, load in found]
        assert len(ranks) > 10
        assert ranks == sorted(ranks)
        assert len(set(ranks)) > 3
    cluster.end(1)


async def test_the_idlest_nodes_come_first_on_request() -> None:
    console = ClusterConsole(many_nodes())
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        assert "n01" in console.screen_text
        await console.press(pilot, "shift+tab", "S")
        assert "········    8/8" in line_with(console, "▸ n51")
        assert "▸ n01" not in console.screen_text
        await console.press(pilot, "S")
        assert "▸ n01" in console.screen_text


async def test_a_job_is_held_and_cancelled_by_key() -> None:
    cluster = three_nodes()
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "end", "h")
        assert cluster.job(5).held
        await console.press(pilot, "home", "c", "y")
        assert cluster.job(1).state is JobState.CANCELLED


async def test_the_node_of_a_gpu_is_drained_and_resumed() -> None:
    cluster = three_nodes()
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "shift+tab", "down", "d")
        assert SINGLE in console.screen_text
        await console.press(pilot, *"fans", "enter")
        assert [view.drain.reason for view in cluster.snapshot().nodes[0].gpus if view.drain] == ["fans", "fans"]
        await console.refresh(pilot)
        assert "gpu1 drained" in console.screen_text
        await console.press(pilot, "d")
        assert not any(view.drain for view in cluster.snapshot().gpus)


@cases(
    ("key", "words"),
    [
        ("J", "Not in this cluster: Slurm puts no job beside another."),
        ("T", "Not in this cluster: gputui has that for the queue of one machine, not for Fake."),
    ],
)
async def test_a_key_says_what_the_cluster_lacks(key: str, words: str) -> None:
    console = ClusterConsole(three_nodes())
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, key)
        assert any(words in told for told in console.told)


async def test_the_processes_of_a_job_are_shown() -> None:
    cluster = FakeCluster(FakeClock())
    cluster.submit([Submission(spec(gpus=1, name="llama", command=("python", "train.py")))], "k")
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "X")
        await console.settle(pilot)
        assert "4711 alice" in console.screen_text
        assert "python train.py" in console.screen_text


async def test_the_log_of_a_job_is_shown() -> None:
    cluster = three_nodes()
    cluster.write(1, "step 1", "step 2")
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        while "step 2" not in console.screen_text:
            await pilot.pause(0.01)
        cluster.end(1)


async def test_a_cluster_that_is_away_is_told_in_the_status_line() -> None:
    console = ClusterConsole(three_nodes())
    async with console.app.run_test(size=(130, 30)) as pilot:
        await console.begin(pilot)
        await console.show(pilot, silent(console))
        assert "○ not responding" in console.screen_text.splitlines()[0]
        assert "Fake does not answer" in console.screen_text
        assert "#1 llama" in console.screen_text


def silent(console: ClusterConsole) -> Snapshot:
    """Return what the poll publishes while the cluster is away."""

    feed = Feed()
    poll = ClusterPoll(console.queue, feed, console.clock, timedelta(seconds=2))
    poll.poll()
    console.cluster.answers = False
    console.clock.advance(60)
    poll.poll()
    return feed.latest


async def test_an_element_of_an_array_is_named_as_slurm_names_it() -> None:
    cluster = FakeCluster(FakeClock(), {"gpu1": 2})
    cluster.submit([Submission(spec(gpus=1, name="sweep"), array=tuple(range(5)))], "k")
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(140, 40)) as pilot:
        await console.begin(pilot)
        assert "3 waiting" in line_with(console, "[2-4]")
        await console.press(pilot, "home", "o", "Z")
        assert console.told == ["job 1_0 will be suspended: Z lets it continue"]


async def test_the_form_changes_what_the_cluster_can_change() -> None:
    cluster = FakeCluster(FakeClock(), lacking={Capability.EDIT: "a job in Slurm is not changed"})
    limit = timedelta(hours=8)
    cluster.submit([Submission(spec(gpus=1, name="train", time_limit=limit), held=True)], "k")
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(100, 30)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "e")
        assert "Only priority, time limit and hold can be changed: a job in Slurm is not changed." in screen_words(
            console
        )
        await console.press(pilot, "ctrl+s")
        assert cluster.job(1).spec.time_limit == limit


def screen_words(console: ClusterConsole) -> str:
    """Return the text of the screen in one line, without frames."""
    return " ".join(console.screen_text.replace("│", " ").split())


def test_a_sick_gpu_of_a_node_tells_how_to_keep_jobs_off_its_node() -> None:
    gpu = Gpu("gpu5:2", 2, "NVIDIA H200", drivers_uuid="GPU-12345678-0000-0000-0000-000000000000")
    health = Health(HealthCode.XID, "Xid 48: uncorrectable memory error")
    lines = remedy_lines(GpuView(gpu, GpuState.FREE, health), None, NOW)
    told = ["".join(words for words, _ in line) for line in lines]
    assert "1. gputui drain gpu5 --reason …" in told[0]
    assert f"sudo nvidia-smi -i {gpu.drivers_uuid} -r" in told[2]
    assert "gputui resume gpu5" in told[3]


def test_the_line_of_a_node_tells_who_uses_gpus_that_its_engine_does_not_name() -> None:
    why = "1 of 2 in use: job 7 train has 1"
    used = GpuView(Gpu("gpu5:0", 0), GpuState.ALLOCATED, Health(), why=why)
    free = GpuView(Gpu("gpu5:1", 1), GpuState.FREE, Health())
    node = GpuNode("gpu5", (GpuRow(used), GpuRow(free)))
    assert why in "".join(words for words, _ in node_line(node, [node], is_open=False))


async def test_the_page_of_a_waiting_job_shows_the_engines_order_and_start_and_no_score_of_ours() -> None:
    cluster = three_nodes()
    [last] = cluster.submit([Submission(spec(gpus=2, name="last"))], "last")
    first = cluster.snapshot().order[0]
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        pages = []
        for job_id in (first, last):
            console.select(job_id)
            await console.press(pilot, "enter")
            pages.append(console.screen_text)
            await console.press(pilot, "escape")
    waiting = cluster.snapshot().order
    assert waiting == (first, last)
    for page, place in zip(pages, (1, 2), strict=True):
        assert re.search(r"priority +50", page)
        assert f"number {place} of {len(waiting)} waiting, in the order of Slurm" in page
        assert not re.search(r"score|how sure|expansion|fair share", page)
    assert re.search(r"starts +about 20", pages[0])
    assert "Slurm expects no start yet" in pages[1]
