"""`gputui run` over a cluster: wait, output, exit code, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread

from gputui.domain.cluster import Capability
from gputui.domain.job import Job
from gputui.domain.state import JobState
from tests.cluster.commands import MakeCluster, Run
from tests.cluster.fake import FakeCluster, FakeLog
from tests.factories import FakeClock


class _Interrupted(FakeLog):
    """Output of which Ctrl-C ends the reading."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"begun"
        raise KeyboardInterrupt


class InterruptedCluster(FakeCluster):
    """Cluster whose reader presses Ctrl-C."""

    def log(self, job: Job, *, tail: int | None, follow: bool) -> FakeLog:
        return _Interrupted((), None)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Let something happen to the cluster while a command runs."""
    worker = Thread(target=work)
    worker.start()
    yield
    worker.join()


def write_and_fail(cluster: FakeCluster) -> None:
    """Let job 1 write a line and fail, once its output is followed."""
    cluster.followed.wait()
    cluster.write(1, "step 1")
    cluster.end(1, 3)


def test_the_output_is_shown_and_the_exit_code_returned(run: Run, cluster: FakeCluster) -> None:
    with beside(partial(write_and_fail, cluster)):
        result = run("run", "--gpus", "1", "--name", "train", "busybox", "sh")
    assert (result.code, result.out) == (3, "step 1\n")
    assert result.err.splitlines()[-1].startswith("gputui: Job 1 train (alice) failed")


def test_a_job_that_waits_says_why(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--array", "0-2", "--gpus", "2", "busybox")
    first = cluster.snapshot().jobs[0].id

    def work() -> None:
        cluster.asked_twice.wait()
        cluster.end(first)
        cluster.followed.wait()
        cluster.end(2)

    cluster.asked_twice.clear()
    with beside(work):
        result = run("run", "--gpus", "1", "busybox")
    assert (result.code, result.out) == (0, "")
    assert "gputui: job 2 waits: " in result.err


def test_ctrl_c_cancels_the_job(run: Run, use: MakeCluster, clock: FakeClock) -> None:
    cluster = use(InterruptedCluster(clock))
    result = run("run", "busybox")
    assert (result.code, result.out) == (130, "begun\n")
    assert "job 1 is stopping; Ctrl-C again leaves at once" in result.err
    assert cluster.job(1).state is JobState.CANCELLED


def test_output_that_is_there_only_at_the_end_is_shown_then(run: Run, use: MakeCluster, clock: FakeClock) -> None:
    cluster = use(FakeCluster(clock, lacking={Capability.LIVE_LOG: "no live output"}, output=(b"all",)))

    def work() -> None:
        cluster.asked_twice.wait()
        cluster.end(1)

    with beside(work):
        result = run("run", "-q", "busybox")
    assert (result.code, result.out, result.err) == (0, "all\n", "")


def test_a_job_with_input_is_attached_to(run: Run, cluster: FakeCluster) -> None:
    def work() -> None:
        cluster.attached.wait()
        cluster.end(1, 4)

    with beside(work):
        result = run("run", "-i", "busybox", "sh", "-c", "cat; echo out; echo err >&2; exit 4")
    assert (result.code, result.out) == (4, "out\n")
    assert result.err.splitlines()[-2:][0] == "err"
    assert "Job 1 busybox (alice) failed" in result.err


def test_a_job_without_streams_is_followed_by_attach(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")

    with beside(partial(write_and_fail, cluster)):
        result = run("attach", "1")
    assert (result.code, result.out) == (3, "step 1\n")
