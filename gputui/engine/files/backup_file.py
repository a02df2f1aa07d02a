"""File with the result of the last scheduled backup, for the scheduler's notice, the metrics and `gputui doctor`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gputui.domain.decoding import decode_json
from gputui.domain.kept_data import BackupRecord
from gputui.engine.files.file_modes import read_file, replace_file

FILE = "last-backup.json"


def read_backup_record(state: Path) -> BackupRecord | None:
    """Return the result of the last backup; None if there is no readable one."""
    try:
        return decode_json(read_file(state / FILE), BackupRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_backup_record(state: Path, record: BackupRecord) -> None:
    """Replace the result of the last backup; raises OSError."""
    replace_file(state / FILE, msgspec.json.encode(record) + b"\n")
