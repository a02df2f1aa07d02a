"""Measurements of the benchmarks, on programs of known cost."""

from __future__ import annotations

import os
import select
import sys

import pytest

from bench._measure import Terminal, cpu_seconds, measure, tree

pytestmark = pytest.mark.long  # of the benchmarks, which the test line does not run
ECHO = """
import os, sys, tty
tty.setraw(0)
print(os.get_terminal_size(), "x" * 500, flush=True)
while key := os.read(0, 1):
    os.write(1, b"[" + key + b"]")
"""
BURN = """
import os, time
child = os.fork()
while time.process_time() < 0.2: pass
if child == 0: os._exit(0)
os.waitpid(child, 0)
sleeper = os.fork()
if sleeper: print("y" * 500, flush=True)
time.sleep(600)
"""
LOUD = """
import time
while True: print("z" * 999, flush=True); time.sleep(0.05)
"""


def program(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_a_program_gets_a_terminal_of_the_given_size_with_keys() -> None:
    with Terminal(program(ECHO), os.environ, rows=50, columns=200) as terminal:
        assert terminal.until_painted(500) > 0
        assert 0 < terminal.press(b"j") < 5
        pid = terminal.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cpu_time_includes_ended_children() -> None:
    with Terminal(program(BURN), os.environ) as terminal:
        terminal.until_painted(500)
        assert cpu_seconds(terminal.pid) >= 0.38
        _, child = tree(terminal.pid)
        handle = os.pidfd_open(child)
    try:
        assert select.select([handle], [], [], 10)[0] == [handle], "its child was left running"
    finally:
        os.close(handle)


def test_output_and_memory_are_counted() -> None:
    figures = measure(program(LOUD), os.environ, seconds=1, settle=0, marker="zz")
    assert 1_000 < figures.bytes_per_second < 40_000
    assert 1_000_000 < figures.proportional <= figures.resident < 200_000_000
    assert figures.cpu < 1
    assert 0 < figures.first_paint <= figures.first_content < 30
    assert 1 < figures.wakeups < 100


def test_a_program_that_ends_before_its_first_frame_is_an_error() -> None:
    with (
        pytest.raises(RuntimeError, match="no such thing"),
        Terminal(program("print('no such thing')"), os.environ) as terminal,
    ):
        terminal.until_painted(500)


def test_a_program_without_the_expected_text_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never showed GPU 0"):
        measure(program("print('z' * 999)"), os.environ, seconds=0.1, settle=0, marker="GPU 0")
