"""The line of a failed job's output that is shown in place of its exit code."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import Cause, CauseCode, with_error
from gputui.domain.log_errors import SHOWN, find_error_line
from tests.cases import cases

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/train.py", line 12, in <module>
    main()
  File "/app/train.py", line 8, in main
    raise ValueError("bad shape")
"""
OUTPUTS = {
    TRACEBACK + "ValueError: bad shape\n": "ValueError: bad shape",
    "error: no such option\n" + TRACEBACK + "my.lib.Unusual: x\nlogging: done\n": "my.lib.Unusual: x",
    TRACEBACK
    + "KeyError: 1\n\nThe above exception was the direct cause of the following exception:\n\n"
    + TRACEBACK
    + "RuntimeError: no data\n": "RuntimeError: no data",
    TRACEBACK + "AssertionError\n": "AssertionError",
    "".join(f"[rank1]: {line}\n" for line in (TRACEBACK + "OSError: [Errno 28] No space left").splitlines())
    + "E0312 10:00:00.1 12 api.py:863] failed (exitcode: 1) local_rank: 1 (pid: 7) of binary: python\n"
    + TRACEBACK
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n": "OSError: [Errno 28] No space left",
    TRACEBACK
    + "ValueError: the cause\n"
    + TRACEBACK
    + "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited\n": "ValueError: the cause",
    '  File "train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n': "SyntaxError: invalid syntax",
    "train.py: error: unrecognized arguments: --lrr\n": "train.py: error: unrecognized arguments: --lrr",
    "./run.sh: line 3: pyhton: command not found\n": "./run.sh: line 3: pyhton: command not found",
    "sh: pyhton: not found\n": "sh: pyhton: not found",
    "/bin/sh: 1: pyhton: not found\n": "/bin/sh: 1: pyhton: not found",
    "python: can't open file '/x.py': [Errno 2] No such file or directory\n": (
        "python: can't open file '/x.py': [Errno 2] No such file or directory"
    ),
    "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad alignment\nAborted\n": (
        "bad alignment"
    ),
    "step 4\nRuntimeError: CUDA error: device-side assert triggered\nmake: *** [run] Error 1\n": (
        "RuntimeError: CUDA error: device-side assert triggered"
    ),
    "n1:4711:4790 [2] NCCL WARN NET/IB : Got completion with error 12\n": (
        "n1:4711:4790 [2] NCCL WARN NET/IB : Got completion with error 12"
    ),
    "epoch 1\nSegmentation fault (core dumped)\n": "Segmentation fault (core dumped)",
    "50%|#####     | 1/2\r100%|##########| 2/2\rIndexError: list index out of range\n": (
        "IndexError: list index out of range"
    ),
    "\x1b[31mValueError: \x1b]0;pwned\x07red\x1b[0m\n": "ValueError: red",
    "epoch 1 loss 0.3\nepoch 2 loss 0.2\n": "",
    "": "",
}


@cases(("output", "line"), OUTPUTS.items())
def test_the_error_line_is_found(output: str, line: str) -> None:
    assert find_error_line(raw.encode() for raw in output.splitlines()) == line


def test_secrets_are_removed() -> None:
    env = (("HF_TOKEN", "hf_abcdef"), ("MODE", "fast"), ("DB_PASSWORD", "x"))
    lines = [b"ValueError: hf_abcdef in fast mode, api_key=s3cr3t9 at https://bob:hunter2@host/ (Bearer eyJhbGci)"]
    assert find_error_line(lines, env) == (
        "ValueError: *** in fast mode, api_key=*** at https://bob:***@host/ (Bearer ***)"
    )


def test_only_the_last_lines_count_and_a_long_one_is_cut() -> None:
    assert find_error_line([b"ValueError: old", *[b"step"] * 200]) == ""
    assert len(find_error_line([b"ValueError: " + b"x" * 1_000_000])) == SHOWN
    assert find_error_line([b"x" * 1_000_000 + b"\rValueError: late"]) == "ValueError: late"


@given(st.lists(st.binary(max_size=200), max_size=40))
def test_any_output_is_read_and_the_shown_text_is_harmless(lines: list[bytes]) -> None:
    found = find_error_line(lines)
    assert len(found) <= SHOWN
    assert found.isprintable()


def test_the_end_of_a_job_is_put_into_words() -> None:
    by_itself = Cause(CauseCode.NON_ZERO_EXIT, "exit code 1; failed 4 times in a row, each within 10s")
    assert with_error(by_itself, "ValueError: x") == "ValueError: x; failed 4 times in a row, each within 10s"
    assert with_error(by_itself, "") == by_itself.text
    crashed = Cause(CauseCode.SIGNALLED, "ended by SIGABRT (exit code 134)")
    assert with_error(crashed, "bad alignment") == "ended by SIGABRT (exit code 134): bad alignment"
    assert with_error(Cause(CauseCode.TIME_LIMIT, "over its time limit of 1h"), "x") == "over its time limit of 1h"
    assert with_error(None, "x") == ""
