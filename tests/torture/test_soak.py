"""Everything fails for minutes, at random moments: scheduler, engine, probe, wrappers, disk and clock.

Containers and host jobs write down when they begin and with which exit code they end. From that it is proved that no
acknowledged job is lost, no attempt runs twice, no finished attempt is run again, and each end that is told is true.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.job import Job
from tests.e2e import witness
from tests.e2e.site import Site, fresh_site
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd
from tests.torture.test_bad_days import fill, probes_of
from tests.torture.test_host_jobs import wrappers
from tests.torture.test_scheduler_kills import wait_for_the_end

pytestmark = [
    pytest.mark.docker,
    pytest.mark.nvml,
    pytest.mark.torture,
    pytest.mark.long,
    pytest.mark.timeout(7200),
]

SECONDS = 30
"""Seconds of faults for each unit of `--torture`: `--torture 60` makes half an hour."""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
"""Library by which the scheduler's clock jumps, and no other; without it no clock jumps."""
RECORD = 'echo "$GPUTUI_ATTEMPT {gpus} $(cut -d" " -f1 /proc/uptime) {word}" >> {out}/runs'
KILLED = {137, 143, 255}
"""Exit codes with which an engine that goes down reports the jobs that it took along."""


@dataclass
class Soak:
    """A server on which things fail, and what was done to it."""

    site: Site
    rng: random.Random
    seed: int
    scheduler: subprocess.Popen[bytes] | None = None
    wanted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Exit code and retries of each acknowledged job."""
    done: Counter[str] = field(default_factory=Counter)
    hit: set[str] = field(default_factory=set)
    """Attempts of which one wrapper was killed: never both."""

    @property
    def offset(self) -> Path:
        return self.site.directory / "offset"

    def serve(self) -> None:
        """Start a scheduler, whose clock follows the offset where the machine can do that."""
        clock = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.offset),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        environ = {**self.site.environ, **(clock if FAKETIME.exists() else {})}
        command = [sys.executable, "-m", "gputui", "serve", "--wait", "20s"]
        with (self.site.directory / "serve.err").open("ab") as errors:
            self.scheduler = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
            )
        self.site.serving.append(self.scheduler)

    def submit(self, *, is_host: bool | None = None) -> None:
        """Submit a container or a host job, which may be refused while the disk is full."""
        code = self.rng.choice((0, 0, 0, 3))
        retries = self.rng.choice((0, 0, 1)) if code else 0
        seconds = self.rng.choice((0, 0.1, 0.5, 2, 5)) * self.rng.random()
        is_host = self.rng.random() < 0.4 if is_host is None else is_host
        out = str(self.site.out) if is_host else "/out"
        gpus = "${CUDA_VISIBLE_DEVICES:-void}" if is_host else "$NVIDIA_VISIBLE_DEVICES"
        begin, end = (RECORD.format(word=word, gpus=gpus, out=out) for word in ("begin", f"end:{code}"))
        script = ["sh", "-c", f"{begin}; echo on; sleep {seconds:.2f}; {end}; exit {code}"]
        options = ["--gpus", str(self.rng.randint(0, 3)), "--retries", str(retries), "--backoff", "1s"]
        kind = (
            ["--host", *options, "--"]
            if is_host
            else [*options, "-v", f"{out_of(self.site)}", "--network", NETWORK, IMAGE]
        )
        said = self.site.run("submit", *kind, *script, check=False)
        if said.returncode == 0:
            self.wanted[int(said.stdout)] = (code, retries)
        else:
            assert said.stdout == ""
            self.done["submissions refused"] += 1

    def fault(self) -> None:
        """Let one thing fail, beside jobs that start and end."""
        engine = self.site.engine
        faults = [self.kill_scheduler, self.kill_probe, self.kill_wrapper, self.fill_disk, self.kill_engine]
        if FAKETIME.exists():
            faults.append(self.jump)
        if self.rng.random() < 0.2:
            faults = [self.restart_engine, self.stop_scheduler]
        chosen = self.rng.choice(faults)
        assert engine.pid is not None
        chosen()
        self.done[chosen.__name__.replace("_", " ")] += 1

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.site.kill(self.scheduler)
        self.serve()

    def stop_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.terminate()
        self.scheduler.wait(60)
        self.site.serving.remove(self.scheduler)
        self.serve()

    def kill_engine(self) -> None:
        """Kill dockerd within moments of a start or an end, and start it again after up to three seconds."""
        for _ in range(self.rng.randint(1, 3)):
            self.submit()
        time.sleep(self.rng.uniform(0, 0.6))
        self.site.engine.kill()
        self._engine_again()

    def restart_engine(self) -> None:
        self.submit()
        time.sleep(self.rng.uniform(0, 0.6))
        try:
            self.site.engine.stop()
        except subprocess.TimeoutExpired:  # it waits for a container that it takes for running
            self.site.engine.kill()
        self._engine_again()

    def _engine_again(self) -> None:
        time.sleep(self.rng.choice((0, self.rng.uniform(0, 3))))
        self.site.engine.launch(live_restore=self.rng.random() < 0.5)

    def kill_probe(self) -> None:
        assert self.scheduler is not None
        for pid in probes_of(self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_wrapper(self) -> None:
        for _ in range(3):
            self.submit(is_host=True)
        time.sleep(self.rng.uniform(0, 0.6))
        if found := wrappers(self.site.state, self.hit):
            name, pid = self.rng.choice(found)
            self.hit.add(name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def fill_disk(self) -> None:
        ballast = fill(self.site.state)
        time.sleep(self.rng.uniform(0, 2))
        self.submit()
        ballast.unlink()

    def jump(self) -> None:
        """Let the scheduler's clock jump by up to a day, back or ahead."""
        write(self.offset, f"{self.rng.choice((0, 40, -40, 3600, -3600, 86000, -86000)):+d}")


def out_of(site: Site) -> str:
    return f"{site.out}:/out"


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    made = path.with_suffix(".new")
    made.write_text(f"{text}\n")
    made.replace(path)


@pytest.fixture
def soak(tmp_path: Path, own_engine: Dockerd, torture: float) -> Iterator[Soak]:
    site = fresh_site(tmp_path / "site", own_engine)
    site.config.write_text("[scheduler]\nfast_failing_jobs = 0\n[store]\nkeep_finished = 100000\n")
    site.state.mkdir(mode=0o700)
    size = f"size={round(16 + 4 * torture)}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(site.state)], check=True)
    seed = int(os.environ.get("GPUTUI_TEST_SEED", random.randrange(10**6)))
    made = Soak(site, random.Random(seed), seed)
    write(made.offset, "+0")
    try:
        yield made
        site.close()
    finally:
        subprocess.run(["umount", "-l", str(site.state)], check=True)


def test_nothing_is_lost_or_done_twice_while_everything_fails(soak: Soak, torture: float) -> None:
    soak.serve()
    end = time.monotonic() + SECONDS * torture
    while time.monotonic() < end:
        for _ in range(soak.rng.randint(1, 4)):
            soak.submit()
        time.sleep(soak.rng.uniform(0, 2))
        soak.fault()
    wait_for_the_end(soak.site)
    figures = check(soak)
    print(f"\nseed {soak.seed}; {sum(soak.done.values())} faults: {dict(soak.done)}\n{figures}")


def evidence(soak: Soak, shown: Mapping[int, Job], words: str) -> Iterator[str]:
    """Yield the records and log lines of the jobs whose tags `STORE:JOB:ATTEMPT` are named; the disk is gone later."""
    ids = {int(each) for each in re.findall(r":(\d+):\d+", words)}
    yield f"seed {soak.seed}"
    yield from (f"{shown[each]}" for each in ids)
    about = re.compile(rf"job ({'|'.join(map(str, ids))})\b|scheduling|engine|dockerd")
    for path in sorted(soak.site.state.glob("gputui.log*"), reverse=True):
        yield from (line for line in path.read_text().splitlines() if about.search(line))


def check(soak: Soak) -> str:
    """Compare what is told with what the jobs wrote down; return the figures."""
    store, lines = soak.site.store(), soak.site.runs()
    shown = {job.id: job for job in store.jobs().values()} | {job.id: job for job in store.past()}
    assert soak.wanted.keys() <= shown.keys(), "lost jobs"
    begun = witness.begun(lines)
    assert {tag: count for tag, count in begun.items() if count != 1} == {}
    ends = {
        words[0]: int(words[3].split(":")[1]) for line in lines if len(words := line.split()) == 4 and ":" in words[3]
    }
    by_job: dict[int, set[int]] = defaultdict(set)
    for tag in begun:
        by_job[int(tag.split(":")[1])].add(int(tag.split(":")[2]))
    assert by_job.keys() <= soak.wanted.keys(), "jobs ran that nobody acknowledged"
    wrong: list[str] = []
    causes: Counter[str] = Counter()
    for one, (code, retries) in soak.wanted.items():
        job = shown[one]
        prefix = next((tag.rpartition(":")[0] for tag in begun if tag.split(":")[1] == str(one)), "")
        for attempt in job.attempts:
            wrong += judged(job, attempt, f"{prefix}:{attempt.number}", begun, ends, code, retries)
            causes[str(attempt.cause.code) if attempt.cause else "none"] += 1
    assert not wrong, "\n".join(wrong)
    shared = witness.overlaps([line for line in lines if ends.get(line.split()[0]) is not None])
    assert not shared, "\n".join((*shared, *evidence(soak, shown, " ".join(shared))))
    attempts = sum(len(shown[one].attempts) for one in soak.wanted)
    return (
        f"{len(soak.wanted)} jobs, {attempts} attempts, {len(begun)} begun, {len(ends)} ended; causes: {dict(causes)}"
    )


def judged(
    job: Any, attempt: Any, tag: str, begun: Counter[str], ends: dict[str, int], code: int, retries: int
) -> list[str]:
    """Return what is untrue of an attempt."""
    found = []
    told, cause = attempt.exit_code, str(attempt.cause.code) if attempt.cause else ""
    is_last = attempt.number == len(job.attempts)
    if told is not None and told == code and ends.get(tag) != code and told not in KILLED:
        found.append(f"{tag}: exit code {told} is told, but it never wrote its end")
    if tag in ends and told is not None and told != ends[tag]:
        found.append(f"{tag}: it ended with {ends[tag]}, but {told} is told ({cause})")
    if tag in ends and not is_last and not (ends[tag] and retries):
        found.append(f"{tag}: it had ended with {ends[tag]}, and was run again ({cause})")
    if cause == "EndUnknown" and not is_last and not retries:
        found.append(f"{tag}: its end is unknown, and it was run again")
    if tag not in begun and told == 0:
        found.append(f"{tag}: it succeeded without a beginning")
    return found
