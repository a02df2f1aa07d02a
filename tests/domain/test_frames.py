"""Frames are decoded from pieces of any size, and other bytes are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gputui.domain import frames
from tests.cases import cases
from tests.needs import ROOT


@cases("pieces", [1, 2, 3, 7, 1000])
def test_frames_are_read_from_pieces_of_any_size(pieces: int) -> None:
    sent = [(frames.OUTPUT, b"x" * 300), (frames.ERRORS, b""), (frames.INPUT, bytes(range(256)))]
    stream = b"".join(frames.frame(*each) for each in sent) + frames.size_frame(40, 132) + frames.exit_frame(-1)
    reader = frames.Frames()
    found = [each for at in range(0, len(stream), pieces) for each in reader.feed(stream[at : at + pieces])]
    assert found[:3] == sent
    assert (frames.size_of(found[3][1]), frames.exit_of(found[4][1])) == ((40, 132), -1)


def test_invalid_frames_are_refused() -> None:
    with pytest.raises(frames.MalformedFrameError):
        list(frames.Frames().feed(b"o\xff\xff\xff\xff"))
    for read in (frames.size_of, frames.exit_of):
        with pytest.raises(frames.MalformedFrameError):
            read(b"x")


def test_a_wrapper_loads_no_patterns_with_them() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import gputui.domain.frames; sys.exit('re' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
