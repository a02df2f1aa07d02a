"""The machines of the other tests here are two, and each has what it should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cases import cases
from tests.needs import ROOT
from tests.process_list import children
from tests.remote import files
from tests.remote.bed import WAYS, Bed, shell_line
from tests.remote.conftest import Laptop
from tests.remote.image import PYTHON_IMAGE
from tests.runtime.dockerd import IMAGE, has_cgroups, is_alive
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.nvml, pytest.mark.xdist_group("remote")]

READ_UUID = """
import ctypes
nvml, gpu, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.create_string_buffer(96)
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(gpu)) == 0
nvml.nvmlDeviceGetUUID(gpu, text, 96)
print(text.value.decode())
"""


@cases("way", WAYS)
def test_a_container_of_each_way_has_gpus_of_the_other_machine(bed: Bed, way: str) -> None:
    gpus = f'"device={bed.uuids[3]},{bed.uuids[1]}"'
    told = bed.docker("run", "--rm", "--network", "host", "--gpus", gpus, IMAGE, "nvidia-smi", "-L", way=way)
    assert told.split("UUID: ")[1:] == [f"{bed.uuids[3]})\nGPU 1: NVIDIA H200 (", f"{bed.uuids[1]})"]


def test_who_logs_in_has_the_gpus_of_the_other_machine_and_no_gputui(bed: Bed) -> None:
    assert bed.on_far("python3", "-c", READ_UUID).strip() == bed.uuids[1]
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert bed.on_far("cat", str(boot)).strip() not in ("", boot.read_text().strip())
    assert bed.on_far("hostname").strip() == files.FAR
    assert not bed.on_far("ls", str(ROOT))
    assert bed.written() == []


@cases(("capability", "reads"), [("utility", True), ("compute", False)])
def test_a_container_has_the_driver_if_it_asks_for_it(bed: Bed, capability: str, reads: bool) -> None:
    gpus = f'"device={bed.uuids[0]}","capabilities={capability}"'
    words = ("--rm", "--network", "host", "--gpus", gpus, PYTHON_IMAGE, "python3", "-c", READ_UUID)
    assert bed.docker("run", *words, check=False) == (bed.uuids[1] if reads else "")


@cases("way", WAYS)
def test_a_shell_of_each_way_sees_the_gpus(bed: Bed, way: str) -> None:
    looks = f"gputui gpus --json; docker image inspect {PYTHON_IMAGE} >/dev/null && ssh lab hostname"
    line = f"{shell_line(bed, way)} -c '{looks}'"
    told = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert told.stdout.endswith(f"{files.FAR}\n"), told.stderr
    assert all(uuid in told.stdout for uuid in bed.uuids)


@pytest.mark.long
@cases("way", WAYS)
def test_a_job_without_gpus_runs_there(laptop: Laptop, way: str) -> None:
    site = laptop(way)
    site.serve()
    job = site.submit("--gpus", "0", "--network", "host", IMAGE, "cat", "/etc/hostname")
    assert site.until_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert site.run("logs", str(job)).stdout.strip() == files.FAR


@pytest.mark.long
def test_nothing_is_left_of_the_machines() -> None:
    bed = Bed(gpus=1)
    bed.start()
    holders = [machine.holder.pid for machine in (bed.far, bed.laptop)]
    below = [pid for holder in holders for pid in children(holder)]
    bed.docker("run", "--detach", IMAGE, "sleep", "1000")
    bed.destroy()
    assert not bed.directory.exists()
    assert not has_cgroups(bed.directory.name)
    until(lambda: not any(is_alive(Path(f"/proc/{pid}")) for pid in (*holders, *below)), "all processes have ended")
