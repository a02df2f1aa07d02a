"""The page of a running job: readings of its GPUs, its planned end, and the end of its log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.domain.gpu import GpuView, Health, HealthCode
from gputui.domain.gpu_history import GpuHistory
from gputui.domain.job import Attempt, Job
from gputui.domain.policy.planning_context import DurationSource, Planned
from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.actions import ExitChoice
from gputui.tui.present.detail import Live, gpu_rows_of, job_gpu_lines, job_lines
from gputui.tui.present.gpu_detail import several_graph_lines
from gputui.tui.present.gpu_rows import GpuPicture, gpu_picture
from gputui.tui.present.job import JobContext
from gputui.tui.screens.pages import Detail
from gputui.tui.widgets.log_view import JobLog
from tests.cases import cases
from tests.factories import NOW, job, running, uuid
from tests.tui import sample
from tests.tui.console import Console, until

HOUR = timedelta(hours=1)
SMALL, MIDDLING = (80, 24), (120, 36)


def picture(gpus: tuple[GpuView, ...] | None = None, history: GpuHistory | None = None) -> GpuPicture:
    return gpu_picture(sample.with_node(gpus=gpus or sample.gpus()), {}, history or GpuHistory(), NOW)


def on(*indices: int) -> Job:
    return running(1, on=tuple(uuid(index) for index in indices))


def told(subject: Job, shown: GpuPicture, room: int = 64, *, is_compact: bool = False) -> dict[str, str]:
    lines = job_gpu_lines(subject, shown, room, is_compact=is_compact)
    assert all(sum(width(words) for words, _ in line) <= room for _, line in lines)
    return {label: "".join(words for words, _ in line).strip() for label, line in lines}


class TestGpusOfJobPage:
    def test_each_gpu_has_a_line_with_its_readings(self) -> None:
        shown = told(on(0, 1), picture())
        assert list(shown) == ["GPU 0", "GPU 1"]
        assert shown["GPU 0"].split() == [shown["GPU 0"].split()[0], "62%", "38/80G", "58°", "480W", "of", "700W"]

    def test_power_at_its_cap_is_aligned_with_other_power(self) -> None:
        first, *others = sample.gpus()
        assert first.sample is not None
        capped = replace(first, sample=replace(first.sample, throttle=("power cap",), power=650.0))
        shown = told(on(0, 1), picture((capped, *others)), 100)
        assert "650W! of 700W" in shown["GPU 0"]
        assert shown["GPU 0"].index("of 700W") == shown["GPU 1"].index("of 700W")

    def test_slowed_gpus_keep_to_one_line_with_the_reason(self) -> None:
        first, *others = sample.gpus()
        assert first.sample is not None
        reasons = ("power cap", "thermal", "power brake")
        capped = replace(first, sample=replace(first.sample, throttle=reasons[:1]))
        assert told(on(0), picture((capped, *others)))["GPU 0"].endswith("480W!  slowed: power cap")
        worse = picture((replace(first, sample=replace(first.sample, throttle=reasons)), *others))
        assert told(on(0), worse)["GPU 0"].endswith("slowed: power cap, th…")
        assert told(on(0, 1, 2), worse, is_compact=True)["3 GPUs"].endswith("1 slowed")

    def test_narrow_lines_keep_the_most_important_readings(self) -> None:
        assert told(on(0), picture(), 24)["GPU 0"].split() == ["62%", "38/80G", "58°"]

    def test_several_gpus_share_one_line_on_a_compact_page(self) -> None:
        shown = told(on(0, 1, 2), picture(), is_compact=True)
        assert list(shown) == ["3 GPUs"]
        assert shown["3 GPUs"].split("  ")[1:] == ["63% on average", "129G", "1503W", "hottest 62°"]
        assert list(told(on(0, 1), picture(), is_compact=True)) == ["GPU 0", "GPU 1"]

    def test_lost_and_removed_gpus_are_named(self) -> None:
        first, *others = sample.gpus()
        lost = replace(first, health=Health(HealthCode.LOST, "fell off the bus"))
        assert told(on(0), picture((lost, *others)))["GPU 0"].endswith("LOST")
        assert told(on(0), picture(tuple(others)))["GPU gone"] == f"{uuid(0)} is no longer listed"
        assert told(on(0), GpuPicture()) == {}

    def test_wide_lines_have_a_graph_of_the_last_minutes(self) -> None:
        history = GpuHistory()
        for step in range(30):
            history.add(replace(sample.rich_snapshot(), taken_at=NOW + timedelta(seconds=10 * step)))
        old = on(0).with_attempt(started_at=NOW - HOUR)
        wide = told(old, picture(history=history), 150)["GPU 0"]
        assert wide.endswith("▅" * 29 + " in 4m50s")
        assert "▅" not in told(old, picture(history=history), 64)["GPU 0"]
        young = on(0).with_attempt(started_at=NOW - timedelta(seconds=36))
        assert told(young, picture(history=history), 150)["GPU 0"].endswith(" ▅▅▅ in 30s"), "not what ran there before"
        new = on(0).with_attempt(started_at=NOW)
        assert "▅" not in told(new, picture(history=history), 150)["GPU 0"]
        spare = replace(picture(history=history), left_out=frozenset({"history"}))
        assert "▅" not in told(on(0), spare, 150)["GPU 0"]


def test_a_command_is_quoted_as_a_shell_would_need_it() -> None:
    subject = job(7, command=("sh", "-c", "echo 'a b' > /tmp/x"))
    assert page(subject, Live())["command"] == """sh -c 'echo '"'"'a b'"'"' > /tmp/x'"""


def page(subject: Job, live: Live) -> dict[str, str]:
    lines = job_lines(subject, JobContext(NOW, gpu_names={uuid(0): "0"}), live=live)
    return {label: "".join(words for words, _ in line) for label, line in lines}


def test_the_planned_end_names_its_basis() -> None:
    subject = on(0).evolve(started_at=NOW - HOUR)
    guessed = page(subject, Live(planned=Planned(7200.0, DurationSource.PREDICTION)))
    assert guessed["planned"] == "2026-03-02 13:00:00 (in 1h00m) if it runs as long as the last ones did"
    overdue = page(subject, Live(planned=Planned(1800.0, DurationSource.DEFAULT)))
    assert overdue["planned"] == "2026-03-02 11:30:00 (30m00s ago) by the longest time allowed"
    assert "planned" not in page(subject, Live(planned=Planned(7200.0, DurationSource.LIMIT)))


def test_gpus_are_named_once() -> None:
    assert page(on(0), Live())["where"] == "GPU 0"
    assert "where" not in page(on(0), Live(job_gpu_lines(on(0), picture(), 64)))


@contextlib.asynccontextmanager
async def opened(
    console: Console, size: tuple[int, int] = MIDDLING, job_id: int = 101
) -> AsyncIterator[tuple[Pilot[ExitChoice], JobLog]]:
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        console.select(job_id)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(console.app.screen, Detail)
        yield pilot, console.app.screen.query_one(JobLog)


class TestGpuGraphsOfJobPage:
    def past(self) -> GpuHistory:
        history = GpuHistory()
        for second in range(60):
            history.add(sample.with_node(taken_at=NOW + timedelta(seconds=second), gpus=sample.gpus()))
        return history

    @cases(("rows", "readings"), [(60, 5), (30, 4), (11, 2), (7, 1), (6, 0), (0, 0)])
    def test_as_many_graphs_are_shown_as_fit(self, rows: int, readings: int) -> None:
        shown = gpu_rows_of(on(0, 1), picture(history=self.past()))
        lines = ["".join(words for words, _ in line) for line in several_graph_lines([shown], 90, rows)]
        assert len(lines) <= rows
        assert sum(" peak " in line for line in lines) == 2 * readings
        assert [line for line in lines if line.startswith("GPU ")] == (
            ["GPU 0  NVIDIA H100 80GB HBM3", "GPU 1  NVIDIA H100 80GB HBM3"] if readings else []
        )

    async def test_graphs_are_below_the_lines_beside_the_log(self) -> None:
        console = Console()
        async with opened(console, (200, 50)) as (_, log):
            assert log.display
            assert "temperature" in console.screen_text


class TestLogOfJobPage:
    async def test_the_log_fills_the_rest_of_the_page(self) -> None:
        console = Console()
        console.logs.lines[104] = [b"line %d" % number for number in range(50)]
        async with opened(console, job_id=104) as (pilot, log):
            await until(pilot, lambda: "line 49" in console.screen_text)
            assert "LOG #104 resnet-ablation" in console.screen_text
            assert "line 30" not in console.screen_text
            assert console.app.focused is not log
            stream = console.logs.streams[104]
            await pilot.press("escape")
            await until(pilot, stream.closed.is_set)

    async def test_the_log_is_not_read_without_space_for_it(self) -> None:
        console = Console()
        async with opened(console, (80, 18), 104) as (pilot, log):
            assert not log.display
            assert log.follower is None
            await pilot.resize_terminal(*MIDDLING)
            await until(pilot, lambda: log.display and log.follower is not None)

    async def test_the_log_continues_with_the_next_attempt(self) -> None:
        console = Console()
        async with opened(console, job_id=104) as (pilot, log):
            await until(pilot, lambda: log.follower is not None)
            before = log.follower
            first = next(job for job in console.snapshot.jobs if job.id == 104)
            again = Attempt(2, first.gpus, NOW, "c104b", NOW)
            await console.show(
                pilot, sample.with_job(console.snapshot, [first.evolve(attempts=(*first.attempts, again))])
            )
            await until(pilot, lambda: log.follower is not before)
            assert "attempt 2 of 2" in console.screen_text

    @cases("waits", [106, 107])
    async def test_the_log_is_absent_before_the_start(self, waits: int) -> None:
        console = Console()
        async with opened(console, (120, 60), waits) as (_, log):
            assert not log.display
            assert log.follower is None


async def test_readings_follow_the_snapshot() -> None:
    console = Console()
    async with opened(console, SMALL) as (pilot, _):
        assert "62%" in console.screen_text
        gpus = tuple(
            sample.with_sample(view, sample.at_load(view.sample, 0.97)) if view.sample else view
            for view in sample.gpus()
        )
        nodes = (replace(console.snapshot.nodes[0], gpus=gpus),)
        await console.show(pilot, replace(console.snapshot, nodes=nodes))
        assert "97%" in console.screen_text
        assert "62%" not in console.screen_text


async def test_a_job_without_a_limit_has_a_planned_end() -> None:
    console = Console()
    past = [
        job(number, name="resnet-ablation", tenant="bob").evolve(
            state=JobState.COMPLETED, started_at=NOW - 9 * HOUR, ended_at=NOW - 6 * HOUR, exit_code=0
        )
        for number in (50, 51)
    ]
    console.snapshot = replace(console.snapshot, jobs=(*console.snapshot.jobs, *past))
    async with opened(console, job_id=104):
        assert "if it runs as long as the last ones did" in console.screen_text
