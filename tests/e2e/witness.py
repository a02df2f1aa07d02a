"""Jobs that record their own runs: what ran, when and on which GPUs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from tests.runtime.dockerd import IMAGE, NETWORK

_RECORD = 'echo "$GPUTUI_ATTEMPT $NVIDIA_VISIBLE_DEVICES $(cut -d" " -f1 /proc/uptime) {word}" >> /out/runs'
"""Command that appends one line. The uptime is the host's, to 10 ms."""


def script(seconds: float, code: int = 0) -> str:
    """Return a script that begins, works for that long and ends with that exit code."""
    return _between(f"sleep {seconds}", code)


def until_let_go(gate: str = "gate") -> str:
    """Return a script that begins, and succeeds once the site releases it, however slow the machine is."""
    return _between(f"until test -e /out/{gate}; do sleep 0.1; done")


def _between(work: str, code: int = 0) -> str:
    begin, end = _RECORD.format(word="begin"), _RECORD.format(word="end")
    return f"{begin}; echo on $NVIDIA_VISIBLE_DEVICES; {work}; {end}; exit {code}"


def spec(out: Path, gpus: int, seconds: float, *, code: int = 0, retries: int = 0) -> JobSpec:
    """Return a job that runs the script as a container."""
    options = ContainerOptions(volumes=(f"{out}:/out",), network=NETWORK)
    command = ("sh", "-c", script(seconds, code))
    return JobSpec(
        image=IMAGE, command=command, name="witness", gpus=GpuRequest(gpus, gpus), retries=retries, options=options
    )


def begun(lines: Iterable[str]) -> Counter[str]:
    """Return how often each attempt began."""
    return Counter(line.split()[0] for line in lines if line.endswith(" begin"))


def ended(lines: Iterable[str]) -> set[str]:
    """Return the attempts that reached their end."""
    return {line.split()[0] for line in lines if line.endswith(" end")}


def overlaps(lines: Iterable[str]) -> list[str]:
    """Return the GPUs that were in two containers at a time."""
    spans: dict[str, list[tuple[float, float, str]]] = {}
    since: dict[str, float] = {}
    for line in lines:
        tag, gpus, at, word = line.split()
        if word == "begin":
            since[tag] = float(at)
            continue
        begin = since.pop(tag)
        for gpu in gpus.split(","):
            if gpu != "void":
                spans.setdefault(gpu, []).append((begin, float(at), tag))
    return [
        f"{gpu}: {before} and {after}"
        for gpu, uses in spans.items()
        for (_, end, before), (begin, _, after) in itertools.pairwise(sorted(uses))
        if begin < end
    ]
