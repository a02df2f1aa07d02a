"""Notifications pop up as configured, and are kept in the log of the session."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.conditions import conditions, pressing
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Health, HealthCode
from gputui.domain.job import ArrayRef, Job, Stopping
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.tui.notifications import ChangeWatcher, Notification, Notifier, desktop_sequence
from gputui.tui.present.cells import Cell
from gputui.tui.present.status import status_line
from tests.cases import cases
from tests.factories import NOW, FakeClock, array, running, uuid
from tests.tui.console import Console, on_screen
from tests.tui.sample import disk_full, gpus, rich_snapshot, stale, with_job, with_node


def text_of(line: Cell) -> str:
    return "".join(words for words, _ in line)


def line_of(snapshot: Snapshot) -> str:
    return text_of(status_line(snapshot, "node1", found=conditions(snapshot, NOW)))


def job_over(job_id: int, state: JobState = JobState.FAILED, tenant: str = "alice", after: int = 1) -> Job:
    job = running(job_id, on=(uuid(0),), name=f"train-{job_id}", tenant=tenant, submitted_by=tenant)
    cause = Cause(CauseCode.NON_ZERO_EXIT, "exit code 1") if state is JobState.FAILED else None
    return job.evolve(state=state, ended_at=NOW + timedelta(seconds=after), cause=cause)


def _looked(*snapshots: Snapshot, mine_only: bool = True) -> list[Notification]:
    watcher = ChangeWatcher("alice", mine_only=mine_only)
    found: list[Notification] = []
    for snapshot in snapshots:
        found = watcher.look(snapshot, NOW)
    return found


def test_states_from_before_the_console_opened_are_not_events() -> None:
    assert _looked(disk_full()) == []
    assert _looked(EMPTY, disk_full()) == []
    assert _looked(rich_snapshot(), rich_snapshot()) == []


def test_a_failed_job_of_the_user_is_reported_with_its_reason() -> None:
    found = _looked(rich_snapshot(), with_job(rich_snapshot(), [job_over(101)]))
    assert [(each.severity, each.is_told) for each in found] == [("warning", True)]
    failed = [each for each in conditions(with_job(rich_snapshot(), [job_over(101)]), NOW) if "Job 101" in each.text]
    assert [each.severity for each in failed] == ["warning"], "now and before"
    assert found[0].text.startswith("Job 101 train-101 (alice) failed after")
    assert "exit code 1" in found[0].text


@cases(("mine_only", "is_told"), [(True, False), (False, True)])
def test_jobs_of_others_are_in_the_log_and_shown_on_demand(mine_only: bool, is_told: bool) -> None:
    found = _looked(rich_snapshot(), with_job(rich_snapshot(), [job_over(101, tenant="bob")]), mine_only=mine_only)
    assert [each.is_told for each in found] == [is_told]


def test_a_job_that_appeared_and_ended_between_two_snapshots_is_reported() -> None:
    before = rich_snapshot()
    found = _looked(before, replace(before, jobs=(*before.jobs, job_over(200, JobState.COMPLETED))))
    assert [(each.severity, re.split(" in | after ", each.text)[0]) for each in found] == [
        ("information", "Job 200 train-200 (alice) completed")
    ]


def test_a_job_that_is_run_again_may_end_again() -> None:
    first = with_job(rich_snapshot(), [job_over(101)])
    second = with_job(rich_snapshot(), [job_over(101, after=60)])
    assert len(_looked(rich_snapshot(), first, second)) == 1
    assert _looked(rich_snapshot(), first, replace(first, jobs=tuple(first.jobs))) == []


def test_many_ends_at_once_are_one_sentence_and_all_of_them_in_the_log() -> None:
    before = rich_snapshot()
    over = (*(job_over(job_id, JobState.COMPLETED) for job_id in range(300, 310)), job_over(310))
    found = _looked(before, replace(before, jobs=(*before.jobs, *over)))
    assert [each.text for each in found if each.is_told] == ["11 jobs ended: 10 COMPLETED, 1 FAILED"]
    assert [each.severity for each in found if each.is_told] == ["warning"]
    assert len(found) == 12


def array_of(*states: JobState) -> Snapshot:
    """Return a snapshot with an array whose elements are in these states."""
    elements = []
    for i, state in enumerate(states):
        one = replace(job_over(500 + i, state), array=ArrayRef(500, i, len(states)))
        elements.append(one if state.is_terminal else one.evolve(state=state, ended_at=None, cause=None))
    return replace(rich_snapshot(), jobs=(*rich_snapshot().jobs, *elements))


RUN, DONE, BAD = JobState.RUNNING, JobState.COMPLETED, JobState.FAILED


@pytest.mark.parametrize(
    ("pictures", "told"),
    [
        pytest.param(
            [(RUN,) * 5, (DONE, *(RUN,) * 4), (DONE, BAD, *(RUN,) * 3), (DONE, BAD, BAD, RUN, RUN)],
            [[], [], ["Job 500_1 train-501"], []],
            id="the first failure of an array that goes on",
        ),
        pytest.param(
            [(RUN,) * 4, (DONE, BAD, RUN, RUN), (DONE, BAD, BAD, DONE)],
            [[], ["Job 500_1 train-501"], ["array 500 train-500 ended: 2 COMPLETED, 2 FAILED"]],
            id="its end",
        ),
        pytest.param(
            [(RUN,) * 3, (BAD,) * 3], [[], ["array 500 train-500 ended: 3 FAILED"]], id="a failure of all at once"
        ),
        pytest.param(
            [(DONE, RUN), (DONE, BAD)],
            [[], ["array 500 train-500 ended: 1 COMPLETED, 1 FAILED"]],
            id="a failure of the last one alone",
        ),
        pytest.param(
            [(RUN, RUN), (BAD, RUN), (BAD, BAD), (RUN, BAD), (BAD, BAD)],
            [
                [],
                ["Job 500_0 train-500"],
                ["array 500 train-500 ended: 2 FAILED"],
                [],
                ["array 500 train-500 ended: 2 FAILED"],
            ],
            id="an element that was queued again",
        ),
    ],
)
def test_an_array_is_told_at_its_first_failure_and_one_at_its_end(
    pictures: list[tuple[JobState, ...]], told: list[list[str]]
) -> None:
    watcher = ChangeWatcher("alice", mine_only=True)
    found = [watcher.look(array_of(*states), NOW + timedelta(minutes=n)) for n, states in enumerate(pictures)]
    assert [[each.text.split(" (")[0] for each in news if each.is_told] for news in found] == told


def test_the_end_of_an_entry_counts_every_element() -> None:
    entry = array(range(1, 100_000), first=8, name="sweep").evolve(array=ArrayRef(7, 1))
    first = replace(running(7), spec=entry.spec, array=ArrayRef(7, 0)).evolve(state=JobState.COMPLETED, ended_at=NOW)
    over = entry.evolve(state=JobState.CANCELLED, ended_at=NOW)
    before = replace(rich_snapshot(), jobs=(first, entry))
    told = [each.text for each in _looked(before, replace(before, jobs=(first, over))) if each.is_told]
    assert told == ["array 7 sweep ended: 99999 CANCELLED, 1 COMPLETED"]


def test_ends_in_close_succession_are_reported_together() -> None:
    watcher, told = ChangeWatcher("alice", mine_only=True), []
    jobs: tuple[Job, ...] = ()
    for number in range(30):
        jobs = (*jobs, job_over(600 + number, JobState.COMPLETED, after=number))
        found = watcher.look(
            replace(rich_snapshot(), jobs=(*rich_snapshot().jobs, *jobs)), NOW + timedelta(seconds=number)
        )
        told += [each.text for each in found if each.is_told]
    assert 3 <= len(told) <= 8
    assert sum(int(text.split()[0]) if " ended:" in text else 1 for text in told) >= 22


def test_sick_and_recovered_gpus_are_reported() -> None:
    lost = Health(HealthCode.LOST, "fell off the bus (Xid 79): reboot the host")
    sick = with_node(gpus=tuple(replace(view, health=lost) if view.gpu.index == 4 else view for view in gpus()))
    found = _looked(rich_snapshot(), sick)
    assert [(each.severity, each.is_told) for each in found] == [("error", True)]
    assert "GPU 4" in found[0].text
    assert "fell off the bus" in found[0].text
    well = _looked(rich_snapshot(), sick, rich_snapshot())
    assert [(each.severity, "is well again" in each.text) for each in well] == [("information", True)]


def faulty(**changes: object) -> Snapshot:
    """Return the busy node with a changed GPU 2, which job 104 holds."""
    views = tuple(replace(view, **changes) if view.gpu.index == 2 else view for view in gpus()[:7])
    return with_node(gpus=views)


def test_a_lost_sick_or_unread_gpu_is_in_the_status_line_and_under_now_until_it_is_over() -> None:
    for code, word in ((HealthCode.LOST, "lost"), (HealthCode.XID, "sick"), (HealthCode.NEEDS_RESET, "sick")):
        snapshot = faulty(health=Health(code, "it fell off the bus (Xid 79): reboot the host"))
        assert f"│ ✗ GPU 2 {word}" in line_of(snapshot)
        (notice,) = [each for each in conditions(snapshot, NOW) if "GPU 2" in each.text]
        assert notice.severity == "error"
        assert notice.text.startswith(f"GPU 2 is {word} and takes no job (job 104 still holds it): it fell off the bus")
        assert pressing(snapshot, NOW) == ()
    old = faulty(stale=True, age=timedelta(seconds=42), health=Health(HealthCode.UNKNOWN, "no reading"))
    assert "│ ! GPU 2 not read" in line_of(old)
    assert conditions(old, NOW)[0].text == "GPU 2 could not be read for 42s and takes no job"
    assert conditions(old, NOW)[0].since == NOW - timedelta(seconds=42)
    assert "GPU 2" not in line_of(faulty())


def test_a_hung_driver_is_one_notice_and_a_count() -> None:
    told = [each for each in conditions(stale(), NOW) if each.severity == "error"]
    assert [each.kind for each in told] == ["driver hung", "lost"]
    assert "│ ✗ driver hung  ✗ GPU 7 lost" in line_of(stale())


def test_a_job_stopped_by_its_lost_gpu_is_reported_at_the_stop_and_at_the_requeue() -> None:
    cause = Cause(CauseCode.GPU_LOST, "GPU 0: it fell off the bus")
    ours = next(each for each in rich_snapshot().jobs if each.id == 101)
    stopping = ours.evolve(state=JobState.COMPLETING, stopping=Stopping(cause, NOW))
    over = replace(ours.attempts[-1], ended_at=NOW, cause=cause)
    again = ours.evolve(state=JobState.PENDING, attempts=(*ours.attempts[:-1], over))
    first = with_job(rich_snapshot(), [stopping])
    (told,) = _looked(rich_snapshot(), first)
    assert (told.severity, told.is_told) == ("warning", True)
    assert told.text.endswith("is being stopped, its GPU is lost: GPU 0: it fell off the bus")
    second = with_job(rich_snapshot(), [again])
    for pictures in ((rich_snapshot(), first, second), (rich_snapshot(), second)):
        (told,) = _looked(*pictures)
        assert "was stopped and is queued again, free of charge: GPU 0" in told.text
    held = with_job(rich_snapshot(), [again.evolve(held=True)])
    assert _looked(rich_snapshot(), second, held) == []


def test_a_problem_is_reported_once_while_its_figures_change_and_its_end_is_kept() -> None:
    def low(left: str) -> Snapshot:
        return rich_snapshot(notices=(Notice("error", f"{left} GB are left in /var/lib/gputui"),))

    assert [each.text for each in _looked(rich_snapshot(), low("1.9"))] == ["1.9 GB are left in /var/lib/gputui"]
    assert _looked(rich_snapshot(), low("1.9"), low("0.8")) == []
    over = _looked(rich_snapshot(), low("1.9"), rich_snapshot())
    assert [(each.text, each.is_told) for each in over] == [("resolved: 1.9 GB are left in /var/lib/gputui", False)]
    lost, silent = (
        rich_snapshot(notices=(Notice("error", words, short="docker down"),)) for words in ("it was cut", "no answer")
    )
    assert _looked(rich_snapshot(), lost, silent) == []


class Heard:
    """Screen that records its notifications."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.bells = 0
        self.sent: list[str] = []

    def say(self, message: Notification) -> None:
        """Keep the message."""
        self.said.append((message.severity, message.text))

    def bell(self) -> None:
        self.bells += 1

    def send(self, sequence: str) -> None:
        self.sent.append(sequence)


@cases(("choice", "failed", "completed"), [("none", 0, 0), ("failed", 1, 0), ("all", 1, 1)])
def test_each_kind_of_notification_is_configured_separately(choice: str, failed: int, completed: int) -> None:
    for way in ("toast", "bell", "desktop"):
        counts = []
        for state in (JobState.FAILED, JobState.COMPLETED):
            heard = Heard()
            settings = replace(ConsoleSettings(toast="none"), **{way: choice})
            notifier = Notifier(heard, settings, "alice", FakeClock())
            notifier.take(rich_snapshot())
            notifier.take(with_job(rich_snapshot(), [job_over(101, state)]))
            told = {"toast": len(heard.said), "bell": heard.bells, "desktop": len(heard.sent)}
            counts.append(told.pop(way))
            assert not any(told.values()), (way, told)
            assert len(notifier.log) == 1
        assert counts == [failed, completed], way


def test_the_log_of_a_session_is_bounded() -> None:
    notifier = Notifier(Heard(), ConsoleSettings(), "alice", FakeClock())
    for number in range(2000):
        notifier.note("information", str(number))
    assert len(notifier.log) == 500
    assert notifier.log[-1].text == "1999"


@cases(
    ("environ", "sequence"),
    [
        ({"TERM": "xterm-256color"}, "\x1b]9;gputui: job 7 ended\a"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "\x1b]777;notify;gputui;job 7 ended\a"),
        ({"TERM": "foot"}, "\x1b]777;notify;gputui;job 7 ended\a"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, "\x1bPtmux;\x1b\x1b]9;gputui: job 7 ended\a\x1b\\"),
        ({"TERM": "screen"}, "\x1bP\x1b]9;gputui: job 7 ended\a\x1b\\"),
    ],
)
def test_desktop_notifications_use_the_sequence_of_the_terminal(environ: dict[str, str], sequence: str) -> None:
    assert desktop_sequence("job 7 ended", environ) == sequence


def test_names_of_jobs_cannot_control_the_terminal() -> None:
    evil = "\x1b]0;owned\x07;9;4;1\x9c\u202e" + "n" * 1000
    sequence = desktop_sequence(evil, {"TERM": "xterm"})
    inside = sequence.removeprefix("\x1b]9;gputui: ").removesuffix("\a")
    assert inside.isprintable()
    assert ";" not in inside
    assert len(inside) <= 200


async def test_a_failed_job_is_told_and_the_log_shows_when(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    sent: list[str] = []
    monkeypatch.setattr(console.app, "send", sent.append)
    async with on_screen(console, (120, 36)) as (_, pilot):
        assert console.told == []
        await console.show(pilot, with_job(console.snapshot, [job_over(101)]))
        assert console.told[-1].startswith("Job 101 train-101 (alice) failed")
        assert sent == []  # nothing goes to the desktop unasked
        await console.press(pilot, "P", "enter", "exclamation_mark")
        await pilot.pause()
        shown = console.screen_text
        assert "Before  " in shown
        assert "✗ error" in shown
        at = (NOW + timedelta(seconds=1)).astimezone()
        assert f"{at:%H:%M:%S}  Job 101 train-101 (alice) failed" in shown
        assert "Paused: no new jobs start" in shown
        await console.press(pilot, "escape")
        assert len(console.app.screen_stack) == 1
