"""`gputui cluster install`: the epilog for the nodes of a Slurm cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_the_epilog_is_shown_before_it_is_written(run: Run, tmp_path: Path) -> None:
    place = ["--epilog-dir", str(tmp_path)]
    epilog = tmp_path / "50-gputui"
    shown = run("cluster", "install", *place, "--dry-run")
    assert (shown.code, epilog.exists()) == (0, False)
    assert (run("cluster", "install", *place).code, epilog.exists()) == (2, False)
    done = run("cluster", "install", *place, "--yes")
    assert done.code == 0
    assert f"\nEpilog={tmp_path}/*\n" in done.out
    assert epilog.read_text() in shown.out
    assert epilog.stat().st_mode & 0o777 == 0o755
    assert run("cluster", "install", *place, "--yes").out == f"the epilog in {tmp_path} is up to date\n"
    refused = run("cluster", "install", "--epilog-dir", "/proc/none", "--yes")
    assert refused.code == 1
    assert "--epilog-dir" in refused.err


def test_kubernetes_is_offered_nothing_of_slurms(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_CLUSTER", "kubernetes")
    refused = run("cluster", "install", "--epilog-dir", str(tmp_path), "--yes")
    assert (refused.code, list(tmp_path.glob("*gputui"))) == (1, [])
    assert "Kubernetes needs nothing on its nodes: the epilog is Slurm's" in refused.err
    assert "gputui cluster rbac" in refused.err
    monkeypatch.setenv("GPUTUI_CLUSTER", "slurm")
    assert run("cluster", "install", "--epilog-dir", str(tmp_path), "--dry-run").code == 0


def test_the_epilog_succeeds_whatever_docker_does(run: Run, tmp_path: Path) -> None:
    assert run("cluster", "install", "--epilog-dir", str(tmp_path), "--yes").code == 0
    docker = tmp_path / "docker"
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    for answer in ("exit 1", "kill -9 $$", "echo x; echo 7; echo 1 7x; echo; echo nothing 7 >&2", "sleep 0"):
        docker.write_text(f"#!/bin/sh\n{answer}\n")
        docker.chmod(0o755)
        done = subprocess.run([tmp_path / "50-gputui"], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
