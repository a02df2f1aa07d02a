"""A parameter sweep in real containers, from its submission to the end of its last element."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.site import Site, fresh_site
from tests.e2e.terminal import Terminal
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.tmux]
ELEMENTS = [(lr, str(seed)) for lr in ("1e-3", "1e-4") for seed in range(5)]
SCRIPT = (
    'echo "{index} {lr} {seed} $TAG $GPUTUI_ARRAY_INDEX $GPUTUI_SWEEP_LR $GPUTUI_SWEEP_SEED" >> /out/runs; '
    "test {index} != 3 || exit 7; until test -e /out/gate; do sleep 0.05; done"
)


def states(site: Site, first: int) -> dict[int, str]:
    """Return the states of the elements by index."""
    return {index: str(site.queue.get(first + index).state) for index in range(len(ELEMENTS))}


def counts(site: Site, first: int) -> Counter[str]:
    return Counter(states(site, first).values())


def test_a_sweep_from_its_submission_to_its_end(tmp_path: Path, engine: Dockerd) -> None:
    site = fresh_site(tmp_path / "site", engine, gpus=4)
    try:
        run_sweep(site)
    finally:
        site.close()


def run_sweep(site: Site) -> None:
    for _ in range(4):  # so that the sweep is array 5
        site.submit("--hold", "--network", "none", IMAGE, "true")
    options = ("--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0-4", "--name", "train", "-e", "TAG=at-{lr}")
    first = site.shell(SCRIPT, *options, "--gpus", "1")
    assert first == 5
    site.serve()
    site.until(lambda: counts(site, first) == {"RUNNING": 4, "PENDING": 5, "FAILED": 1})
    shown = site.json("show", "5_3")
    assert (shown["state"], shown["exit_code"], shown["sweep"]) == ("FAILED", 7, {"lr": "1e-3", "seed": "3"})
    assert "train lr=1e-3 seed=3" in site.run("show", "5_3").stdout
    assert "5_3" in site.run("logs", "5_3", "--attempt", "9", check=False).stderr
    assert "4 RUNNING, 1 FAILED, 5 PENDING" in site.run("show", "5").stdout
    rows = [line.split() for line in site.run("queue").stdout.splitlines() if "train" in line]
    assert sorted(row[0] for row in rows) == ["5_0", "5_1", "5_2", "5_4", "5_[5-9]"]
    assert rows[-1][rows[-1].index("5") :][:2] == ["5", "elements:"]
    unfolded = site.run("queue", "--array").stdout
    assert all(f"5_{at} " in unfolded for at in range(5, 10))
    assert "train lr=1e-4 seed=4" in unfolded
    with Terminal([sys.executable, "-m", "gputui"], site.environ, 140, 36) as terminal:
        terminal.until("train[5-9]", "0/10 ✗1", "needs 1 GPU: 0 free", "train lr=1e-3 seed=0")

    site.run("cancel", "-q", "5_2")
    site.until(lambda: states(site, first)[2] == "CANCELLED")
    site.run("cancel", "-q", "5_9")  # one that waits
    site.until(lambda: counts(site, first) == {"RUNNING": 4, "PENDING": 3, "FAILED": 1, "CANCELLED": 2})
    site.let_go()
    site.until(lambda: counts(site, first) == {"COMPLETED": 7, "FAILED": 1, "CANCELLED": 2})
    wanted = [f"{at} {lr} {seed} at-{lr} {at} {lr} {seed}" for at, (lr, seed) in enumerate(ELEMENTS) if at != 9]
    assert sorted(site.runs()) == wanted
    assert site.run("wait", "-q", "5", check=False).returncode == 143, "the highest, of the cancelled element"
