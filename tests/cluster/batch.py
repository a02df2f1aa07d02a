"""Batch scripts run as slurmd runs them: with Slurm's variables, a stand-in nvidia-smi, and Slurm's signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.cluster.slurm.batch_script import batch_script, record_file
from gputui.cluster.slurm.poll import RunNote, parse_note
from gputui.domain.job_spec import ContainerOptions, GpuRequest, Submission
from gputui.domain.settings import ClusterSettings, Settings
from tests.factories import spec, uuid
from tests.process_list import children
from tests.runtime.dockerd import IMAGE
from tests.waiting import until

KEY = "0b5f"
JOB = 4711
NVIDIA_SMI = f"""#!/bin/sh
for i in 0 1 2 3; do echo "$i, {uuid(0).replace("00000000", "0000000$i", 1)}"; done
"""
_DOCKER = """#!/bin/bash
meet() {{ if [[ $1 == "{moment}" && ! -e {folder}/met ]]; then
  touch {folder}/met; while [[ ! -e {folder}/go ]]; do sleep 0.01; done; fi; }}
meet "before $1"
{docker} "$@"
code=$?
meet "after $1"
exit $code
"""


def script_of(
    *,
    held: bool = False,
    array: tuple[int, ...] = (),
    site: Mapping[str, Any] | None = None,
    output: str = "",
    **job: Any,
) -> str:
    """Return the script of a job of the test image; keywords of ContainerOptions go into its options."""
    options = {name: job.pop(name) for name in tuple(job) if name in ContainerOptions.__struct_fields__}
    gpus = job.pop("gpus", GpuRequest())
    the_spec = replace(spec(**{"image": IMAGE, **job, "options": ContainerOptions(**options)}), gpus=gpus)
    settings = Settings(cluster=ClusterSettings(**(site or {})))
    return batch_script(Submission(the_spec, held, array), KEY, settings, output)


def noted(folder: Path) -> RunNote:
    """Return what the script noted of its last run beside an output in this folder."""
    note = parse_note(Path(record_file(f"{folder}/%j.out", str(JOB))).read_text().splitlines())
    assert note is not None
    return note


class BatchRun:
    """A batch script that runs, with the processes that it starts."""

    def __init__(self, folder: Path, script: str, docker_host: str, gpus: str = "", **variables: str) -> None:
        self._folder = folder
        self._ended_witness: int | None = None
        tools = folder / "bin"
        tools.mkdir(exist_ok=True)
        _program(tools / "nvidia-smi", NVIDIA_SMI)
        (folder / "script").write_text(script)
        slurm = {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_CPUS_ON_NODE": "2",
            "SLURM_JOB_GPUS": gpus,
        }
        path = {"PATH": f"{tools}:{os.environ['PATH']}", "DOCKER_HOST": docker_host}
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", str(folder / "script")],
                env={**path, **slurm, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @staticmethod
    def stopping_at(folder: Path, moment: str) -> None:
        """Make the first docker command at this moment wait: `before create`, `after start`, …"""
        (folder / "bin").mkdir()
        _program(folder / "bin" / "docker", _DOCKER.format(moment=moment, folder=folder, docker=shutil.which("docker")))

    @property
    def output(self) -> str:
        """Output of the script so far."""
        return (self._folder / "output").read_text(errors="replace")

    def wait(self) -> int:
        """Return the script's exit code."""
        return self.process.wait(60)

    def end(self) -> None:
        """Kill all that is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    def wait_for(self, text: str) -> None:
        """Wait until the script has printed the text."""
        until(lambda: text in self.output, f"{text!r} was never printed: {self.output!r}")

    def wait_until_it_listens(self) -> None:
        """Wait until the script of a command has handled all signals, and waits for its command and for others."""
        until(self._listens, f"it never listened: {self.output!r}")

    def _listens(self) -> bool:
        process = Path(f"/proc/{self.process.pid}")
        caught = int((process / "status").read_text().partition("SigCgt:")[2].split()[0], 16)
        words = self._children()
        is_last_trap_set = bool(caught & 1 << signal.SIGWINCH - 1)
        witness = words.get(b"sleep\x002147483647\0")
        return is_last_trap_set and witness not in {None, self._ended_witness} and b"sleep\x000.1\0" not in words

    def _children(self) -> dict[bytes, int]:
        """Return the processes that the script has started, by their words."""
        found = {}
        for child in children(self.process.pid):
            with suppress(OSError):  # it has ended meanwhile
                found[Path(f"/proc/{child}/cmdline").read_bytes()] = child
        return found

    def wait_for_moment(self) -> None:
        """Wait until the script has reached the moment."""
        until((self._folder / "met").exists, f"the moment never came: {self.output!r}")

    def go_on(self) -> None:
        """Let the docker command that waits go on."""
        (self._folder / "go").touch()

    def signal(self, number: signal.Signals = signal.SIGTERM, *, everything: bool) -> None:
        """Send a signal to the batch shell, or to all processes of the job as `scancel` does."""
        if everything:
            self._ended_witness = self._children().get(b"sleep\x002147483647\0")
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
