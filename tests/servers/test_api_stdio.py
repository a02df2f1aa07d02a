"""A queue that nobody owns is served by `gputui api-stdio` itself, until an owner comes and after it has ended."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.api.client import ApiClient
from gputui.api.http import AboutView
from gputui.api.wire import Server, Wire
from gputui.bootstrap.stream import serve_stdio
from gputui.config import Options, parse_probe
from gputui.domain.action import Cancel
from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import ClusterSettings, ServerSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.ports.backend import LogRequest
from tests.backend.harnesses import ALL_BUT, ClusterHarness
from tests.factories import spec
from tests.servers.connections import Connections, local_ssh

PATIENCE = 60.0


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(tmp_path / "state", probe=parse_probe("sim:2:A100"), runtime="process")


@pytest.fixture
def console(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    """Yield a console over the queue, by a command in place of ssh."""
    monkeypatch.setenv("PATH", f"{local_ssh(tmp_path)}:/usr/bin:/bin")
    command = shlex.join((sys.executable, "-P", "-m", "gputui", *options.arguments()))
    made = Connections([ServerSettings("a", "ssh://a", command)], PATIENCE)
    made.start()
    yield made
    made.there.close(10)


def owner(options: Options) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-m", "gputui", *options.arguments(), "serve"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def is_owned(shown: Snapshot) -> bool:
    return bool(shown.servers and not shown.servers[0].problem and shown.servers[0].snapshot.leader and shown.gpus)


def test_a_console_goes_over_to_an_owner_and_on_without_one(console: Connections, options: Options) -> None:
    console.until(lambda shown: shown.servers and not shown.servers[0].problem, "it answers itself")
    there = console.there
    [held] = there.act(SubmitJobs((Submission(spec(image=None), held=True),)), server="a").ids
    console.until(lambda shown: shown.job(held))
    process = owner(options)
    try:
        console.until(is_owned, "the owner answers")
        [gone] = there.act(SubmitJobs((Submission(spec(image=None), held=True),)), server="a").ids
        there.act(Cancel((gone,)))
        console.until(lambda shown: (job := shown.job(gone)) and job.state.is_terminal, "the owner has carried it out")
        process.kill()
        process.wait()
        console.until(lambda shown: not is_owned(shown) and not shown.servers[0].problem, "it answers itself again")
        assert there.job(held).held
        [change] = there.act(SubmitJobs((Submission(spec(image=None), held=True),)), server="a").ids
        console.until(lambda shown: shown.job(change))
    finally:
        process.kill()
        process.wait()


def test_the_output_of_a_job_is_read_where_nobody_owns_the_queue(console: Connections, options: Options) -> None:
    process = owner(options)
    console.until(is_owned, "the owner answers")
    wanted = spec(image=None, command=("sh", "-c", "seq 3000"))
    [job_id] = console.there.act(SubmitJobs((Submission(wanted),)), server="a").ids
    console.until(lambda shown: (job := shown.job(job_id)) and job.state.is_terminal, "it has ended")
    process.send_signal(signal.SIGTERM)
    process.wait()
    console.until(lambda shown: not is_owned(shown) and not shown.servers[0].problem, "it answers itself")
    with closing(console.there.log(job_id, LogRequest(tail=2))) as stream:
        assert list(stream) == [b"2999", b"3000"]
    with pytest.raises(GputuiError, match="a: there is no job 9999"):
        console.there.job(job_id - 1 + 9999)


def test_a_cluster_is_served_too(tmp_path: Path) -> None:
    harness = ClusterHarness(tmp_path, ALL_BUT)
    ours, theirs = socket.socketpair()
    options = Options(tmp_path, runtime="process", settings=Settings(cluster=ClusterSettings(engine="slurm")))
    thread = threading.Thread(target=serve_stdio, args=(options, theirs.fileno(), theirs.fileno()))
    thread.start()
    client = ApiClient(lambda seconds: Wire(ours, Server()), patience=20)
    about: AboutView = client.ask("GET", "/v1/about", result=AboutView)
    assert about.lacking.keys() >= {"what_if"}
    client.request("POST", "/v1/jobs", {"jobs": [{"spec": {"command": ["true"]}}]}, key="k" * 32)
    assert [job["state"] for job in client.ask("GET", "/v1/jobs", result=list[dict[str, Any]])] == ["RUNNING"]
    client.close()
    thread.join(20)
    assert not thread.is_alive()
    theirs.close()
    harness.close()
