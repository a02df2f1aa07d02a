"""The inside of host jobs: a shell with their GPUs, where they work; their processes by /proc."""

from __future__ import annotations

import os
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault
from gputui.domain.process import ProcessRow, Shell
from gputui.runtime.process_attempt import AttemptFolder
from gputui.runtime.process_record import Ledger
from gputui.runtime.process_rows import Rows


class ProcessInside:
    """Host processes of one store."""

    def __init__(self, store_id: str, directory: Path) -> None:
        self._root = directory / "attempts"
        self._ledger = Ledger(store_id, self._root)
        self._rows = Rows()

    def shell(self, container_id: str) -> Shell:
        """A shell of the one who asks, that sees the job's GPUs and no others."""
        pids = self._members(container_id)
        manifest = AttemptFolder(self._root / container_id).manifest()
        visible = ",".join(manifest.gpus) if manifest else ""
        environment = {
            "CUDA_VISIBLE_DEVICES": visible,
            "NVIDIA_VISIBLE_DEVICES": visible or "void",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        shell = os.environ.get("SHELL", "")
        chosen = shell if Path(shell).is_absolute() and os.access(shell, os.X_OK) else "/bin/sh"
        return Shell((chosen,), "this host, with the job's GPUs and its directory", environment, _directory(pids))

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Its processes, without the wrapper."""
        return tuple(self._rows.of(sorted(self._members(container_id))))

    def close(self) -> None:
        """There is nothing to let go of."""

    def _members(self, container_id: str) -> tuple[int, ...]:
        pids = self._ledger.members(container_id)
        if not pids:
            raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, "none of its processes lives"))
        return pids


def _directory(pids: tuple[int, ...]) -> str | None:
    """Where the first of them works, as far as this user may know and enter."""
    for pid in sorted(pids):
        try:
            place = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            continue
        if os.access(place, os.X_OK) and place.is_dir():
            return str(place)
    return None
