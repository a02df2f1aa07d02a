"""`gputui submit -f`: every error names file, job and key, and nothing is submitted unless all is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.job_spec import GpuRequest
from gputui.request import job_file
from gputui.request.job_options import KEYS
from gputui.request.submitter import Submitter
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import NOW

WHOLE = """
[[job]]
image = "busybox"
command = ["echo", "a b", 3]
gpus = "2-4"
env = {A = "1", B = 2}
label = ["team=vision"]
volume = ["/a:/b"]
after = [1]
time_limit = "1h"
priority = 70
cpus = 1.5
hold = true
begin = 2026-03-02T18:00:00Z

[[job]]
host = true
command = ["sleep", "1"]
gpus = 2
gpu_memory = "10g"
share = true
retries = 1
"""


def write(tmp_path: Path, content: str | bytes) -> str:
    file = tmp_path / "jobs.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def test_every_table_is_a_job(run: Run, store: KeptStore, tmp_path: Path) -> None:
    assert run("submit", "busybox").code == 0
    result = run("submit", "-f", write(tmp_path, WHOLE))
    assert (result.code, result.out, result.err) == (0, "2\n3\n", "")
    first, second = store.get(2), store.get(3)
    assert first.spec.command == ("echo", "a b", "3")
    assert first.spec.gpus == GpuRequest(2, 4)
    assert first.spec.options.env == (("A", "1"), ("B", "2"))
    assert first.spec.options.labels == (("team", "vision"),)
    assert (first.spec.after, first.held, first.priority) == ((1,), True, 70)
    assert first.spec.time_limit == timedelta(hours=1)
    assert first.spec.begin_at == NOW.replace(hour=18)
    assert second.spec.gpus == GpuRequest(2, 2, memory=10 * 1024**3, share=True)
    assert (second.spec.is_host, second.spec.retries) == (True, 1)


@cases("key", KEYS)
def test_every_key_is_read_or_refused_by_name(tmp_path: Path, key: object) -> None:
    name = getattr(key, "name")  # noqa: B009 - parametrised
    path = write(tmp_path, f'[[job]]\nimage = "busybox"\n{name} = [[1]]\n')
    with pytest.raises(InputError, match=rf"jobs\.toml: job\[1\]\.{name}") as caught:
        job_file.read_jobs(path, Submitter("alice", NOW))
    assert "expected" in str(caught.value)


JOB = '[[job]]\nimage = "busybox"\n'


@cases(
    ("content", "where"),
    [
        ("", "job"),
        ("job = 1", "job"),
        ("job = []", "job"),
        ("job = [1]", "job[1]"),
        ("jobs = 1", "jobs"),
        (JOB + "[other]", "other"),
        (JOB + 'gpu = "2"', "job[1].gpu"),
        (JOB + JOB + "priority = 101", "job[2].priority"),
        (JOB + 'priority = "high"', "job[1].priority"),
        (JOB + "priority = true", "job[1].priority"),
        (JOB + "gpus = -1", "job[1].gpus"),
        (JOB + "gpus = 1.5", "job[1].gpus"),
        (JOB + "memory = nan", "job[1].memory"),
        (JOB + "hold = 1", "job[1].hold"),
        (JOB + 'hold = "yes"', "job[1].hold"),
        (JOB + "host = true", "job[1].image"),
        (JOB + 'host = "yes"', "job[1].host"),
        ("[[job]]\nname = 'x'", "job[1].image"),
        ("[[job]]\nimage = 3", "job[1].image"),
        ("[[job]]\nimage = 'Busy'", "job[1].image"),
        ("[[job]]\nhost = true", "job[1].command"),
        (JOB + 'command = "echo hello"', "job[1].command"),
        (JOB + "command = [[1]]", "job[1].command[1]"),
        (JOB + 'command = ["a\\u0000b"]', "job[1].command"),
        (JOB + "env = {A = [1]}", "job[1].env.A"),
        (JOB + "env = 3.5", "job[1].env"),
        (JOB + 'env = {"a b" = "1"}', "job[1].env"),
        (JOB + 'label = {user = "x"}', "job[1].label"),
        (JOB + 'name = "' + "a" * 10_000 + '"', "job[1].name"),
        (JOB + 'name = "\\u001b[2J"', "job[1].name"),
        (JOB + 'begin = "soon"', "job[1].begin"),
        (JOB + "begin = 18:00:00", "job[1].begin"),
        (JOB + f"gpus = 1{'0' * 5000}", ""),
        (JOB + 'volume = ["/a:/b", "x"]', "job[1].volume"),
        (JOB + "image = 'again'", ""),
        ("[[job]\n", ""),
        (b"\xff\xfe", ""),
        (JOB + "name = '\0'", ""),
        ("x = " + "[" * 5000, ""),
        (b"# " + b"x" * 1024**2, ""),
    ],  # a file of a megabyte names no test
)
def test_bad_files_are_refused_by_file_and_key(
    run: Run, store: KeptStore, tmp_path: Path, content: str | bytes, where: str
) -> None:
    path = write(tmp_path, content)
    result = run("submit", "-f", path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gputui: error: {path}: {where}")
    assert len(result.err) < 500 + len(path)
    assert not store.jobs()


@cases("path", ["/does/not/exist.toml", "/", "a\0b"])
def test_files_that_cannot_be_read_are_named(run: Run, path: str) -> None:
    result = run("submit", "-f", path)
    assert (result.code, result.out) == (2, "")
    assert path.replace("\0", "") in result.err or "--file" in result.err


def test_an_invalid_job_prevents_the_whole_submission(run: Run, store: KeptStore, tmp_path: Path) -> None:
    result = run("submit", "-f", write(tmp_path, JOB * 20 + JOB + "after = [99]\n"))
    assert result.code == 3
    assert not store.jobs()


@cases("extra", [["--gpus", "1"], ["--hold"], ["--host"], ["busybox"]])
def test_options_beside_a_file_are_refused(run: Run, tmp_path: Path, extra: list[str]) -> None:
    result = run("submit", "-f", write(tmp_path, JOB), *extra)
    assert (result.code, "cannot be combined with --file" in result.err) == (2, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([*(key.name for key in KEYS), "image", "host", "command"]) | st.text(max_size=10)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(table=st.dictionaries(NAMES, VALUES, max_size=4), whole=st.booleans())
def test_any_table_yields_a_job_or_an_input_error(
    table: dict[str, object], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"image": "busybox", **table} if whole else table
    monkeypatch.setattr(job_file, "read_toml", lambda path, where: ({"job": [table]}, None))
    try:
        [submission] = job_file.read_jobs("jobs.toml", Submitter("alice", NOW))
    except InputError as error:
        assert str(error.where).startswith("jobs.toml: job[1]")  # noqa: PT017 - only some tables are refused
    else:
        assert submission.spec.name


def test_all_errors_of_a_job_are_reported_together(run: Run, store: KeptStore, tmp_path: Path) -> None:
    path = write(tmp_path, JOB + 'memory = "lots"\ncap_ad = ["X"]\npublish = ["x:1"]\nprivileged = "yes"')
    result = run("submit", "-f", path)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 4)
    assert all(f"job[1].{key}:" in result.err for key in ("memory", "cap_ad", "publish", "privileged"))
    assert not store.jobs()


def test_options_of_docker_run_are_keys(run: Run, store: KeptStore, tmp_path: Path) -> None:
    text = (
        'publish = ["auto:8888"]\ncap_add = ["IPC_LOCK"]\nprivileged = true\nstop_timeout = 60\nhealth_interval = "30s"'
    )
    assert run("submit", "-f", write(tmp_path, JOB + text)).code == 0
    options = store.get(1).spec.options
    assert (options.publish, options.cap_add, options.privileged) == (("auto:8888",), ("IPC_LOCK",), True)
    assert (options.stop_timeout, options.health_interval) == (60, timedelta(seconds=30))
