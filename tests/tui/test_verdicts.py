"""Filter results: found in slices, and checked again only where they may have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.filter import parse_filter
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import PendingReason, Reason
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_rows import AT_ONCE, Verdicts
from tests.factories import NOW, job
from tests.tui import sample
from tests.tui.console import Console, on_screen

FOR_EVER = float("inf")
COUNT = 4 * AT_ONCE


class Reasons(Mapping[JobId, Reason]):
    """Reasons that are computed on demand, and counted."""

    def __init__(self, ids: Sequence[JobId], words: str = "waits for GPUs") -> None:
        self.asked = 0
        self._ids = ids
        self._words = words

    def __getitem__(self, job_id: JobId) -> Reason:
        self.asked += 1
        return Reason(PendingReason.RESOURCES, self._words)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class Queue:
    """Waiting jobs, matched by a filter."""

    def __init__(self, text: str, count: int = COUNT) -> None:
        self.jobs = {number: job(number, name=f"train-{number}") for number in range(1, count + 1)}
        self.reasons = Reasons(list(self.jobs))
        self.verdicts = Verdicts()
        self.verdicts.judge_by(parse_filter(text))
        self.picture = Snapshot(taken_at=NOW, jobs=tuple(self.jobs.values()), reasons=self.reasons)
        self.show(self.picture)

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.jobs is not self.picture.jobs:
            self.jobs = {job.id: job for job in snapshot.jobs}
        self.picture = snapshot
        self.verdicts.take(snapshot, self.jobs)
        self.verdicts.want(self.jobs)

    def say(self, words: str) -> None:
        self.reasons = Reasons(list(self.jobs), words)
        self.show(replace(self.picture, reasons=self.reasons))

    def change(self, changed: Job) -> None:
        self.show(replace(self.picture, jobs=tuple((self.jobs | {changed.id: changed}).values())))

    @property
    def shown(self) -> list[JobId]:
        return [job.id for job in self.verdicts.shown(self.jobs)]


def test_jobs_are_matched_in_slices_from_the_head_of_the_queue() -> None:
    queue = Queue("train")
    queue.verdicts.step(0, AT_ONCE)
    assert queue.shown == list(queue.jobs)[:AT_ONCE]
    slices = 0
    while not queue.verdicts.is_done:
        queue.verdicts.step(0, least=1)
        slices += 1
    assert queue.shown == list(queue.jobs)
    assert slices > 10


def test_reasons_are_computed_only_for_filters_that_use_them() -> None:
    queue = Queue("gpus>=0")
    queue.verdicts.step(FOR_EVER)
    assert len(queue.shown) == COUNT
    assert queue.reasons.asked == 0
    queue.say("something else")
    assert queue.verdicts.is_done
    words = Queue("gpus>=0 waits")
    words.verdicts.step(FOR_EVER)
    assert words.reasons.asked == COUNT


def test_a_changed_job_is_matched_at_once_and_others_keep_their_result() -> None:
    queue = Queue("name:train-7")
    queue.verdicts.step(FOR_EVER)
    assert queue.shown == [7]
    queue.change(job(7, name="other"))
    assert not queue.verdicts.is_done
    assert queue.verdicts.step(0, least=1)
    assert queue.shown == []
    assert queue.verdicts.is_done


def test_changed_reasons_of_all_jobs_are_matched_in_slices_and_nothing_vanishes_meanwhile() -> None:
    queue = Queue("GPUs", count=AT_ONCE)  # so few need no rest
    queue.verdicts.step(FOR_EVER)
    assert len(queue.shown) == AT_ONCE
    queue.say("of the tenant's limit")
    assert len(queue.shown) == AT_ONCE
    assert queue.verdicts.step(0, least=1)
    assert 0 < len(queue.shown) < AT_ONCE
    queue.verdicts.step(FOR_EVER)
    assert queue.shown == []


def test_matching_of_changed_reasons_pauses_longer_than_it_works() -> None:
    queue = Queue("GPUs")
    queue.verdicts.step(FOR_EVER)
    queue.say("of the tenant's limit")
    queue.verdicts.step(FOR_EVER)
    queue.say("of the weather")
    assert queue.verdicts.is_done
    assert queue.reasons.asked == 0


def test_time_changes_the_result_of_a_filter_by_time() -> None:
    queue = Queue("wait>2h", count=3)
    queue.verdicts.step(FOR_EVER)
    assert queue.shown == []
    queue.show(replace(queue.picture, taken_at=NOW + timedelta(hours=3)))
    queue.verdicts.step(FOR_EVER)
    assert len(queue.shown) == 3


def test_jobs_that_left_the_queue_are_forgotten() -> None:
    queue = Queue("train", count=5)
    queue.verdicts.step(FOR_EVER)
    queue.show(replace(queue.picture, jobs=queue.picture.jobs[:2]))
    kept = queue.verdicts._shown, queue.verdicts._texts  # noqa: SLF001 - what is kept is seen nowhere else
    assert [len(kept[0]), len(kept[1])] == [2, 2]


async def test_a_long_queue_is_filtered_between_keys_and_matches_are_marked() -> None:
    async with on_screen(Console(sample.many_jobs(5000)), (120, 36)) as (console, pilot):
        table = console.app.screen_stack[0].query_one(JobTable)
        await pilot.press("slash", *"sweep-5", "enter", "asterisk")
        assert set(table.live.marks) == {job.id for job in console.snapshot.jobs if job.spec.name.startswith("sweep-5")}
        assert table.rows.matching == len(table.live.marks) > AT_ONCE / 2
        await pilot.press("escape", "escape", "slash", *"sweep-7", "enter")
        wanted = [job.id for job in console.snapshot.jobs if job.spec.name.startswith("sweep-7")]
        while not table.rows.is_judged:
            await pilot.pause(0.01)
        assert list(table.keys) == wanted
