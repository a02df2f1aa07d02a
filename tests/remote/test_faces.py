"""Words for users of an engine elsewhere: its machine's name, the way of the readings, and whose processes they are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cases import cases
from tests.foreign import idle_process
from tests.remote import files
from tests.remote.bed import WAYS, Bed
from tests.remote.conftest import Far, Laptop
from tests.runtime.dockerd import IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.nvml, pytest.mark.xdist_group("remote")]


@pytest.fixture
def site(laptop: Laptop) -> Far:
    return laptop("context")


@pytest.fixture
def victim() -> Iterator[int]:
    """Yield the pid of a process of the laptop."""
    with idle_process() as process:
        yield process.pid


def test_each_face_names_the_machine_that_a_context_chooses(bed: Bed, site: Far) -> None:
    assert [(each["node"], each["uuid"]) for each in site.json("gpus", "--json")] == [
        (files.FAR, uuid) for uuid in bed.uuids
    ]
    status = site.run("top", "--width", "190").stdout.splitlines()[0]
    assert status.startswith(f"gputui {files.FAR} from laptop │ ○ no scheduler")
    assert f"│ {len(bed.uuids)} of {len(bed.uuids)} GPUs free" in status
    found = {(each["name"], each["level"]): each["text"] for each in site.json("doctor", "--json")}
    assert found["driver", "ok"].startswith(f"{len(bed.uuids)} GPUs on {files.FAR}, driver ")
    assert found["readings", "ok"] == f"the GPUs of {files.FAR} are read by its python3, over ssh"
    assert f"at ssh://lab (docker context {files.FAR}), on {files.FAR}: jobs run there" in found["docker", "ok"]
    assert found["process", "ok"].endswith(f"this queue's jobs run on {files.FAR}")


@cases("way", WAYS)
def test_another_terminal_asks_the_engine_of_the_queue(bed: Bed, laptop: Laptop, way: str) -> None:
    """Nothing in its environment names the engine, and no scheduler runs."""
    site = laptop(way)
    serving = site.serve()
    job = site.submit("--gpus", "1", "--network", "host", IMAGE, "sh", "-c", "echo told; exec sleep 600")
    site.until_state(job, "RUNNING")
    site.kill(serving)
    names = {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"}
    site.around = {name: value for name, value in bed.environ(way).items() if name not in names}
    assert site.run("exec", str(job), "cat", "/etc/hostname").stdout.strip() == files.FAR
    site.until(lambda: site.run("logs", str(job)).stdout == "told\n")
    assert sorted(each["state"] for each in site.json("gpus")) == ["ALLOCATED", "FREE", "FREE", "FREE"]
    assert f"on {files.FAR}: jobs run there" in site.run("doctor", check=False).stdout
    serving = site.serve()
    site.run("cancel", str(job))
    site.until_state(job, "CANCELLED")


def test_a_process_here_gets_no_signal_for_one_there_with_its_pid(bed: Bed, site: Far, victim: int) -> None:
    bed.idle(f"gpu 1 process {victim} 1073741824 C")
    [seen] = site.json("ps", "--json")
    assert (seen["pid"], seen["command"]) == (victim, None)
    refused = site.run("ps", "-s", "KILL", "--yes", str(victim), check=False)
    assert f"pid {victim} is a process of {files.FAR}" in refused.stderr
    os.kill(victim, 0)
