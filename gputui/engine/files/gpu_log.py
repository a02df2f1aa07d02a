"""History of every GPU in the last hour, written by the leader, so that a new console starts with filled graphs.

One file with a line of JSON for each step of ten seconds. It may be lost at any time, so it is never synced to disk,
and a torn line is skipped.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from gputui.domain.decoding import json_decoder
from gputui.domain.gpu_history import KEPT, Step, Stepper, TakenStep
from gputui.domain.snapshot import Snapshot
from gputui.engine.files.file_modes import open_file, read_file, replace_file

log = logging.getLogger(__name__)

FILE = "gpus.jsonl"
_DIGITS = 3


class GpuLog:
    """Writer of the GPU history. Blocks briefly every ten seconds; errors lose a step."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._stepper = Stepper()
        self._lines: int | None = None

    def add(self, snapshot: Snapshot) -> None:
        step = self._stepper.add(snapshot)
        if step is None or not step.gpus:
            return
        try:
            if self._lines is None:
                self._lines = len(_lines(self._path))
            if self._lines >= 2 * KEPT:
                kept = _lines(self._path)[-KEPT:]  # the last hour
                replace_file(self._path, b"\n".join(kept))
                self._lines = len(kept)
            short = {
                uuid: Step(*(None if value is None else round(value, _DIGITS) for value in each))
                for uuid, each in step.gpus.items()
            }
            line = msgspec.json.encode(TakenStep(step.at, short))
            fd = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(fd, "ab", buffering=0) as file:
                file.write(b"\n" + line)  # the previous line may be torn
            self._lines += 1
        except OSError as error:  # a full disk is no reason to stop scheduling
            log.debug("readings of GPUs are not kept: %s", error)


def read(directory: Path) -> list[TakenStep]:
    """Return the recorded steps, oldest first; empty if there is no file."""
    steps = []
    for line in _lines(directory / FILE)[-2 * KEPT :]:
        with contextlib.suppress(msgspec.MsgspecError):
            steps.append(_DECODER.decode(line))
    return steps


_DECODER = json_decoder(TakenStep)


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in read_file(path).split(b"\n") if line]
    except OSError:
        return []
