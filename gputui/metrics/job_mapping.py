"""Files that tell NVIDIA's dcgm-exporter which jobs run on which GPU: one for each GPU index, a job id a line.

dcgm-exporter reads them at each of its scrapes (`--hpc-job-mapping-dir`) and adds the label `hpc_job`. It fails where a
file goes away while it reads, so files are replaced and emptied, not removed. MIG instances have no file.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from gputui.domain.snapshot import Snapshot

log = logging.getLogger(__name__)


class JobMapping:
    """Keeps the files of a directory up to date. `write` blocks on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, str] = {}
        self.fault = ""
        """Sentence about the last error; empty when all is well."""

    def write(self, snapshot: Snapshot) -> None:
        """Write the files whose contents differ from what they had."""
        if not snapshot.gpus:
            return
        wanted = _contents(snapshot)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for name, content in wanted.items():
                if self._written.get(name) != content:
                    _replace(self._directory / name, content)
                    self._written[name] = content
            self.fault = ""
        except OSError as error:
            self._written.clear()
            self.fault = f"{error.filename or self._directory}: {error.strerror}"
            log.warning("job files for dcgm-exporter cannot be written: %s", self.fault)


def _contents(snapshot: Snapshot) -> dict[str, str]:
    """Return the content of each file by its name."""
    shown = {job.id: job.shown_id for job in snapshot.jobs if job.state.is_active}
    whole = (view for view in snapshot.gpus if view.gpu.mig_parent is None)
    return {
        str(view.gpu.index): "".join(f"{shown[job_id]}\n" for job_id in view.job_ids if job_id in shown)
        for view in whole
    }


def _replace(path: Path, content: str) -> None:
    """Replace the file in one step; a name that is no number is passed over by dcgm-exporter."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
            file.write(content)
        partial.replace(path)
    except FileExistsError:
        partial.unlink()
        raise
    finally:
        with suppress(OSError):
            partial.unlink()
