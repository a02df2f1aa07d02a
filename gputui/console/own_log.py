"""gputui's own log: a file in the state directory, as text or lines of JSON, and systemd's journal."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import logging.handlers
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from gputui.engine.files import open_file
from gputui.ports.monitor import KEY, LogFields

JOURNAL = "/run/systemd/journal/socket"
MAX_BYTES = 4 * 1024**2
OLD_FILES = 2
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Priorities of syslog(3) by the level from which they apply."""
_NOTHING = LogFields()


class _LogFile(logging.handlers.RotatingFileHandler):
    """Log file with the access rights of the state directory; never follows a symbolic link."""

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.fdopen(open_file(path, flags), "a", encoding="utf-8")


class JsonFormatter(logging.Formatter):
    """Formats a record as an object of JSON on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, process and message; job, attempt and GPUs where they are known."""
        fields = _fields_of(record)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if fields.job is not None:
            line["job"] = fields.job
        if fields.attempt is not None:
            line["attempt"] = fields.attempt
        if fields.gpus:
            line["gpus"] = list(fields.gpus)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class JournalHandler(logging.Handler):
    """Sends records to systemd's journal with fields of their own, by its native protocol. Never blocks."""

    def __init__(self, path: str = JOURNAL) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; one that the journal does not take at once is lost there, and is in the file."""
        with suppress(OSError, ValueError):
            self._send(b"".join(encoded(name, value) for name, value in self._entry(record)))

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        message, fields = record.getMessage(), _fields_of(record)
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        yield "MESSAGE", message
        yield "PRIORITY", str(next((value for level, value in _PRIORITIES if record.levelno >= level), 7))
        yield "SYSLOG_IDENTIFIER", "gputui"
        yield "CODE_FILE", record.pathname
        yield "CODE_LINE", str(record.lineno)
        yield "CODE_FUNC", record.funcName or ""
        yield "GPUTUI_LOGGER", record.name
        if fields.job is not None:
            yield "GPUTUI_JOB", str(fields.job)
        if fields.attempt is not None:
            yield "GPUTUI_ATTEMPT", str(fields.attempt)
        for uuid in fields.gpus:
            yield "GPUTUI_GPU", uuid

    def _send(self, data: bytes) -> None:
        """Send a datagram; what is too long for one is sent as a sealed file in memory, as sd_journal_send(3) does."""
        try:
            self._socket.sendto(data, self._path)
            return
        except OSError as error:
            if error.errno not in {errno.EMSGSIZE, errno.ENOBUFS}:
                raise
        fd = os.memfd_create("gputui-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(data)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))
            self._socket.sendmsg([], [rights], 0, self._path)
        finally:
            os.close(fd)


def encoded(name: str, value: str) -> bytes:
    """Return a field in the journal's native protocol; a value of several lines has its length before it."""
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(data)), data)


def is_journal(fd: int = 2, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether that descriptor leads to the journal, as systemd says in JOURNAL_STREAM."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _fields_of(record: logging.LogRecord) -> LogFields:
    found = getattr(record, KEY, None)
    return found if isinstance(found, LogFields) else _NOTHING


def own_log_path(state: Path) -> Path:
    return state / "gputui.log"


def log_to_file(state: Path, form: str = "text") -> None:
    """Log to a file in the state directory: log lines on the terminal would damage the screen.

    `form` is `text` or `json`. Where stderr is the journal, log there too.
    """
    handler = _LogFile(own_log_path(state), maxBytes=MAX_BYTES, backupCount=OLD_FILES, delay=True)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.getLogger().addHandler(handler)
    if is_journal():
        logging.getLogger().addHandler(JournalHandler())
    logging.getLogger("gputui").setLevel(logging.INFO)
    # it warns of each connection beside the one that is kept, such as that of a followed log
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    logging.raiseExceptions = False  # a full disk is reported on the screen, not in the middle of it
