"""gputui's own log as lines of JSON and in systemd's journal."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.console import own_log
from gputui.ports.monitor import about
from tests.factories import uuid


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose handlers are removed at the end."""
    found = logging.getLogger("gputui.test_own_log")
    found.setLevel(logging.INFO)
    found.propagate = False
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)
        handler.close()


def test_a_line_of_json_has_the_fields_of_its_subject(logger: logging.Logger, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    handler.setFormatter(own_log.JsonFormatter())
    logger.addHandler(handler)
    logger.info("job %d attempt %d runs", 7, 2, extra=about(7, 2, [uuid(0)]))
    logger.warning("two\nlines")
    try:
        raise ValueError("bad shape")
    except ValueError:
        logger.exception("a tick failed")
    first, second, third = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["message"], first["job"], first["attempt"], first["gpus"]) == (
        "job 7 attempt 2 runs",
        7,
        2,
        [uuid(0)],
    )
    assert (first["level"], first["logger"], first["pid"]) == ("info", "gputui.test_own_log", os.getpid())
    assert first["time"].endswith("+00:00")
    assert (second["message"], "job" in second) == ("two\nlines", False)
    assert third["traceback"].endswith("ValueError: bad shape")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    """Socket in place of the journal's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "journal"))
        found.settimeout(10)
        yield found


def fields(data: bytes) -> list[tuple[str, str]]:
    """Decode the journal's native protocol."""
    found = []
    while data:
        head, _, rest = data.partition(b"\n")
        name, is_short, value = head.partition(b"=")
        if is_short:
            data = rest
        else:
            length = int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + length], rest[8 + length + 1 :]
        found.append((name.decode(), value.decode()))
    return found


def test_the_journal_gets_fields(logger: logging.Logger, journal: socket.socket, tmp_path: Path) -> None:
    logger.addHandler(own_log.JournalHandler(str(tmp_path / "journal")))
    logger.error("job 7\nfailed", extra=about(7, 2, [uuid(0), uuid(1)]))
    got = fields(journal.recv(1 << 16))
    assert dict(got) | {"GPUTUI_GPU": ""} == {
        "MESSAGE": "job 7\nfailed",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "gputui",
        "CODE_FILE": __file__,
        "CODE_LINE": dict(got)["CODE_LINE"],
        "CODE_FUNC": "test_the_journal_gets_fields",
        "GPUTUI_LOGGER": "gputui.test_own_log",
        "GPUTUI_JOB": "7",
        "GPUTUI_ATTEMPT": "2",
        "GPUTUI_GPU": "",
    }
    assert [value for name, value in got if name == "GPUTUI_GPU"] == [uuid(0), uuid(1)]


def test_a_long_entry_comes_as_a_file(logger: logging.Logger, journal: socket.socket, tmp_path: Path) -> None:
    logger.addHandler(own_log.JournalHandler(str(tmp_path / "journal")))
    logger.info("x" * 2**20)
    _, [fd], *_ = socket.recv_fds(journal, 1, 1)
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        assert dict(fields(file.read()))["MESSAGE"] == "x" * 2**20


def test_a_journal_that_is_away_stops_nothing(logger: logging.Logger, tmp_path: Path) -> None:
    logger.addHandler(own_log.JournalHandler(str(tmp_path / "nowhere")))
    logger.info("lost there")


def test_the_journal_is_recognised_by_its_stream(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        known = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert own_log.is_journal(stream.fileno(), known)
        assert not own_log.is_journal(stream.fileno(), {"JOURNAL_STREAM": "1:2"})
        assert not own_log.is_journal(stream.fileno(), {})
