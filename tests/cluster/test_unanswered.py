"""A submission to a cluster whose answer was lost is repeated once; one that has an answer is a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, LostAnswerError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue, UnansweredSubmissions
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec
from tests.kubernetes.test_lost_jobs import filled, small_disk

ASKED = (Submission(spec(gpus=1, name="train")),)
ROOT = Path(__file__).parents[2]
_IS_KILLED = """
from tests.cluster.test_unanswered import *
with UnansweredSubmissions(Path(sys.argv[1])).begun(ASKED) as (key, _):
    print(key, flush=True)
    os.kill(os.getpid(), 9)
"""
OTHER = (Submission(spec(gpus=1, name="other")),)


class Forgetful(FakeCluster):
    """Submits, and loses the answers to the first calls."""

    losses = 1

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        ids = super().submit(submissions, key, is_new=is_new)
        self.losses -= 1
        if self.losses >= 0:
            raise LostAnswerError("the connection was cut")
        return ids


def backend_of(cluster: FakeCluster, directory: Path) -> EngineBackend:
    return EngineBackend(EngineQueue(cluster, directory=directory), Settings())


@pytest.mark.needs("mount")
def test_a_full_disk_submits_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    cluster = FakeCluster(FakeClock())
    with small_disk(tmp_path / "small") as place:
        backend = backend_of(cluster, place)
        with filled(place), pytest.raises(OSError, match="No space left on device, so nothing is submitted"):
            backend.act(SubmitJobs(ASKED))
        assert not list((place / "submitting").iterdir())
    assert not cluster.snapshot().jobs


def test_the_same_submission_after_a_lost_answer_makes_no_second_job(tmp_path: Path) -> None:
    cluster = Forgetful(FakeClock())
    with pytest.raises(ClusterUnavailableError, match=r"the connection was cut \(submit the same again within an hour"):
        backend_of(cluster, tmp_path).act(SubmitJobs(ASKED))
    again = backend_of(cluster, tmp_path)
    assert not again.act(SubmitJobs(OTHER)).is_repeated
    done = again.act(SubmitJobs(ASKED))
    assert (done.is_repeated, len(cluster.snapshot().jobs)) == (True, 2)
    later = again.act(SubmitJobs(ASKED))
    assert (later.is_repeated, later.ids == done.ids, len(cluster.snapshot().jobs)) == (False, False, 3)


def test_what_was_answered_or_refused_is_submitted_anew(tmp_path: Path) -> None:
    cluster = FakeCluster(FakeClock())
    for _ in range(2):
        backend = backend_of(cluster, tmp_path)
        assert not backend.act(SubmitJobs(ASKED)).is_repeated
        backend.close()
        with pytest.raises(ClusterRefusedError):
            backend.act(SubmitJobs((Submission(replace(ASKED[0].spec, gpus=spec(gpus=99).gpus)),)))
    assert len(cluster.snapshot().jobs) == 2
    assert list((tmp_path / "submitting").iterdir()) == []


def test_what_another_process_submits_just_now_is_not_taken_over(tmp_path: Path) -> None:
    with (
        UnansweredSubmissions(tmp_path).begun(ASKED) as (first, _),
        UnansweredSubmissions(tmp_path).begun(ASKED) as (second, is_repeated),
    ):
        assert (first == second, is_repeated) == (False, False)


def test_what_was_killed_is_taken_over_by_one_process_within_an_hour(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _IS_KILLED, str(tmp_path)]
    key = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()
    with UnansweredSubmissions(tmp_path).begun(ASKED) as first, UnansweredSubmissions(tmp_path).begun(ASKED) as second:
        assert (first, second[1]) == ((key, True), False)
    path = tmp_path / "submitting" / key
    path.write_bytes(path.read_bytes())
    long_ago = path.stat().st_mtime - timedelta(hours=2).total_seconds()
    os.utime(path, (long_ago, long_ago))
    with UnansweredSubmissions(tmp_path).begun(ASKED) as late:
        assert late != (key, True)


def test_nothing_is_kept_where_no_engine_has_a_directory(tmp_path: Path) -> None:
    with UnansweredSubmissions(tmp_path / "none").begun(ASKED) as (_, is_repeated):
        assert not is_repeated
    assert list(tmp_path.iterdir()) == []
