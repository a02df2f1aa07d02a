"""Probes on the nodes of the bed: a command that enters a node, as ssh does, and stand-in drivers there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.gpus.standin import StandIn
from tests.slurm.bed import Bed

REFUSAL = "alice@{node}: Permission denied (publickey)."
_ENTER = """\
#!/bin/sh
# Runs a command on a node, unless that refuses it.
if [ -e {here}/refused-$1 ]; then echo '{refusal}' | sed "s/{{node}}/$1/" >&2; exit 255; fi
case $1 in
{cases}
esac
node=$1
shift
echo $$ >> {here}/pids-$node
exec $into env LD_LIBRARY_PATH={library} NVML_STANDIN={here}/$node NVML_STANDIN_STRICT=1 "$@"
"""


class BedProbes:
    """Stand-in drivers of all nodes, by which their probes read; `environ` has the settings."""

    def __init__(self, bed: Bed, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self.drivers = {name: StandIn(directory / name) for name in bed.nodes}
        for name, driver in self.drivers.items():
            uuids = [f"gpu {index} uuid {uuid}" for index, uuid in enumerate(bed.uuids(name, range(bed.gpus)))]
            driver.write(*uuids, gpus=bed.gpus)
        library = next(iter(self.drivers.values())).environment["LD_LIBRARY_PATH"]
        cases = "\n".join(f"{name}) into='{' '.join(bed.into(name))}';;" for name in bed.nodes)
        enter = directory / "enter"
        enter.write_text(_ENTER.format(here=directory, refusal=REFUSAL, cases=cases, library=library))
        enter.chmod(0o755)
        words = f"{enter} {{node}} {sys.executable} -P -m gputui probe"
        memory = directory / "memory"  # not the machine's: nothing of a test stays there
        memory.mkdir(0o700)
        self.environ = {
            "GPUTUI_CLUSTER_PROBE": "ssh",
            "GPUTUI_CLUSTER_PROBE_COMMAND": words,
            "XDG_RUNTIME_DIR": str(memory),
        }

    def refuse(self, name: str) -> None:
        """Refuse connections to a node, and cut those that there are."""
        (self._directory / f"refused-{name}").touch()
        pids = self._directory / f"pids-{name}"
        for pid in pids.read_text().split() if pids.exists() else ():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def accept(self, name: str) -> None:
        """Accept connections to a node again."""
        (self._directory / f"refused-{name}").unlink()
