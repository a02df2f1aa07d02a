"""Report of a probe job, and the faults that it shows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from gputui.cluster.slurm.site import SlurmSite
from gputui.domain.units import plural

_LISTED = re.compile(r"\(UUID: ((?:GPU|MIG)-[\w./-]+)\)", re.ASCII)


class Look(Struct):
    """A container that the probe job started."""

    given: tuple[str, ...]
    """GPUs that it was given, by Slurm's numbers."""
    lines: list[str]
    code: int | None = None

    def seen(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Return the UUIDs that it listed."""
        return listed(self.lines, wanted)


class ProbeReport(Struct):
    """Facts that a probe job told."""

    user: str = ""
    gpus: dict[str, str] = {}
    """UUIDs by Slurm's numbers; empty for one that the node does not know."""
    host: list[str] = []
    looks: list[Look] = []
    engine: str = ""
    refusal: str = ""
    """Why the container engine did not answer."""
    has_left: bool = False
    """True if the job left a container behind."""
    stayed: int | None = None
    """Number of containers that were there after it."""
    is_whole: bool = False
    """True if the job told everything."""


def report_of(text: str, mark: str) -> ProbeReport:
    """Return the facts in the output of a probe job, and of the job after it."""
    report, output = ProbeReport(), list[str]()
    for line in text.splitlines():
        word, _, value = line.removeprefix(f"{mark} ").partition(" ")
        if line.startswith(f"{mark} "):
            output = _add(report, word, value.strip())
        else:
            output.append(line)
    return report


def _add(report: ProbeReport, word: str, value: str) -> list[str]:
    """Add a fact; return where the lines after it belong."""
    if word == "host":
        return report.host
    if word == "container":
        report.looks.append(Look(tuple(value.split(",")), []))
        return report.looks[-1].lines
    if word == "gpu":
        number, _, uuid = value.partition(" ")
        report.gpus[number] = uuid
    elif word == "code" and report.looks:
        report.looks[-1].code = int(value)
    elif word == "stayed":
        report.stayed = len(value.split())
    elif word in {"user", "engine"}:
        setattr(report, word, value)
    elif word == "refused":
        report.refusal = value or "no answer"
    report.has_left |= word == "left"
    report.is_whole |= word == "end"
    return []


def listed(lines: Iterable[str], wanted: Collection[str] = ()) -> tuple[str, ...]:
    """Return the UUIDs that `nvidia-smi -L` lists; of a GPU with MIG instances those, unless all of it is wanted."""
    found: list[str] = []
    parent = ""
    for line in lines:
        match = _LISTED.search(line)
        if match is None:
            continue
        if match[1].startswith("GPU-"):
            parent = match[1]
        elif parent in wanted:
            continue
        elif found[-1:] == [parent]:
            found.pop()
        found.append(match[1])
    return tuple(found)


def faults_of(report: ProbeReport, site: SlurmSite) -> Iterator[str]:
    """Yield a sentence for each fault."""
    if report.user and report.user != f"{site.uid} {site.user}":
        yield f"the job runs as user {report.user} there, which is {site.uid} {site.user} here"
    yield from _of_mapping(report)
    if report.refusal:
        yield f"Docker refuses this user there: {report.refusal}"
    for look in report.looks:
        if look.code is not None:
            yield from _of_look(look, report.gpus)
    if report.has_left and report.stayed:
        stayed = plural(report.stayed, "container")
        yield f"{stayed} stayed after the job: no epilog removes them (gputui cluster install)"


def _of_mapping(report: ProbeReport) -> Iterator[str]:
    """Yield what is wrong about the UUIDs to which Slurm's numbers lead."""
    host = listed(report.host, report.gpus.values())
    for number, uuid in report.gpus.items():
        if not uuid:
            yield f"Slurm gave GPU {number}, which nvidia-smi on the node does not list"
        elif host and uuid not in host:
            yield f"Slurm's GPU {number} is {uuid}, which nvidia-smi in the job does not list: wrong index in gres.conf"
    known = [uuid for uuid in report.gpus.values() if uuid]
    for uuid in sorted({uuid for uuid in known if known.count(uuid) > 1}):
        numbers = [number for number, its in report.gpus.items() if its == uuid]
        yield f"Slurm's GPUs {' and '.join(numbers)} are both {uuid}"
    if not host:
        yield f"nvidia-smi lists no GPU on the node: {' '.join(report.host[-1:]) or 'it is not there'}"


def _of_look(look: Look, gpus: dict[str, str]) -> Iterator[str]:
    wanted, numbers = [gpus.get(number, "") for number in look.given], ",".join(look.given)
    if not all(wanted):
        return  # told already
    if look.code:
        words = " ".join(look.lines[-2:]) or "it wrote nothing"
        yield f"a container with GPU {numbers} failed with exit code {look.code}: {words}"
        return
    seen = look.seen(wanted)
    extra = [uuid for uuid in seen if uuid not in wanted]
    lacks = [uuid for uuid in wanted if uuid not in seen]
    if extra:
        instead = f" instead of {', '.join(lacks)}" if lacks else " too"
        yield f"a container with GPU {numbers} saw {', '.join(extra)}{instead}"
    elif lacks:
        yield f"a container with GPU {numbers} did not see {', '.join(lacks)}"
