"""Files for dcgm-exporter: one for each GPU with the ids of its jobs, never removed."""

from __future__ import annotations

import os
from pathlib import Path

from gputui.domain.gpu import GpuState
from gputui.metrics.collector import JobMapping
from tests.factories import gpu, running, snapshot, uuid, view


def test_a_file_names_the_jobs_on_a_gpu_and_is_emptied_when_they_are_gone(tmp_path: Path) -> None:
    there = tmp_path / "jobs"
    mapping = JobMapping(there)
    jobs = [running(7, on=[uuid(0)]), running(8, on=[uuid(0)])]
    instance = gpu(1, uuid="MIG-1", mig_parent=uuid(1), mig_profile="1g.10gb")
    views = [view(0, GpuState.ALLOCATED, job_ids=(7, 8)), view(1), view(1, gpu=instance)]
    mapping.write(snapshot(jobs, views))
    assert {path.name: path.read_text() for path in there.iterdir()} == {"0": "7\n8\n", "1": ""}
    mapping.write(snapshot((), [view(0), view(1)]))
    assert {path.name: path.read_text() for path in there.iterdir()} == {"0": "", "1": ""}


def test_the_exporter_can_read_the_files_whatever_the_umask(tmp_path: Path) -> None:
    there, before = tmp_path / "jobs", os.umask(0o077)
    try:
        JobMapping(there).write(snapshot((), 1))
    finally:
        os.umask(before)
    assert (there.stat().st_mode & 0o777, (there / "0").stat().st_mode & 0o777) == (0o755, 0o644)


def test_an_unwritable_directory_is_reported_and_retried(tmp_path: Path) -> None:
    there = tmp_path / "jobs"
    there.write_text("in the way")
    mapping = JobMapping(there)
    mapping.write(snapshot((), 1))
    assert str(there) in mapping.fault
    there.unlink()
    mapping.write(snapshot((), 1))
    assert (there / "0").read_text() == ""
    assert mapping.fault == ""
