"""The probe of a node of a cluster, as a process: that of the GPUs, with the use of the machine by jobs on them."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from msgspec.structs import asdict

from gputui.gpus.probe.__main__ import main
from gputui.runtime.cgroups import ConsumptionReader


def run(arguments: list[str]) -> int:
    reader = ConsumptionReader()

    def read(name: str, pid: int) -> Mapping[str, object] | None:
        found = reader.of_process(name, pid)
        return asdict(found) if found is not None else None

    return main(arguments, read)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
