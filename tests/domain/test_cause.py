"""Causes of attempts' ends: each has a party to blame, each exit code a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gputui.domain.errors import Blame, Cause, CauseCode, cause_of_exit, end_unknown
from tests.cases import cases

BLAMED = {
    Blame.JOB: {
        CauseCode.NON_ZERO_EXIT,
        CauseCode.OUT_OF_MEMORY,
        CauseCode.GPU_OUT_OF_MEMORY,
        CauseCode.SIGNALLED,
        CauseCode.END_UNKNOWN,
    },
    Blame.OPERATOR: {
        CauseCode.TIME_LIMIT,
        CauseCode.CANCELLED,
        CauseCode.REQUEUED,
        CauseCode.DEPENDENCY_NEVER_MET,
    },
    Blame.SPEC: {
        CauseCode.IMAGE_NOT_FOUND,
        CauseCode.BAD_SPEC,
        CauseCode.NOT_ALLOWED,
        CauseCode.COMMAND_NOT_FOUND,
        CauseCode.COMMAND_NOT_EXECUTABLE,
    },
    Blame.INFRASTRUCTURE: {
        CauseCode.PREEMPTED,
        CauseCode.PULL_FAILED,
        CauseCode.RUNTIME_UNAVAILABLE,
        CauseCode.RUNTIME_ERROR,
        CauseCode.GPU_SETUP_FAILED,
        CauseCode.GPU_LOST,
        CauseCode.CONTAINER_LOST,
        CauseCode.DISK_FULL,
    },
}


def test_causes() -> None:
    # every cause has its blame
    found = {blame: {code for code in CauseCode if Cause(code, "").blame is blame} for blame in Blame}
    assert found == BLAMED
    # exit code zero has no cause
    assert cause_of_exit(0) is None
    assert cause_of_exit(0, oom_killed=True) is None, "a process in it was killed, and it went on"
    # the report of the kernel overrides the exit code
    cause = cause_of_exit(137, oom_killed=True)
    assert cause is not None
    assert cause.code is CauseCode.OUT_OF_MEMORY
    assert "memory limit" in cause.text
    # an end that nobody saw is told with its window
    after = datetime(2026, 11, 27, 14, 2, 40, tzinfo=UTC)
    same_day = end_unknown(after, after + timedelta(minutes=7, seconds=30))
    assert same_day == Cause(CauseCode.END_UNKNOWN, "ended between 14:02 and 14:11 UTC, exit code not recorded")
    later = end_unknown(after, after + timedelta(days=1))
    assert later.text == "ended between 2026-11-27 14:02 and 2026-11-28 14:03 UTC, exit code not recorded"


@cases(
    ("exit_code", "code", "words"),
    [
        (1, CauseCode.NON_ZERO_EXIT, "exit code 1"),
        (3, CauseCode.NON_ZERO_EXIT, "exit code 3"),
        (125, CauseCode.NON_ZERO_EXIT, "exit code 125: the container runtime inside the job failed"),
        (126, CauseCode.NON_ZERO_EXIT, "exit code 126: a command inside the job could not be executed"),
        (127, CauseCode.NON_ZERO_EXIT, "exit code 127: a command inside the job was not found"),
        (128, CauseCode.NON_ZERO_EXIT, "exit code 128"),
        (130, CauseCode.SIGNALLED, "ended by SIGINT (exit code 130)"),
        (137, CauseCode.SIGNALLED, "ended by SIGKILL (exit code 137)"),
        (139, CauseCode.SIGNALLED, "ended by SIGSEGV (exit code 139)"),
        (143, CauseCode.SIGNALLED, "ended by SIGTERM (exit code 143)"),
        (178, CauseCode.SIGNALLED, "ended by signal 50 (exit code 178)"),
        (193, CauseCode.NON_ZERO_EXIT, "exit code 193"),
        (255, CauseCode.NON_ZERO_EXIT, "exit code 255"),
    ],
)
def test_exit_codes_have_words(exit_code: int, code: CauseCode, words: str) -> None:
    assert cause_of_exit(exit_code) == Cause(code, words)


def test_every_other_exit_code_is_the_jobs_own() -> None:
    for exit_code in range(1, 256):
        cause = cause_of_exit(exit_code)
        assert cause is not None, exit_code
        assert cause.blame is Blame.JOB, exit_code
        assert str(exit_code) in cause.text
