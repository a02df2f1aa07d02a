"""State directories as version 0.2 left them where a group shared them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gputui.domain.job_spec import JobSpec
from gputui.store.codec import encode


def share(state: Path) -> None:
    """Open a directory and its files to its group."""
    for path in state.iterdir():
        path.chmod(0o660)
    state.chmod(0o2770)


def with_warrant(spec: JobSpec, state: Path, store_id: str, uid: int) -> JobSpec:
    """Return the spec with a proof that this user submitted it: a file that only its submitter can have written."""
    name, folder = secrets.token_hex(12), state / "warrants" / str(uid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / name).write_bytes(msgspec.json.encode({"store": store_id, "runs": encode(spec.what_runs)}))
    (folder / name).chmod(0o600)
    for path in (folder, folder / name):
        os.chown(path, uid, -1)
    return replace(spec, warrant=f"{uid}/{name}")
