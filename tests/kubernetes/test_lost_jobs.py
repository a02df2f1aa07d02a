"""Jobs that were deleted while nobody watched, and records that a full disk does not take: no job is lost."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes import mirror, records
from gputui.cluster.kubernetes.picture import KubeObjects
from gputui.cluster.kubernetes.site import RbacSubject, rbac
from gputui.domain.action import Cancel
from gputui.domain.errors import CauseCode, ClusterError, ClusterUnavailableError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.state import JobState
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.fake.server import FakeKubernetes
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until


@pytest.fixture(autouse=True)
def tries_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_REST", 0.0)
    monkeypatch.setattr(records, "_LOOKS", timedelta())
    monkeypatch.setattr(mirror, "_PAUSE", 0.01)


def watched(harness: KubernetesHarness) -> None:
    until(harness.kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")


def seen_alive(harness: KubernetesHarness, job_id: JobId) -> None:
    job = until(lambda: harness.kube.snapshot().job(job_id), bool, "it is seen")
    assert job is not None
    assert not job.state.is_terminal


def delete_all(fake: FakeKubernetes) -> None:
    """Delete all jobs with their pods, as an administrator does who removes a namespace."""
    for kind in ("jobs", "pods"):
        for item in fake.objects.all(kind):
            fake.objects.remove(kind, item)


def test_a_job_that_was_deleted_while_nobody_watched_stays_with_the_window_of_its_end(
    harness: KubernetesHarness,
) -> None:
    before = datetime.now(UTC)
    [job_id] = harness.kube.submit([Submission(spec(1, name="train"))], "k1")
    began = until(lambda: harness.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
    harness.kube.close()
    delete_all(harness.fake)
    later = harness.open(state="state-0")
    job = later.job(job_id)
    assert (job.state, job.exit_code, job.name, job.submitted_by) == (JobState.FAILED, None, "train", "alice")
    assert job.cause is not None
    assert job.cause.code is CauseCode.END_UNKNOWN
    assert job.cause.text.startswith("ended between ")
    assert job.attempt is not None
    assert began.attempt is not None
    assert (job.attempt.node, job.attempt.started_at) == (began.attempt.node, began.attempt.started_at)
    assert job.attempt.ended_at is not None
    assert before <= job.attempt.ended_at <= datetime.now(UTC)  # it was seen alive until then
    assert [each.id for each in later.history()] == [job_id]


def test_jobs_of_which_only_the_submission_is_known_stay(harness: KubernetesHarness) -> None:
    [single] = harness.kube.submit([Submission(spec(9))], "k1")  # more GPUs than a node has: they wait
    array = harness.kube.submit([Submission(spec(9), array=(0, 3, 5))], "k2")
    harness.kube.close()
    delete_all(harness.fake)
    later = harness.open(state="state-0")
    found = {job.id: job for job in later.history()}
    assert found.keys() == {single, *array}
    assert {job.cause and job.cause.code for job in found.values()} == {CauseCode.END_UNKNOWN}
    assert [job.array and job.array.index for job in map(found.get, array) if job is not None] == [0, 3, 5]
    assert not any(job.attempts for job in found.values())


def test_a_job_that_ended_and_was_deleted_between_two_looks_has_its_end(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    watched(harness)
    job = harness.kube.job(job_id)
    with harness.fake.objects.lock:
        harness.fake.controller.finish(harness.pod(job), 3)
        delete_all(harness.fake)
    found = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it is gone")
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)
    assert found.cause is not None
    assert found.cause.code is CauseCode.NON_ZERO_EXIT


@pytest.mark.parametrize("has_seen_it", [False, True])
def test_a_job_whose_pod_the_watch_tells_after_its_deletion_has_its_end(
    has_seen_it: bool, harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mirror.KubeMirror.objects
    late: list[KubeObjects] = []
    before: list[KubeObjects] = []

    def objects(copy: mirror.KubeMirror) -> KubeObjects:
        found = whole(copy)
        if not found.deleted or late:
            before.append(found)
            return found
        late.append(found)
        return replace(found, pods=before[-1].pods if has_seen_it else {}, gone={})

    monkeypatch.setattr(mirror.KubeMirror, "objects", objects)
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    watched(harness)
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
    with harness.fake.objects.lock:
        harness.fake.controller.finish(harness.pod(job), 3)
        delete_all(harness.fake)
    found = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal and late, "it is gone")
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)


@pytest.mark.parametrize("array", [(), (0, 1, 2), (1, 3)])
def test_a_disk_that_is_full_once_the_job_exists_hides_and_loses_none(
    harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch, array: tuple[int, ...]
) -> None:
    synced, sync = count(), os.fsync

    def fsync(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if is_file and next(synced) == 1:  # the first is what is going to be submitted
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    ids = harness.kube.submit([Submission(spec(9), array=array)], "k1")  # more GPUs than a node has: they wait
    harness.kube.snapshot()
    harness.kube.close()
    delete_all(harness.fake)
    later = harness.open(state="state-0")
    assert {job.id for job in later.history()} == set(ids)
    assert [later.job(job_id).array and later.job(job_id).id for job_id in ids] == [
        each if array else None for each in ids
    ]


def test_a_job_that_another_process_has_just_submitted_is_not_taken_for_lost(harness: KubernetesHarness) -> None:
    watched(harness)
    other = harness.open(state="state-0")
    for number in range(20):
        [job_id] = other.submit([Submission(spec(1))], f"k{number}")
        seen_alive(harness, job_id)
    assert not [job for job in harness.kube.history() if job.cause]


def test_jobs_in_a_namespace_that_is_not_looked_at_are_not_taken_for_lost(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    for document in rbac("other", RbacSubject("User", "ann"), is_operator=False, is_wide=False):
        harness.fake.access.apply(document)
    narrow = harness.open(harness.fake.access.add_user("ann"), state="narrow", namespace="other")
    noted = (harness.directory / "state-0" / "submissions.jsonl").read_bytes()
    (harness.directory / "narrow" / "submissions.jsonl").write_bytes(noted)
    assert narrow.snapshot().jobs == ()
    assert not list(narrow.history())
    assert harness.kube.job(job_id).state is JobState.RUNNING


def test_of_many_jobs_half_of_them_unwatched_none_is_lost(harness: KubernetesHarness) -> None:
    codes: dict[JobId, int | None] = {}
    for number in range(10):
        kube = harness.open(state="shared")
        submissions = [Submission(spec(1)), Submission(spec(1), array=tuple(range(4)))]
        ids = kube.submit(submissions, f"key-{number:03}")
        if number % 2:  # nobody sees how these end
            kube.close()
            codes |= dict.fromkeys(ids)
        else:
            until(kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")
            codes |= dict.fromkeys(ids, number)
        for pod in harness.fake.objects.all("pods"):
            harness.fake.controller.finish(pod, number)
        if number % 2 == 0:
            until(kube.snapshot, lambda snapshot: all(job.state.is_terminal for job in snapshot.jobs), "all have ended")
            kube.close()
        delete_all(harness.fake)
    later = harness.open(state="shared")
    assert {job.id: job.exit_code for job in later.history()} == codes
    unknown = {job.id for job in later.history() if job.cause and job.cause.code is CauseCode.END_UNKNOWN}
    assert unknown == {job_id for job_id, code in codes.items() if code is None}


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Yield a directory on a disk of a few kilobytes."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Fill a disk, to the last byte of its files."""
    ballast = os.open(place / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):
            while os.write(ballast, bytes(4096)):
                pass
        yield
    finally:
        os.close(ballast)
        (place / "ballast").unlink()


@pytest.mark.needs("mount")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_full_disk_ends_no_watch_and_loses_no_job(make: MakeHarness, is_deleted: bool) -> None:
    harness = make()
    with small_disk(harness.directory / "small") as place:
        kube = harness.open(state="small")
        ids = [kube.submit([Submission(spec(1))], f"k{number}")[0] for number in range(4)]
        until(kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")
        with filled(place):
            for job_id in ids:
                harness.fake.controller.finish(harness.pod(kube.job(job_id)), 3)
            if is_deleted:
                delete_all(harness.fake)
            told = until(kube.snapshot, lambda snapshot: snapshot.notices, "the full disk is told").notices
            assert [notice.text for notice in told] == [
                f"ends of jobs cannot be recorded: {place}: No space left on device"
            ]
            harness.fake.add_node("gpu4")
            until(kube.snapshot, lambda snapshot: len(snapshot.nodes) == 4, "the watch goes on")
            states = until(
                lambda: {kube.job(job_id).state for job_id in ids}, lambda found: len(found) == 1, "they end"
            )
            assert states == {JobState.FAILED}
        until(kube.snapshot, lambda snapshot: not snapshot.notices, "the disk takes them")
        later = harness.open(state="small")
        assert {job.id: job.exit_code for job in later.history()} == dict.fromkeys(ids, 3)
        kube.close()
        later.close()


def test_an_error_in_the_watch_is_told_and_the_copy_is_made_anew(
    harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(harness)
    faults = [OSError(28, "No space left on device")]

    def failing(found: object, key: object, value: object) -> None:
        raise faults[0]

    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "_remember", failing)
        harness.kube.act(Cancel((job_id,)))

        def is_told() -> bool:
            try:
                harness.kube.snapshot()
            except ClusterUnavailableError as error:
                return "failed: No space left on device" in str(error)
            return False

        until(is_told, bool, "the error is told")
    harness.fake.add_node("gpu4")

    def nodes() -> int:
        try:
            return len(harness.kube.snapshot().nodes)
        except ClusterUnavailableError:
            return 0

    until(nodes, lambda count: count == 4, "it is watched again")


def test_a_token_that_has_expired_is_told_until_it_is_renewed(harness: KubernetesHarness) -> None:
    watched(harness)

    def told() -> str:
        try:
            harness.kube.snapshot()
        except ClusterError as error:
            return str(error)
        return ""

    harness.fake.breaks = True
    until(told, bool, "the watches are cut")
    harness.fake.access.rename_token(ADMIN, "renewed")
    harness.fake.breaks = False
    until(told, lambda words: "does not know this user" in words, "the token is refused")
    harness.fake.access.rename_token("renewed", ADMIN)
    harness.fake.add_node("gpu4")
    until(told, lambda words: not words, "the token is taken")
    assert len(harness.kube.snapshot().nodes) == 4  # of no kind there is an old copy
