"""Validation and forecast of the submit form's contents, without a screen."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import RuntimeFeatures, RuntimeStatus
from gputui.domain.errors import InputError
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.settings import SchedulerSettings, Settings, Window
from gputui.domain.snapshot import Controls, Leader, Node, Snapshot, WindowState, WindowView
from gputui.request import draft as drafts
from gputui.request.draft import NAMES, Draft
from gputui.tui.preferences import Preferences
from gputui.tui.screens.form_fields import Prospect, gpu_line, prospect, start_line, submitted_jobs
from gputui.tui.screens.job_form import (
    FIELDS,
    HINTS,
    MOST_KEPT,
    Origin,
    describe_drafts,
    draft_submission,
    faults,
    gpus_alone,
    keep_submission,
    recent_submissions,
)
from tests.cases import cases
from tests.factories import NOW, job, running, snapshot, uuid, view
from tests.request.docker_values import GOOD as DOCKER_OPTIONS

HERE = Origin("alice", "/home/alice", {"PATH": "/bin"})
GOOD = {"image": "busybox", "gpus": "1"}
LEADER = Leader(1, "here", "alice", "serve", NOW)


def words(cells: tuple[tuple[str, object], ...]) -> str:
    return "".join(text for text, _ in cells)


def test_rarer_options_of_docker_are_one_text_and_come_back() -> None:
    text = drafts.further_text(DOCKER_OPTIONS)
    assert "--cap-add IPC_LOCK --cap-add SYS_PTRACE" in text
    kept = {name: words for name, words in DOCKER_OPTIONS.items() if name in drafts.FURTHER_NAMES}
    assert drafts.of_form({"image": "busybox", drafts.FURTHER: text}) == {"image": "busybox", **kept}


@cases(
    ("text", "words"),
    [
        ("--cap-add", "--cap-add: needs a value"),
        ("--frobnicate", "--frobnicate: is not an option"),
        ("--gpus 2", "--gpus: has a field of its own"),
        ("busybox", "are not options"),
        ("--rm", "--rm: is not an option of a job"),
        ("--dns 'open", "quotation"),
        ("--stop-timeout soon", "--stop-timeout: 'soon' is not a whole number"),
    ],
)
def test_errors_are_shown_at_their_field(text: str, words: str) -> None:
    typed = drafts.of_form({**GOOD, drafts.FURTHER: text})
    found = faults(typed, HERE, NOW)
    assert found.keys() == {drafts.FURTHER}
    assert words in found[drafts.FURTHER]
    with pytest.raises(InputError):
        draft_submission(typed, HERE, NOW)


def test_the_form_has_a_field_for_every_option() -> None:
    assert sorted({*FIELDS, *drafts.FURTHER_NAMES}) == sorted({*NAMES, drafts.FURTHER})
    assert not {*FIELDS} & {*drafts.FURTHER_NAMES}
    assert HINTS.keys() == set(FIELDS)


def test_the_limit_of_the_site_is_shown_at_its_field() -> None:
    strict = replace(HERE, scheduler=SchedulerSettings(max_time=timedelta(hours=1)))
    assert "longer than a job may run" in faults({**GOOD, "time_limit": "2h"}, strict, NOW)["time_limit"]
    assert "the job has none" in faults({**GOOD, "signal": "TERM@60"}, HERE, NOW)["signal"]


def test_host_jobs_may_be_switched_off_and_an_engine_may_be_missing() -> None:
    off = replace(HERE, scheduler=SchedulerSettings(host_jobs=False))
    assert "image" in faults({"command": "true"}, off, NOW)
    node = Node("here", runtimes=(RuntimeStatus("process", True, ""),))
    bare = off.at(Snapshot(nodes=(node,)))
    assert not faults({"command": "true"}, bare, NOW)
    assert "no engine" in faults(GOOD, bare, NOW)["image"]


def test_a_hint_names_the_field_as_the_form_does() -> None:
    assert faults({**GOOD, "share": "yes"}, HERE, NOW)["share"].endswith("fill in GPU memory")
    assert faults({"image": "busybox", "gpu_model": "h100"}, HERE, NOW)["gpu_model"].endswith("fill in GPUs")


def test_the_gpus_are_shown_while_other_fields_are_wrong() -> None:
    spec = gpus_alone({"gpus": "2", "gpu_memory": "x", "image": "two words"}, HERE, NOW)
    assert spec is not None
    assert spec.gpus.minimum == 2
    assert gpus_alone({"gpus": "x"}, HERE, NOW) is None


def test_suitable_gpus_are_shown() -> None:
    views = [view(0), view(1, GpuState.FOREIGN), view(2), view(3, GpuState.DRAINED)]
    picture = snapshot([], views)
    spec = draft_submission(GOOD, HERE, NOW).spec
    assert words(gpu_line(spec, picture)) == "GPUs  2 of 4 suitable GPUs free: 0,2"
    few = draft_submission({**GOOD, "gpus": "device=1,2"}, HERE, NOW).spec
    assert words(gpu_line(few, picture)) == "GPUs  1 of 2 suitable GPUs free: 2"
    none = draft_submission({**GOOD, "gpu_model": "a100"}, HERE, NOW).spec
    assert words(gpu_line(none, picture)) == "GPUs  0 of 0 suitable GPUs free"
    unread = snapshot([], [view(0), view(1, GpuState.UNKNOWN), view(2, GpuState.UNKNOWN)])
    assert words(gpu_line(spec, unread)) == "GPUs  1 of 3 suitable GPUs free: 0, 2 unknown"


def test_gpus_that_are_reserved_for_others_now_are_not_counted_as_free() -> None:
    hour = timedelta(hours=1)
    course = Window("course", NOW - hour, NOW + hour, 1, tenant="bob", priority=80)
    reserved = WindowView(course, WindowState.ACTIVE, gpus=(uuid(0),))
    later = WindowView(replace(course, start=NOW + hour / 2), WindowState.UPCOMING, gpus=(uuid(1),))
    picture = snapshot([], [view(0), view(1)], windows=(reserved, later))
    spec = draft_submission(GOOD, HERE, NOW).spec
    assert words(gpu_line(spec, picture)) == "GPUs  1 of 2 suitable GPUs free: 1, 1 reserved for others"
    for own in (replace(spec, tenant="bob"), replace(spec, priority=80)):
        assert words(gpu_line(own, picture)) == "GPUs  2 of 2 suitable GPUs free: 0,1"
    released = snapshot([], [view(0)], windows=(replace(reserved, state=WindowState.RELEASED),))
    assert words(gpu_line(spec, released)) == "GPUs  1 of 1 suitable GPU free: 0"


def picture_of(jobs: Iterable[Job], gpus: int | Iterable[GpuView], **changes: Any) -> Snapshot:
    """Return a snapshot of a node with an engine and a scheduler."""
    bare = snapshot(jobs, gpus, **{"leader": LEADER, **changes})
    engine = RuntimeStatus("docker", True, "", capability=RuntimeFeatures(images=True))
    return replace(bare, nodes=(replace(bare.nodes[0], runtimes=(engine,)),))


def foreseen(draft: dict[str, str], picture: Snapshot) -> str:
    asked = draft_submission(draft, HERE, NOW)
    found = prospect(picture, Settings(), NOW, asked)
    return words(start_line(found, picture, is_held=asked.held))


class TestExpectedStart:
    full = picture_of(
        [running(1, on=[uuid(0)], time_limit=timedelta(hours=2)), job(2, gpus=1)],
        [view(0, GpuState.ALLOCATED, job_id=1, job_ids=(1,)), view(1)],
    )

    def test_an_immediate_start_names_the_gpus(self) -> None:
        picture = picture_of([], 4)
        assert foreseen({**GOOD, "gpus": "2"}, picture) == "Start now on GPU 0,1 · delays no one"

    def test_a_later_start_has_its_time(self) -> None:
        limited = {**GOOD, "gpus": "2", "time_limit": "1h"}
        told = foreseen(limited, picture_of([self.full.jobs[0]], self.full.gpus))
        assert told.startswith("Start ~13:59, in 1h59m on GPU 0,1")

    def test_delayed_jobs_are_counted(self) -> None:
        assert "delays 1 other job" in foreseen({**GOOD, "priority": "100", "time_limit": "1h"}, self.full)

    def test_an_impossible_start_has_its_reason(self) -> None:
        told = foreseen({**GOOD, "gpus": "9"}, self.full)
        assert told == "Can never start: needs 9 GPUs, this server has 2"

    def test_a_held_job_has_no_start(self) -> None:
        assert "released" in foreseen({**GOOD, "hold": "yes"}, self.full)

    def test_an_array_shows_its_last_start(self) -> None:
        picture = picture_of([], 2)
        told = foreseen({**GOOD, "array": "0-3", "time_limit": "1h"}, picture)
        assert "now on GPU 0" in told
        assert "the last of 4 ~13:00" in told

    def test_obstacles_are_shown(self) -> None:
        paused = replace(picture_of([], 2), controls=Controls(paused=True, paused_by="bob"))
        assert foreseen(GOOD, paused).startswith("Start no forecast: the scheduler was paused by bob")
        assert foreseen(GOOD, picture_of([], 2, leader=None)).endswith("once a scheduler runs")

    def test_a_forecast_that_fails_says_so(self) -> None:
        assert "ValueError: x" in words(start_line(Prospect(NOW, failure="ValueError: x"), self.full))

    def test_an_array_is_foreseen_as_one_entry(self) -> None:
        asked = draft_submission({**GOOD, "array": "0-9999%3"}, HERE, NOW)
        [made] = submitted_jobs(asked, 7, NOW)
        assert (made.id, made.count, made.last_id) == (7, 10_000, 10_006)
        assert made.array is not None
        assert (made.array.id, made.array.limit) == (7, 3)


class TestHistory:
    def test_the_newest_submission_is_first_and_duplicates_are_dropped(self) -> None:
        preferences = Preferences()
        for image in ("a", "b", "a"):
            keep_submission(preferences, {"image": image, "gpus": "1", "command": ""})
        assert [entry.draft["image"] for entry in recent_submissions(preferences)] == ["a", "b"]

    def test_submissions_are_kept_without_values_of_the_environment(self) -> None:
        preferences = Preferences()
        keep_submission(preferences, {"image": "a", "env": "TOKEN=hush SEED=1 HERE"})
        assert recent_submissions(preferences)[0].env == ("TOKEN", "SEED", "HERE")
        assert "hush" not in str(preferences.get("submissions"))
        assert "env" not in recent_submissions(preferences)[0].draft

    def test_the_history_of_submissions_is_bounded(self) -> None:
        preferences = Preferences()
        for number in range(MOST_KEPT + 5):
            keep_submission(preferences, {"image": "a", "name": str(number)})
        keep_submission(preferences, {"image": "a", "command": "x" * 10_000})
        assert len(recent_submissions(preferences)) == MOST_KEPT
        assert recent_submissions(preferences)[0].draft["name"] == str(MOST_KEPT + 4)

    def test_submissions_are_listed_in_columns(self) -> None:
        drafts: list[Draft] = [
            {"name": "whisper", "gpus": "3", "image": "lab/whisper:1", "command": "train"},
            {"name": "", "gpus": "1", "image": "lab/bert-large:1", "command": "true"},
            {"name": "etl", "gpus": "", "image": "", "command": "./etl.sh --all"},
        ]
        assert describe_drafts(drafts) == [
            "whisper  3 GPUs  lab/whisper:1     train",
            "         1 GPU   lab/bert-large:1  true",
            "etl                                ./etl.sh --all",
        ]
        assert describe_drafts([{"image": "a", "command": "b"}]) == ["a  b"]
        assert describe_drafts([]) == []

    @cases("damaged", [None, 3, [3, {}, {"image": 4}, {"command": "x", "env_names": 3}]])
    def test_damaged_files_are_left_out(self, damaged: object) -> None:
        preferences = Preferences()
        preferences.put("submissions", {"drafts": damaged})
        assert all(entry.draft == {"command": "x"} for entry in recent_submissions(preferences))


def test_a_refusal_names_its_field() -> None:
    with pytest.raises(InputError) as told:
        draft_submission({**GOOD, "gpus": "x"}, HERE, NOW)
    assert told.value.where == "gpus"
