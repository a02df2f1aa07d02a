"""Waiting jobs on a real engine: none starves, `explain` is correct, and `--dry-run` predicts the starts."""

from __future__ import annotations

import getpass
import re
from datetime import UTC, datetime, timedelta

import pytest

from gputui.domain.job_spec import JobId
from tests.e2e.site import Site, all_over
from tests.e2e.time_limits import end_soon
from tests.machine_load import slowness

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
CONFIG = '[scheduler]\nstop_grace = "2s"\nstale_after = "1m"\n[gpus]\nhang_after = "1m"\n[policy]\npredict = false\n'
"""Settings with a long validity of readings, because they are late on a busy machine."""
NEVER = datetime.max.replace(tzinfo=UTC)
TOLERANCE = timedelta(seconds=4)
"""Time for ending containers and starting others in their place once."""


def test_a_stream_of_narrow_jobs_does_not_starve_a_wide_one(site: Site) -> None:
    """The narrow jobs fit as soon as another ends; all eight GPUs are free together only if some are kept free."""
    site.config.write_text(CONFIG)
    ahead = [site.shell(f"sleep {0.5 + n % 3 / 2}", "--gpus", "1", "--time-limit", "20s") for n in range(8)]
    wide = site.shell("true", "--gpus", "8", "--time-limit", "20s")
    narrow = [site.shell("true", "--gpus", "1", "--time-limit", "60s") for _ in range(5)]
    site.serve()
    site.until(lambda: all_over(site.queue.jobs().values()), 120)
    began = {job.id: job.started_at or NEVER for job in site.queue.jobs().values()}
    assert max(began[job_id] for job_id in ahead) < began[wide] < min(began[job_id] for job_id in narrow)


def why(site: Site, job_id: JobId) -> tuple[str, str]:
    """Return the code from `explain --json` and the sentence from `explain`, whose times are local."""
    shown = site.run("explain", str(job_id)).stdout
    [sentence] = [line.removeprefix("why       ") for line in shown.splitlines() if line.startswith("why ")]
    code: str = site.json("explain", str(job_id))["reason"]["code"]
    return code, sentence


def test_explain_gives_the_true_reason_of_ten_kinds_of_waiting(site: Site) -> None:
    site.config.write_text(CONFIG)
    site.run("tenant", "set", "carol", "--gpus", "1")
    site.run("reserve", "add", "--gpus", "8", "--start", "+3h", "--for", "1h", "--tenant", "course")
    server = site.serve()
    runs = site.shell(SLEEP, "--gpus", "6", "--time-limit", "1h")
    began = datetime.fromisoformat(site.until_state(runs, "RUNNING")["started_at"])
    half = ("--time-limit", "30m")
    fails = site.shell("exit 3", "--retries", "5", "--backoff", "5m")
    head = site.shell("true", "--gpus", "4", *half)
    behind = site.shell("true", "--gpus", "3", *half)
    past = site.shell("true", "--gpus", "1", "--time-limit", "5h")
    big = site.shell("true", "--gpus", "1", "--gpu-memory", "900g", "--anyway", *half)
    strange = site.shell("true", "--gpus", "1", "--gpu-model", "B999", "--anyway", *half)
    later = site.shell("true", "--begin", "+1h")
    after = site.shell("true", "--after", str(runs))
    held = site.shell("true", "--hold")
    mine = site.shell("true", "--gpus", "2", "--tenant", "carol", *half)
    site.until(lambda: (shown := site.json("show", str(fails)))["attempts"] and shown["state"] == "PENDING")
    assert why(site, fails)[0] == "BackOff"

    end = (began + timedelta(hours=1)).astimezone()
    ends = rf"expected (\S+ )?{end:%H:%M} when job {runs} ends by its limit"
    here = "2 free, 6 held by jobs"
    code, text = why(site, head)
    assert code == "Resources"
    assert re.fullmatch(f"needs 4 GPUs: {here}; {ends}", text)
    assert why(site, behind) == ("Priority", f"needs 3 GPUs: {here}; 2 jobs ahead of it")
    assert why(site, big) == ("Resources", "needs 1 GPU with 900G: none of 8 here is suitable")
    assert why(site, strange) == ("Resources", "needs 1 GPU of model B999: none of 8 here is suitable")
    code, sentence = why(site, held)
    assert code == "JobHeldUser"
    assert re.fullmatch(rf"held by {getpass.getuser()} at [0-9: -]+: release it to let it start", sentence)
    assert why(site, after) == ("Dependency", f"starts after job {runs} has completed: it is RUNNING")
    assert why(site, mine) == ("QuotaExceeded", "needs 2 GPUs: carol holds 0 GPUs; at most 1 allowed")
    code, text = why(site, later)
    assert code == "BeginTime"
    assert re.fullmatch(r"begins at (\S+ )?\d\d:\d\d, in (5\dm\d\ds|1h00m)", text)
    code, text = why(site, fails)
    assert re.fullmatch(r"attempt 2 at (\S+ )?\d\d:\d\d, in [1-5]m\d\ds: exit code 3", text)
    code, text = why(site, past)
    assert code == "Reservation"
    assert text.startswith(f"needs 1 GPU: {here}; 8 GPUs reserved by r1 from ")

    site.run("pause")
    code, text = why(site, head)
    assert code == "SchedulerPaused"
    assert text.startswith("the scheduler was paused by ")
    assert why(site, held)[0] == "JobHeldUser"
    site.run("unpause")
    site.kill(server)
    assert why(site, head) == ("NodeUnknown", "no scheduler is running: start `gputui` or `gputui serve`")


def foretold(site: Site, *words: str) -> dict[JobId, datetime]:
    """Return the starts that a dry run prints."""
    lines = site.run(words[0], "--dry-run", *words[1:]).stdout.splitlines()[1:]
    found = [re.match(r" *(\d+) .* -> (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line) for line in lines]
    return {int(each[1]): datetime.fromisoformat(each[2]).astimezone(UTC) for each in found if each}


def near(at: datetime, other: datetime) -> bool:
    return abs(at - other) <= TOLERANCE


def test_predictions_of_dry_runs_come_true(site: Site) -> None:
    """The jobs here run until their limits end them, so that limits are exact.

    The first has a limit that leaves time for all commands. It is changed in the end, which moves all starts with it.
    """
    site.config.write_text(CONFIG)
    lasts = timedelta(seconds=5)
    # of jobs that have waited alike the shorter goes first, but for its priority
    runs = site.shell(SLEEP, "--gpus", "8", "--priority", "100", "--time-limit", "1h")
    four = ("--gpus", "4", "--time-limit", f"{lasts.seconds}s")
    gone, first, second = (site.shell(SLEEP, *four) for _ in range(3))
    site.serve()
    began_at = datetime.fromisoformat(site.until_state(runs, "RUNNING")["started_at"])
    end = began_at + timedelta(hours=1)

    cancelled = foretold(site, "cancel", str(gone))
    assert near(cancelled[second], end)
    site.run("cancel", str(gone))
    drained = foretold(site, "drain", "7")
    assert drained.keys() == {second}
    assert near(drained[second], end + lasts)
    site.run("drain", "7")
    raised = foretold(site, "priority", str(second), "90")
    assert near(raised[second], end)
    assert near(raised[first], end + lasts)
    site.run("priority", str(second), "90")
    third = max(site.jobs()) + 1
    added = foretold(site, "submit", *four, "busybox", "true")
    assert near(added[third], end + 2 * lasts)
    assert site.shell("true", *four) == third

    end_soon(site, runs)
    earlier = end - began_at - timedelta(seconds=site.json("show", str(runs))["time_limit"])
    site.until(lambda: all_over(site.queue.jobs().values()))
    began = {job.id: job.started_at or NEVER for job in site.queue.jobs().values()}
    late = timedelta()
    for job_id, at in sorted({**raised, **added}.items(), key=lambda start: start[1]):  # each follows on the one before
        expected = at - earlier
        assert abs(began[job_id] - expected - late) <= TOLERANCE * slowness(), (job_id, began[job_id], expected, late)
        late = began[job_id] - expected
