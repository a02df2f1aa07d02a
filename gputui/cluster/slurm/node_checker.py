"""Check of a cluster's nodes by probe jobs: their batch scripts, their report, and the faults that it shows."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm import picture
from gputui.cluster.slurm.batch_script import JOB_ID, body, directive_line, directives, shell_text, word
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.cluster.slurm.listings import JobRow, NodeRow, reason_of
from gputui.cluster.slurm.poll import Polled
from gputui.cluster.slurm.site import SlurmSite
from gputui.cluster.slurm.submission import output_directory, sbatch_line
from gputui.domain.errors import ClusterError, ClusterRefusedError, NotFoundError
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.node_readings import NodeCheck
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from gputui.domain.text import format_limit, plural

LIMIT = timedelta(minutes=15)
"""Time limit of these jobs; pulling the image takes most of the time."""
_STAYED = """
mark={mark}
PATH=${{PATH:+$PATH:}}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if found=$(docker ps --all --quiet --filter=label=gputui.job={job} --filter=label=gputui.key={key}); then
  echo "$mark stayed" $found
  [[ -z $found ]] || docker rm --force --volumes $found >/dev/null 2>&1
fi
echo "$mark end"
"""
_LISTED = re.compile(r"\(UUID: ((?:GPU|MIG)-[\w./-]+)\)", re.ASCII)
_FILE_LATE = 10.0
"""Seconds after a job's end in which its output may appear on a shared file system."""
_LOOK_EVERY = 0.3


def probe_script(run: str, node: str, gpus: int, image: str, settings: Settings, output: str) -> str:
    """Return the script of the probe job `run` with so many GPUs of a node, whose facts follow the word `run`."""
    spec = JobSpec(image=image, command=("nvidia-smi", "-L"), name=run, gpus=GpuRequest(gpus, gpus), time_limit=LIMIT)
    lines = [*_head(Submission(spec), run, node, settings, output), JOB_ID]
    lines += [f"mark={run}\n", f"key={run}\n", f"image={word(image)}\n"]
    lines += [f"has_engine={int(settings.cluster.container == 'docker')}\n"]
    lines += [shell_text("gpus.sh"), "run_job() {\n", *body(Submission(spec), run, settings), "}\n"]
    return "".join([*lines, shell_text("probe.sh")])


def _head(submission: Submission, key: str, node: str, settings: Settings, output: str) -> Iterator[str]:
    once = replace(settings.cluster, requeue=False)
    options: Iterable[str] = (*directives(submission, key, once, output), f"--nodelist={node}")
    yield "#!/bin/bash\n"
    yield from (f"{directive_line(option)}\n" for option in options)


class Look(Struct):
    given: tuple[str, ...]
    """GPUs that it was given, by Slurm's numbers."""
    lines: list[str]
    code: int | None = None


class ProbeReport(Struct):
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
    report, output = ProbeReport(), list[str]()
    for line in text.splitlines():
        if not line.startswith(f"{mark} "):
            output.append(line)
            continue
        word, _, value = line.removeprefix(f"{mark} ").partition(" ")
        value, output = value.strip(), []  # where the lines after a fact belong
        if word == "host":
            output = report.host
        elif word == "container":
            report.looks.append(Look(tuple(value.split(",")), output))
        elif word == "gpu":
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
    return report


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
    if report.user and report.user != f"{site.uid} {site.user}":
        yield f"the job runs as user {report.user} there, which is {site.uid} {site.user} here"
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
    if report.refusal:
        yield f"Docker refuses this user there: {report.refusal}"
    for look in report.looks:
        if look.code is not None:
            yield from _of_look(look, report.gpus)
    if report.has_left and report.stayed:
        stayed = plural(report.stayed, "container")
        yield f"{stayed} stayed after the job: no epilog removes them (gputui cluster install)"


def _of_look(look: Look, gpus: dict[str, str]) -> Iterator[str]:
    wanted, numbers = [gpus.get(number, "") for number in look.given], ",".join(look.given)
    if not all(wanted):
        return  # told already
    if look.code:
        words = "".join(look.lines[-1:]).removeprefix("gputui: ") or "it wrote nothing"
        yield f"a container with GPU {numbers} failed with exit code {look.code}: {words}"
        return
    seen = listed(look.lines, wanted)
    extra = [uuid for uuid in seen if uuid not in wanted]
    lacks = [uuid for uuid in wanted if uuid not in seen]
    if extra:
        instead = f" instead of {', '.join(lacks)}" if lacks else " too"
        yield f"a container with GPU {numbers} saw {', '.join(extra)}{instead}"
    elif lacks:
        yield f"a container with GPU {numbers} did not see {', '.join(lacks)}"


class NodeProbe(Struct):
    row: NodeRow
    gpus: int
    """Number of GPUs that the probe job asks for."""
    numbers: list[int] = []
    """The probe job, and the job that looks at the node after it."""


class NodeChecker(Struct, eq=False):
    _commands: SlurmCommands
    _settings: Settings
    _latest: Callable[[], Polled]
    """Polls Slurm."""
    _forget: Callable[[], None]
    """Makes the next poll ask anew."""

    def check(
        self, nodes: Sequence[str], image: str, patience: timedelta, *, waits: bool, tell: Callable[[str], None]
    ) -> tuple[NodeCheck, ...]:
        """Check these nodes, or all; `waits` asks for all their GPUs, also those that are busy.

        Jobs that have not ended after `patience` are cancelled, also when this is interrupted.
        """
        self._forget()  # a node may have been drained since the last poll
        polled = self._latest()
        known = {row.name: row for row in polled.nodes}
        for name in nodes:
            if name not in known:
                raise NotFoundError(f"there is no node {name}", hint="gputui gpus lists them")
        rows = [known[name] for name in dict.fromkeys(nodes)] or list(polled.nodes)
        skipped = {row.name: why for row in rows if (why := _why_not(row, waits=waits))}
        probes = [NodeProbe(row, _asked(row, waits=waits)) for row in rows if row.name not in skipped]
        run = f"gputui-check-{secrets.token_hex(4)}"
        try:
            refused = dict(self._submit(probes, run, image, polled.site))
            if ran := [probe for probe in probes if probe.numbers]:
                tell(f"probe jobs on {plural(len(ran), 'node')}, for up to {format_limit(patience)}")
                deadline = time.monotonic() + patience.total_seconds()
                numbers = {number for probe in ran for number in probe.numbers}
                while any(not row.life.is_terminal for number, row in self._rows().items() if number in numbers):
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_LOOK_EVERY)
            left = self._rows()
        finally:
            with contextlib.suppress(ClusterError):
                self._commands.run("scancel", f"--name={run}", f"--user={polled.site.user}")
        skipped |= refused
        found = {probe.row.name: self._found(probe, run, polled.site, left, patience) for probe in ran}
        self._forget()
        return tuple(
            found.get(row.name) or NodeCheck(row.name, len(row.gpus), None, why_not=skipped[row.name]) for row in rows
        )

    def _submit(self, probes: Iterable[NodeProbe], run: str, image: str, site: SlurmSite) -> Iterator[tuple[str, str]]:
        directory = output_directory(self._settings, site.home)
        made = self._commands.script(f"mkdir -p -- {shlex.quote(directory)}", "mkdir")
        if made.code:
            raise ClusterRefusedError(made.words, where="cluster.log_directory")
        output = f"{directory.replace('%', '%%')}/check-%j.out"
        for probe in probes:
            node = probe.row.name
            script = probe_script(run, node, probe.gpus, image, self._settings, output)
            result = self._sbatch(probe, script)
            if result.code:
                yield node, f"Slurm refused its probe job: {result.words}"
            elif self._settings.cluster.container == "docker":
                job = probe.numbers[0]  # another one tells which of its containers are left after it
                spec = JobSpec(command=("true",), name=run, time_limit=LIMIT, after_any=(job,))
                lines = _head(Submission(spec), f"{run}.after", node, self._settings, output)
                self._sbatch(probe, "".join([*lines, _STAYED.format(mark=run, key=run, job=job)]))
        self._forget()

    def _sbatch(self, probe: NodeProbe, script: str) -> Result:
        result = self._commands.script(sbatch_line(self._settings.cluster), "sbatch", stdin=script)
        if not result.code:
            probe.numbers.append(int(result.out.strip().partition(";")[0]))
        return result

    def _rows(self) -> Mapping[int, JobRow]:
        return {int(row.number): row for row in self._latest().rows}

    def _found(
        self, probe: NodeProbe, run: str, site: SlurmSite, rows: Mapping[int, JobRow], patience: timedelta
    ) -> NodeCheck:
        row = rows.get(probe.numbers[0])
        if row is not None and row.life is JobState.PENDING:
            why = f"its probe job still waited: {reason_of(row.reason, '', None, datetime.now(UTC)).text}"
            return NodeCheck(probe.row.name, len(probe.row.gpus), probe.numbers[0], why_not=why)
        has_ended = row is None or row.life.is_terminal
        path, text = self._output(probe.numbers, site, f"{run} end", is_late=has_ended)
        report = report_of(text, run)
        faults = list(faults_of(report, site)) if text else []
        if has_ended and not text:
            faults.append(
                f"its output cannot be read here: is {path} on a file system that it shares with this machine?"
            )
        elif has_ended and not report.is_whole:
            faults.append(f"its probe job ended early: {row.state if row else 'unknown'}")
        elif not has_ended:
            faults.append(f"its probe job had not ended after {format_limit(patience)}")
        expected = tuple(report.gpus.values())
        whole = next((look for look in report.looks if not look.code), None)
        return NodeCheck(
            probe.row.name,
            len(probe.row.gpus),
            probe.numbers[0],
            allocated=tuple(report.gpus),
            expected=expected,
            host=listed(report.host, expected),
            seen=listed(whole.lines, expected) if whole else None,
            user=report.user,
            container_engine=report.engine,
            is_cleaned=None if report.stayed is None or not report.has_left else report.stayed == 0,
            faults=tuple(faults),
        )

    def _output(self, numbers: Sequence[int], site: SlurmSite, end: str, *, is_late: bool) -> tuple[str, str]:
        """Return the path of the first job's output, and the text of all, which are removed."""
        directory = output_directory(self._settings, site.home)
        paths = [f"{directory}/check-{number}.out" for number in numbers]
        deadline = time.monotonic() + (_FILE_LATE if is_late else 0)
        while True:
            text = "\n".join(self._commands.run("cat", "--", path).out for path in paths)
            if text.count(end) == len(paths) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY)
        self._commands.run("rm", "-f", "--", *paths)
        return paths[0], text.strip()


def _asked(row: NodeRow, *, waits: bool) -> int:
    return len(row.gpus) - (0 if waits else max(row.used_count, len(row.used)))


def _why_not(row: NodeRow, *, waits: bool) -> str:
    if not row.gpus:
        return "Slurm knows no GPU of it"
    if why := picture.why_down(row) or picture.why_shut(row):
        return why
    if _asked(row, waits=waits) > 0:
        return ""
    if len(row.gpus) == 1:
        return "its GPU is busy: --wait waits for it"
    return f"all of its {len(row.gpus)} GPUs are busy: --wait waits for them"
