"""Doctor's view of Slurm, over programs that answer as Slurm's do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.site import PROGRAMS, faults
from gputui.domain.cluster import ClusterFault
from tests.cases import cases

GOOD = {
    "AccountingStorageType": "accounting_storage/none",
    "Epilog": "/etc/slurm/epilog.d/50-gputui",
    "GresTypes": "gpu",
    "MinJobAge": "300 sec",
}
ACCOUNTS = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:h200",
    "AccountingStoreFlags": "job_comment",
}
WEIGHTS = {"PriorityWeightAge": "0", "PriorityWeightFairShare": "0", "PriorityWeightTRES": "(null)"}


class Machine:
    """A machine on which these programs are installed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("sh", "cat"):
            (directory / name).symlink_to(str(shutil.which(name)))
        for name in PROGRAMS:
            self.install(name, "true")
        self.answers(GOOD)

    def install(self, name: str, text: str) -> None:
        """Install a program of this text."""
        program = self.directory / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def answers(self, settings: dict[str, str]) -> None:
        """Make `scontrol show config` print these settings."""
        lines = "\n".join(f"{name:<24}= {value}" for name, value in settings.items())
        self.install("scontrol", f"cat <<'END'\nConfiguration data as of now\n{lines}\nEND")

    @property
    def found(self) -> list[ClusterFault]:
        return self.found_for("docker")

    def found_for(self, container: str) -> list[ClusterFault]:
        return list(faults(SlurmCommands(None, 60, {**os.environ, "PATH": str(self.directory)}), container))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_cluster_in_order_has_no_faults(machine: Machine) -> None:
    assert machine.found == []


def test_missing_commands_are_named(machine: Machine) -> None:
    (machine.directory / "sbatch").unlink()
    (machine.directory / "squeue").unlink()
    (fault,) = machine.found
    assert (fault.name, fault.text, fault.stops_jobs) == ("commands", "sbatch, squeue: not found", True)


@cases(
    ("words", "name"),
    [
        ("slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)", "controller"),
        ("error: Munge encode failed: Failed to access /run/munge/munge.socket.2: No such file", "munge"),
    ],
)
def test_a_silent_controller_and_a_silent_munge_are_told_apart(machine: Machine, words: str, name: str) -> None:
    machine.install("scontrol", f"echo '{words}' >&2; exit 1")
    (fault,) = machine.found
    assert (fault.name, fault.stops_jobs) == (name, True)


@cases(
    ("changes", "name", "stops"),
    [
        ({"Epilog": "(null)"}, "epilog", False),
        ({"GresTypes": "(null)"}, "gres", True),
        ({"MinJobAge": "10 sec"}, "MinJobAge", False),
        ({"PriorityType": "priority/multifactor", **WEIGHTS}, "priority", False),
        ({**ACCOUNTS, "AccountingStorageTRES": "cpu,mem,energy,node,billing"}, "accounts", False),
        ({**ACCOUNTS, "AccountingStoreFlags": "(null)"}, "comments", False),
    ],
)
def test_settings_in_the_way_are_reported(machine: Machine, changes: dict[str, str], name: str, stops: bool) -> None:
    machine.answers({**GOOD, **changes})
    (fault,) = machine.found
    assert (fault.name, fault.stops_jobs) == (name, stops)
    assert fault.hint


def test_without_an_epilog_containers_of_docker_harm_others(machine: Machine) -> None:
    machine.answers({**GOOD, "Epilog": "(null)"})
    assert [fault.is_grave for fault in machine.found] == [True]
    assert machine.found_for("apptainer") == []
    machine.answers({name: value for name, value in GOOD.items() if name != "Epilog"} | {"Epilog[0]": "/etc/e"})
    assert machine.found == []


def test_a_short_memory_is_no_fault_beside_slurmdbd(machine: Machine) -> None:
    machine.answers({**GOOD, "MinJobAge": "10 sec", **ACCOUNTS})
    assert machine.found == []


def test_one_weight_gives_jobs_priorities(machine: Machine) -> None:
    machine.answers({**GOOD, **WEIGHTS, "PriorityType": "priority/multifactor", "PriorityWeightTRES": "gres/gpu=1000"})
    assert machine.found == []
