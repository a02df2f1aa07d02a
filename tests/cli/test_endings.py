"""Time limits and retries: options, refusals and output."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path

from gputui.domain.job_spec import LimitWarning
from gputui.request import job_values
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import job, running


@cases(
    ("text", "number", "seconds"),
    [
        ("TERM@60", signal.SIGTERM, 60),
        ("SIGUSR1@120", signal.SIGUSR1, 120),
        ("usr2@2m", signal.SIGUSR2, 120),
        ("10@30s", 10, 30),
    ],
)
def test_warnings(text: str, number: int, seconds: int) -> None:
    assert job_values.warning(text, "--signal") == LimitWarning(number, timedelta(seconds=seconds))


def test_signals_to_running_jobs(run: Run, store: KeptStore) -> None:
    put(store, running(), running())
    assert run("signal", "1", "USR1").err.startswith("sending SIGUSR1 to job 1, once a scheduler runs")
    assert run("signal", "1-2", "SIGINT").code == 0
    assert run("signal", "2", "34").code == 0
    assert (store.get(1).signals, store.get(2).signals) == ((10, 2), (2, 34))
    for word in ("STOP", "CONT", "NOPE", "0", "99"):
        assert run("signal", "1", word).code == 2
    assert "gputui suspend" in run("signal", "1", "stop").err


def test_running_jobs_are_suspended(run: Run, store: KeptStore) -> None:
    put(store, running(), job())
    assert run("suspend", "1").err.startswith("suspending job 1, whose time limit continues")
    assert store.get(1).suspended
    assert "suspended" in run("queue").out
    assert run("suspend", "2").code == 1
    assert run("unsuspend", "1").err.startswith("continuing job 1")
    assert run("unsuspend", "1").err == "nothing was changed\n"
    assert not store.get(1).suspended


def test_retry_on_accepts_names_of_causes() -> None:
    assert job_values.retry_on("1,075, oom,gpu-oom,1", "--retry-on") == ("1", "75", "OOM", "GPU_OOM")


def test_limits_warnings_and_retries_reach_the_queue(run: Run, store: KeptStore) -> None:
    limits = ("--time-limit", "1h", "--signal", "USR1@2m")
    retries = ("--retries", "3", "--retry-on", "75,OOM", "--retry-on", "SIGNAL")
    memory = ("--gpus", "1", "--gpu-memory", "10g", "--gpu-memory-step", "20g")
    assert run("submit", *limits, *retries, *memory, "busybox").code == 0
    spec = store.jobs()[1].spec
    assert spec.warning == LimitWarning(signal.SIGUSR1, timedelta(minutes=2))
    assert spec.retry_on == ("75", "OOM", "SIGNAL")
    assert spec.gpu_memory_step == 20 * 1024**3
    shown = run("show", "1").out
    assert "SIGUSR1 2m before the limit" in shown
    assert "75, OOM, SIGNAL" in shown
    wanted = json.loads(run("show", "1", "--json").out)["spec"]
    assert wanted["warning"] == {"signal": 10, "before": 120}
    assert wanted["retry_on"] == ["75", "OOM", "SIGNAL"]


def test_a_job_file_sets_limits_warnings_and_retries(run: Run, store: KeptStore, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[[job]]\nimage = "busybox"\ntime_limit = "1h"\nsignal = "TERM@60"\nretries = 1\nretry_on = [75, "OOM"]\n'
    )
    assert run("submit", "-f", str(path)).code == 0
    spec = store.jobs()[1].spec
    assert (spec.warning, spec.retry_on) == (LimitWarning(15, timedelta(seconds=60)), ("75", "OOM"))


@cases("options", [("--retry-on", "1"), ("--gpus", "1", "--gpu-memory-step", "20g")])
def test_options_about_retries_require_retries(run: Run, options: tuple[str, ...]) -> None:
    result = run("submit", *options, "busybox")
    assert result.code == 2
    assert "add --retries" in result.err


def test_a_setting_bounds_the_time_limit(run: Run, store: KeptStore, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[scheduler]\nmax_time = "1d"\nlimit_all = true\n')
    refused = run("--config", str(config), "submit", "--time-limit", "25h", "busybox")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("gputui: error: --time-limit: 1d01h is longer than a job may run here")
    assert run("--config", str(config), "submit", "busybox").code == 0
    assert store.jobs()[1].spec.time_limit == timedelta(days=1)


def test_a_running_job_says_when_it_ends_and_is_warned(run: Run, store: KeptStore) -> None:
    warning = LimitWarning(15, timedelta(minutes=1))
    job = running(time_limit=timedelta(hours=1), warning=warning)
    put(store, job, job.with_attempt(warned_at=job.started_at))
    assert "by its time limit at" in run("show", "1").out
    assert "warned before at" in run("show", "1").out
    assert "warned at" in run("show", "2").out
    shown = json.loads(run("show", "1", "--json").out)
    assert (shown["limit_at"], shown["warning_at"]) == ("2026-03-02T12:59:00Z", "2026-03-02T12:58:00Z")
