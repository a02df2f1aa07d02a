"""Everything fails for an hour, at random moments and at the same time: see `bad_hour.FAULTS`.

Containers and host jobs write down when they begin and with which exit code they end; threads look at their processes
and at the engine's events. From that it is proved that no acknowledged job is lost, no submission is two jobs, no
attempt runs twice, no finished attempt is run again, no GPU is shared unless all its jobs asked for that, and each end
that is told is true.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.domain.errors import Blame, Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.state import JobState
from tests.cases import cases
from tests.e2e import witness
from tests.e2e.site import fresh_site
from tests.needs import need
from tests.runtime.dockerd import Dockerd
from tests.runtime.sshd import Sshd
from tests.torture.bad_hour import SHARERS, BadHour, Wanted
from tests.torture.onlookers import living
from tests.torture.test_scheduler_kills import wait_for_the_end
from tests.waiting import until

pytestmark = [pytest.mark.torture]

SECONDS = 30
"""Seconds of faults for each unit of `--torture`: `--torture 120` makes an hour."""
KILLED = {137, 143, 255}
"""Exit codes with which an engine that goes down reports the jobs that it took along."""


@pytest.fixture
def hour(tmp_path: Path, own_engine: Dockerd, torture: float) -> Iterator[BadHour]:
    need("ssh", "tmux")
    site = fresh_site(tmp_path / "site", own_engine)
    site.state.mkdir(mode=0o700)
    size = f"size={round(16 + 4 * torture)}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(site.state)], check=True)
    seed = int(os.environ.get("GPUTUI_TEST_SEED", random.randrange(10**6)))
    made = BadHour(site, random.Random(seed), seed, Sshd())
    try:
        yield made
    finally:
        made.close()
        site.close()
        shutil.copytree(site.state, tmp_path / "state", ignore=shutil.ignore_patterns("ballast", "*.sock"))
        subprocess.run(["umount", "-l", str(site.state)], check=True)


@pytest.mark.docker
@pytest.mark.nvml
@pytest.mark.ssh
@pytest.mark.tmux
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_nothing_is_lost_or_done_twice_while_everything_fails(hour: BadHour, torture: float) -> None:
    print(f"\nGPUTUI_TEST_LANE=long GPUTUI_TEST_SEED={hour.seed} pytest -s --torture {torture:g} {__file__}")
    end = time.monotonic() + SECONDS * torture
    while time.monotonic() < end:
        hour.tend()
        for _ in range(hour.rng.randint(1, 3)):
            hour.submit()
        hour.ask_again()
        time.sleep(hour.rng.uniform(0, 1.5))
        hour.fault()
    print(table(dict(sorted(hour.done.items()))))
    hour.end()
    wait_for_the_end(hour.site)
    until(lambda: not list(living(hour.processes.mark)), "processes of jobs are left", seconds=120)
    until(lambda: not hour.site.engine.docker("ps", "-aq"), "containers are left", seconds=120)
    verified = hour.site.run("state", "verify", check=False)
    assert verified.returncode == 0, verified
    print(check(hour))


@dataclass(frozen=True)
class Span:
    """Time in which an attempt had a GPU for sure, as uptimes."""

    begin: float
    end: float
    tag: str


@dataclass(frozen=True)
class Evidence:
    """Facts about a run, from outside."""

    lines: list[str]
    """Lines that jobs wrote down: attempt, GPUs, uptime, and `begin` or `end:CODE`."""
    last_seen: Mapping[str, float]
    """Uptime at which a process of each attempt was last alive."""
    together: Iterable[tuple[str, str, str]] = ()
    """GPU and two attempts whose processes were alive at the same time."""
    exits: Mapping[str, int] = field(default_factory=dict)
    """Exit code that the engine told of each container, by its name."""

    @property
    def ends(self) -> dict[str, int]:
        words = [line.split() for line in self.lines]
        return {each[0]: int(each[3].split(":")[1]) for each in words if each[3].startswith("end")}

    def spans(self) -> dict[str, list[Span]]:
        """Return the times in which attempts had each GPU, in order."""
        ended = dict(self.last_seen)
        ended |= {words[0]: float(words[2]) for words in map(str.split, self.lines) if words[3] != "begin"}
        found: dict[str, list[Span]] = defaultdict(list)
        for tag, gpus, at, word in map(str.split, self.lines):
            for gpu in gpus.split(",") if word == "begin" else ():
                if gpu.startswith("GPU-"):
                    found[gpu].append(Span(float(at), ended.get(tag, float(at)), tag))
        return {gpu: sorted(spans, key=lambda span: span.begin) for gpu, spans in found.items()}

    def beside(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield GPU and attempt with those that had the GPU as it began."""
        for gpu, spans in self.spans().items():
            for number, span in enumerate(spans):
                if others := [each.tag for each in spans[:number] if span.begin < each.end]:
                    yield gpu, span.tag, others
        for gpu, one, other in self.together:
            yield gpu, one, [other]


def job_of(tag: str) -> int:
    return int(tag.split(":")[1])


def shared_unasked(evidence: Evidence, sharing: set[int]) -> list[str]:
    """Return where attempts had a GPU at the same time although not all asked for that, or more than may."""
    return [
        f"{gpu}: {tag} beside {others}"
        for gpu, tag, others in evidence.beside()
        if len(others) >= SHARERS or not {job_of(each) for each in (tag, *others)} <= sharing
    ]


def untrue(job: Job, attempt: Attempt, tag: str, evidence: Evidence, wanted: Wanted) -> Iterator[str]:
    """Yield what is untrue of an attempt."""
    ends, told = evidence.ends, attempt.exit_code
    has_begun = any(line.startswith(f"{tag} ") for line in evidence.lines)
    code, is_last = attempt.cause.code if attempt.cause else None, attempt.number == len(job.attempts)
    if told is not None and told == wanted.code and ends.get(tag) != wanted.code and told not in KILLED:
        yield f"{tag}: exit code {told} is told, but it never wrote its end"
    if tag in ends and told is not None and told != ends[tag] and told not in KILLED:
        yield f"{tag}: it ended with {ends[tag]}, but {told} is told ({code})"
    may_again = ends.get(tag, 0) != 0 and (wanted.retries or code is CauseCode.GPU_LOST)
    if tag in ends and told not in KILLED and not is_last and not may_again:
        yield f"{tag}: it had ended with {ends[tag]}, and was run again ({code})"
    if code is CauseCode.END_UNKNOWN and not is_last and not wanted.retries:
        yield f"{tag}: its end is unknown, and it was run again"
    if not has_begun and told == 0:
        yield f"{tag}: it succeeded without a beginning"
    heard = evidence.exits.get("gputui-" + tag.replace(":", "-"))
    is_its_own = heard in KILLED and ends.get(tag) == told
    if heard is not None and told is not None and told != heard and not is_its_own:
        yield f"{tag}: the engine told {heard}, gputui {told}"
    if not attempt.is_over:
        yield f"{tag}: it never ended"


def untrue_of(job: Job, evidence: Evidence, wanted: Wanted, store_id: str) -> Iterator[str]:
    """Yield what is untrue of a job that has ended."""
    for attempt in job.attempts:
        yield from untrue(job, attempt, f"{store_id}:{job.id}:{attempt.number}", evidence, wanted)
    last = job.attempts[-1] if job.attempts else None
    has_succeeded = last is not None and last.exit_code == 0 and last.cause is None
    if (job.state is JobState.COMPLETED) != has_succeeded:
        yield f"job {job.id}: {job.state}, but its last attempt is {last}"
    if last is None or (last.cause is not None and last.cause.blame is Blame.SPEC):
        yield f"job {job.id}: it was never run: {job.cause}"


def check(hour: BadHour) -> str:
    """Compare what is told with what is seen from outside; return the figures."""
    store, lines = hour.site.store(), hour.site.runs()
    shown = {job.id: job for job in store.past()} | {job.id: job for job in store.jobs().values()}
    evidence = Evidence(lines, hour.processes.last_seen, tuple(hour.processes.together), hour.events.exits)
    entries = list(store.audit_log())
    submitted = Counter(entry.target for entry in entries if entry.verb == "submit")
    assert Counter(job.spec.name for job in shown.values()) == Counter(hour.wanted.keys()), "lost jobs, or made twice"
    assert {key: shown[number].spec.name for key, number in hour.ids.items()} == {key: key for key in hour.ids}
    assert submitted == Counter(f"job {number}" for number in shown), "not what the audit log tells"
    begun = witness.begun(lines)
    assert {tag: count for tag, count in begun.items() if count != 1} == {}
    assert {name: count for name, count in hour.events.starts.items() if count > 1} == {}
    wrong: list[str] = []
    store_id = next(iter(begun)).split(":")[0]
    for job in shown.values():
        wrong += untrue_of(job, evidence, hour.wanted[job.spec.name], store_id)
    assert begun.keys() <= {f"{store_id}:{job.id}:{each.number}" for job in shown.values() for each in job.attempts}
    sharing = {job.id for job in shown.values() if hour.wanted[job.spec.name].shares}
    wrong += shared_unasked(evidence, sharing)
    assert not wrong, "\n".join((*wrong, *records(hour, shown, " ".join(wrong))))
    attempts = [attempt for job in shown.values() for attempt in job.attempts]
    causes = Counter(str(each.cause.code) if each.cause else "success" for each in attempts)
    figures = {
        "jobs": len(shown),
        "jobs that asked to share": len(sharing),
        "attempts": len(attempts),
        "attempts begun": len(begun),
        "attempts that wrote their end": len(evidence.ends),
        "ends told by the engine": len(hour.events.exits),
        "looks at all processes": hour.processes.looks,
        "beginnings beside a sharer": sum(1 for _ in evidence.beside()),
        "entries of the audit log": len(entries),
        **{f"ends: {name}": count for name, count in causes.most_common()},
    }
    return table(figures)


def table(figures: Mapping[str, int]) -> str:
    return "\n".join(f"| {name} | {count} |" for name, count in figures.items())


def records(hour: BadHour, shown: Mapping[int, Job], words: str) -> Iterator[str]:
    """Yield records and log lines of the jobs whose tags `STORE:JOB:ATTEMPT` are named; the disk is gone later."""
    ids = {int(each) for each in re.findall(r":(\d+):\d+", words)} | set(map(int, re.findall(r"job (\d+)", words)))
    yield f"seed {hour.seed}"
    yield from (f"{shown[each]}" for each in ids if each in shown)
    yield from (line for line in hour.site.runs() if job_of(line.split()[0]) in ids)
    about = re.compile(rf"job ({'|'.join(map(str, ids))})\b|scheduling|engine|dockerd")
    for path in sorted(hour.site.state.glob("gputui.log*"), reverse=True):
        yield from (line for line in path.read_text().splitlines() if about.search(line))


TIMES = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN, END = "q:7:1 GPU-a 10.0 begin", "q:7:1 GPU-a 12.0 end:0"


@cases(
    "others, seen, asked, wrong",
    [
        ([], (), {7, 8, 9}, 0),
        (["q:8:1 GPU-b 11.0 begin"], (), set(), 0),
        (["q:8:1 GPU-a 12.0 begin"], (), set(), 0),
        (["q:8:1 GPU-a 11.0 begin"], (), set(), 1),
        (["q:8:1 GPU-a 11.0 begin"], (), {8}, 1),
        (["q:8:1 GPU-a 11.0 begin"], (), {7, 8}, 0),
        (["q:8:1 GPU-a 9.0 begin"], (), {7, 8}, 0),
        (["q:8:1 GPU-b,GPU-a 9.0 begin"], (), {7}, 0),  # nobody saw it after its beginning
        (["q:8:1 GPU-b,GPU-a 9.0 begin", "q:8:1 GPU-b,GPU-a 10.5 end:3"], (), {7}, 1),
        (["q:8:1 GPU-a 9.0 begin", "q:8:1 GPU-a 20.0 end:0", "q:9:1 GPU-a 19.0 begin"], (), {7, 8}, 1),
        (["q:8:1 GPU-a 11.0 begin", "q:8:1 GPU-a 13.0 end:0", "q:9:1 GPU-a 11.5 begin"], (), {7, 8, 9}, 1),
        ([], (("GPU-a", "q:7:1", "q:8:1"),), {7}, 1),
        ([], (("GPU-a", "q:7:1", "q:8:1"),), {7, 8}, 0),
    ],
)
def test_the_check_finds_gpus_that_are_shared_unasked(
    others: list[str], seen: tuple[tuple[str, str, str], ...], asked: set[int], wrong: int
) -> None:
    assert len(shared_unasked(Evidence([BEGIN, *others, END], {}, seen), asked)) == wrong


def ended(number: int, code: int | None, cause: CauseCode | None = None) -> Attempt:
    return Attempt(number, ended_at=TIMES, exit_code=code, cause=Cause(cause, "") if cause else None)


AGAIN = (BEGIN.replace(":1 ", ":2 "), END.replace(":1 ", ":2 "))
GONE, UNKNOWN, FAILED = CauseCode.CONTAINER_LOST, CauseCode.END_UNKNOWN, CauseCode.NON_ZERO_EXIT


@cases(
    "attempts, state, lines, words",
    [
        ([ended(1, 0)], JobState.COMPLETED, [BEGIN, END], ""),
        ([ended(1, None, GONE), ended(2, 0)], JobState.COMPLETED, [BEGIN, *AGAIN], ""),
        ([ended(1, 0)], JobState.FAILED, [BEGIN, END], "its last attempt"),
        ([ended(1, 0)], JobState.COMPLETED, [BEGIN], "never wrote its end"),
        ([ended(1, 0)], JobState.COMPLETED, [], "without a beginning"),
        ([ended(1, 3, FAILED)], JobState.FAILED, [BEGIN, END], "it ended with 0"),
        ([ended(1, None, GONE), ended(2, 0)], JobState.COMPLETED, [BEGIN, END, *AGAIN], "was run again"),
        ([ended(1, None, UNKNOWN), ended(2, 0)], JobState.COMPLETED, [BEGIN, *AGAIN], "its end is unknown"),
        ([Attempt(1)], JobState.FAILED, [BEGIN], "never ended"),
        ([], JobState.FAILED, [], "was never run"),
    ],
)
def test_the_check_finds_untrue_ends(attempts: list[Attempt], state: JobState, lines: list[str], words: str) -> None:
    job = Job(7, JobSpec(), TIMES, state=state, attempts=tuple(attempts))
    found = list(untrue_of(job, Evidence(lines, {}), Wanted(0, 0, shares=False), "q"))
    assert any(words in each for each in found) if words else found == []


@cases(
    "told, code, wrong",
    [
        (0, 3, ["q:7:1: the engine told 3, gputui 0"]),
        (0, 137, []),  # an engine that is killed tells that of a container which had ended by itself, as it wrote down
        (7, 137, ["q:7:1: it ended with 0, but 7 is told (NonZeroExit)", "q:7:1: the engine told 137, gputui 7"]),
    ],
)
def test_the_check_believes_the_job_and_then_the_engine(told: int, code: int, wrong: list[str]) -> None:
    state = JobState.FAILED if told else JobState.COMPLETED
    job = Job(7, JobSpec(), TIMES, state=state, attempts=(ended(1, told, FAILED if told else None),))
    evidence = Evidence([BEGIN, END], {}, exits={"gputui-q-7-1": code})
    assert list(untrue_of(job, evidence, Wanted(0, 0, shares=False), "q")) == wrong
