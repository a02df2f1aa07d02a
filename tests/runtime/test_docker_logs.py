"""Logs are read to their end, or the reader gets an error, wherever a stream breaks off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from gputui.domain.errors import RuntimeFault
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import logs
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock
from tests.runtime.contract import PATIENCE
from tests.runtime.standin_engine import Handler, StandInEngine, frame

if TYPE_CHECKING:
    import requests

NAME = "c" * 64
PATH = f"/containers/{NAME}/logs"
WHOLE = [frame(b"one\n"), frame(b"two\n")]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInEngine]:
    monkeypatch.setattr(logs, "_FIRST_PAUSE", 0.01)
    made = StandInEngine(tmp_path / "d.sock")
    made.runs(NAME)
    yield made
    made.close()


@pytest.fixture
def runtime(engine: StandInEngine) -> Iterator[DockerRuntime]:
    made = DockerRuntime("store0000000", RuntimeSettings(docker_host=engine.url), FakeClock())
    yield made
    made.close()


def sending(*parts: bytes, ends: bool) -> Callable[[Handler, dict[str, str]], None]:
    return lambda handler, query: handler.stream(parts, ends=ends)


def without_length(handler: Handler, query: dict[str, str]) -> None:
    """The end of a connection to an HTTP/1.0 proxy does not show whether the log is complete."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"".join(WHOLE))
    handler.break_off()


def short(handler: Handler, query: dict[str, str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"".join(WHOLE))
    handler.break_off()


BREAKS = {
    "between frames": sending(*WHOLE, ends=False),
    "inside a frame": sending(*WHOLE, frame(b"three and more\n")[:12], ends=False),
    "half a frame in a whole answer": sending(*WHOLE, frame(b"three and more\n")[:12], ends=True),
    "without a length": without_length,
    "before its length": short,
    "by the engine's own error": sending(*WHOLE, frame(b"Error grabbing logs: invalid character\n", 3), ends=True),
}


@cases("how", BREAKS)
def test_an_interrupted_log_is_not_complete(
    engine: StandInEngine, runtime: DockerRuntime, tmp_path: Path, how: str
) -> None:
    engine.special[PATH] = BREAKS[how]
    read: list[bytes] = []
    with pytest.raises(RuntimeFault, match="the log is incomplete"):
        read.extend(runtime.logs(NAME))
    assert read == ([] if how == "before its length" else [b"one", b"two"]), "what came is given"
    with pytest.raises(RuntimeFault):
        runtime.save_log(NAME, tmp_path / "1.log")
    assert not list(tmp_path.glob("*.log*"))
    assert not list(tmp_path.glob(".*"))


def test_a_log_is_read_completely(engine: StandInEngine, runtime: DockerRuntime, tmp_path: Path) -> None:
    engine.special[PATH] = sending(*WHOLE, ends=True)
    assert list(runtime.logs(NAME)) == [b"one", b"two"]
    runtime.save_log(NAME, tmp_path / "1.log")
    assert (tmp_path / "1.log").read_bytes() == b"one\ntwo\n"


def test_a_log_that_the_engine_gives_no_more_is_kept_as_a_sentence(
    engine: StandInEngine, runtime: DockerRuntime, tmp_path: Path
) -> None:
    """A kill of dockerd while it removes a container leaves it dead: its output can never be read again."""
    engine.special[PATH] = lambda handler, query: handler.reply({"message": "container is dead"}, 409)
    with pytest.raises(RuntimeFault, match="dead"):
        runtime.save_log(NAME, tmp_path / "1.log")
    engine.runs(NAME, Status="dead", Running=False, Dead=True)
    runtime.save_log(NAME, tmp_path / "1.log")
    assert "the output is gone" in (tmp_path / "1.log").read_text()
    with pytest.raises(RuntimeFault, match="cannot keep the log at"):  # and the engine is not to blame
        runtime.save_log(NAME, tmp_path / "1.log" / "2.log")


class Writer:
    """Container that wrote numbered lines, and whose followers are repeatedly disconnected."""

    def __init__(self, engine: StandInEngine, count: int, cut_every: int) -> None:
        self._engine = engine
        self._lines = [self._line(number) for number in range(count)]
        self._cut_every = cut_every
        self.opened: list[dict[str, str]] = []

    def _line(self, number: int) -> tuple[str, bytes]:
        # three lines have the same time, and the two streams are out of order
        at = f"2026-01-01T00:00:{number // 300:02}.{(1000 + number // 3 * 1000 - number % 2 * 400):09}Z"
        return at, frame(f"{at} line {number}\n".encode(), 1 + number % 2)

    def __call__(self, handler: Handler, query: dict[str, str]) -> None:
        self.opened.append(query)
        written = self._lines[: self._cut_every * len(self.opened)]
        wanted = [content for at, content in written if self.unix_time(at) >= query.get("since", "")]
        if query["follow"] == "0" or len(written) < len(self._lines):
            handler.stream(wanted, ends=query["follow"] == "0")
            return
        self._engine.states[NAME] |= {"Status": "exited", "Running": False}
        handler.stream(wanted[:-3])

    def unix_time(self, at: str) -> str:
        return logs.unix_time(at.encode())


@pytest.mark.parametrize("remembered", [4096, 60])
def test_a_cut_connection_neither_loses_nor_repeats_followed_lines(
    engine: StandInEngine, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr(logs, "_REMEMBERED", remembered)
    writer = engine.special[PATH] = Writer(engine, 400, 50)
    lines = list(runtime.logs(NAME, follow=True))
    assert sorted(lines) == sorted(f"line {number}".encode() for number in range(400))
    assert len(writer.opened) > 4
    assert writer.opened[-1]["follow"] == "0", "the rest is read once it has ended"


def test_a_followed_log_continues_when_the_engine_is_back(engine: StandInEngine, runtime: DockerRuntime) -> None:
    """A graceful end of the stream while the container runs is no end of its log."""
    times = [f"2026-01-01T00:00:0{number}.000000000Z" for number in range(3)]
    parts = [frame(f"{at} line {number}\n".encode()) for number, at in enumerate(times)]
    opened: list[str] = []

    def answer(handler: Handler, query: dict[str, str]) -> None:
        opened.append(query.get("since", ""))
        if len(opened) == 3:
            engine.states[NAME] |= {"Status": "exited", "Running": False}
        handler.stream(parts[: len(opened)])

    engine.special[PATH] = answer
    assert list(runtime.logs(NAME, follow=True)) == [b"line 0", b"line 1", b"line 2"]
    assert opened[0] == ""


def test_output_lost_with_its_container_is_reported(engine: StandInEngine, runtime: DockerRuntime) -> None:
    def answer(handler: Handler, query: dict[str, str]) -> None:
        del engine.created[NAME]
        handler.stream([frame(b"2026-01-01T00:00:00.000000000Z one\n")], ends=False)

    engine.special[PATH] = answer
    with pytest.raises(RuntimeFault, match="removed before all of it was read"):
        list(runtime.logs(NAME, follow=True))


def test_closing_ends_a_silent_log(engine: StandInEngine, runtime: DockerRuntime) -> None:
    engine.special[PATH] = lambda handler, query: handler.stream(_then_silence(engine))
    stream = runtime.logs(NAME, follow=True)
    lines: list[bytes] = []
    begun = threading.Event()

    def read() -> None:
        for line in stream:
            lines.append(line)
            begun.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert begun.wait(PATIENCE)
    stream.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert lines == [b"one"]


def _then_silence(engine: StandInEngine) -> Iterator[bytes]:
    yield frame(b"2026-01-01T00:00:00.000000000Z one\n")
    engine.stopped.wait()


@cases(
    ("stamp", "since"),
    [
        (b"2026-01-01T00:00:00.000000001Z", "1767225600.000000001"),
        (b"2026-01-01T01:00:00.5+01:00", "1767225600.500000000"),
        (b"2026-01-01T00:00:00Z", "1767225600.000000000"),
    ],
)
def test_times_are_formatted_for_the_engine(stamp: bytes, since: str) -> None:
    assert logs.unix_time(stamp) == since


@cases(("begin", "is_stamped"), [(b"", False), (b"2026-01-01T00:00:00.000000000Z ", True)])
def test_of_a_terminal_that_ends_no_line_only_a_piece_is_kept(begin: bytes, is_stamped: bool) -> None:
    def endless(_: int) -> Iterator[bytes]:
        yield begin + b"x"
        for _ in range(256):
            yield b"x" * 16 * 1024

    class Response:
        headers = {"Content-Type": "application/vnd.docker.raw-stream"}  # noqa: RUF012 - as of requests
        iter_content = staticmethod(endless)
        raw = SimpleNamespace(chunked=True)

    pieces = [piece for _, piece in logs.frames_of(cast("requests.Response", Response), is_stamped=is_stamped)]
    assert max(map(len, pieces)) < 2 * 1024**2
    assert all(piece.startswith(begin) for piece in pieces)
    assert sum(len(piece) - len(begin) for piece in pieces) == 1 + 256 * 16 * 1024
