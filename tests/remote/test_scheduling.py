"""Jobs on the GPUs of the other machine: what they get, what is measured of them, and whose engine it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases import cases
from tests.remote import files
from tests.remote.bed import Bed
from tests.remote.conftest import Far, Laptop
from tests.runtime.dockerd import IMAGE
from tests.runtime.standin_engine import StandInEngine, this_machine

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.nvml, pytest.mark.xdist_group("remote")]
SHELL = ("--network", "host", IMAGE, "sh", "-c")
UNTIL_TOLD = "nvidia-smi -L; until test -e /tmp/go; do :; done"


def until_it_waits(site: Far, job: int, words: str) -> None:
    site.until(lambda: words in str(site.jobs()[job]["reason"]))


def test_jobs_get_its_gpus_and_are_entered(bed: Bed, laptop: Laptop) -> None:
    site = laptop("ssh")
    site.serve()
    job = site.submit("--gpus", "2", *SHELL, UNTIL_TOLD)
    site.until_state(job, "RUNNING")
    refused = site.run("submit", "--host", "--", "true", check=False)
    assert f"this queue's jobs run on {files.FAR} (name an image)" in refused.stderr
    assert site.run("exec", str(job), "cat", "/etc/hostname").stdout.strip() == files.FAR
    site.run("exec", str(job), "touch", "/tmp/go")
    attempt = site.until_state(job, "COMPLETED", "FAILED")["attempts"][-1]
    assert attempt["exit_code"] == 0
    told = site.run("logs", str(job)).stdout
    assert sorted(uuid for uuid in bed.uuids if uuid in told) == sorted(attempt["gpus"])
    assert len(attempt["gpus"]) == 2


def test_processes_there_are_known_by_their_containers(bed: Bed, laptop: Laptop) -> None:
    """A pid of that machine may be any process's here; what is no job's makes its GPU busy."""
    site = laptop("context")
    site.serve()
    job = site.submit("--gpus", "1", *SHELL, UNTIL_TOLD)
    attempt = site.until_state(job, "RUNNING")["attempts"][-1]
    own = bed.engine.inspect_container(attempt["container_id"])["State"]["Pid"]
    other = bed.start_on_far("sleep", "300")
    held = bed.uuids.index(attempt["gpus"][0])
    pids = {index: own if index == held else other for index in (held, (held + 1) % len(bed.uuids))}
    bed.driver.change(*(f"gpu {index} process {pid} {2**31}" for index, pid in pids.items()))

    def holders() -> dict[int, list[tuple[str, str]]]:
        return {row["index"]: [(each["kind"], each["name"]) for each in row["holders"]] for row in site.json("gpus")}

    site.until(lambda: holders()[(held + 1) % len(bed.uuids)] == [("process", "sleep 300")])
    assert [kind for kind, _ in holders()[held]] == ["job"]
    [mine] = [row for row in site.json("ps") if row["pid"] == own]
    assert (mine["job_id"], mine["container_id"]) == (job, attempt["container_id"])
    bed.on_far("kill", str(other))


UNCHECKED = "/srv/data{0} cannot be checked: /srv/data{0}: {1}"
FOLLOWED = f"links of {files.FAR} are followed over ssh alone"


@cases(
    ("way", "refused"),
    [
        (
            "ssh",
            {
                "/out": "/srv/data/out, which is /etc, is outside the directories that may be mounted",
                "/none/x": UNCHECKED.format("/none/x", "No such file or directory"),
            },
        ),
        ("tls", {place: UNCHECKED.format(place, FOLLOWED) for place in ("/link", "/out", "/none/x")}),
    ],
)
def test_mounts_are_limited_by_the_links_of_the_machine_there(
    bed: Bed, laptop: Laptop, way: str, refused: dict[str, str]
) -> None:
    """Over TCP nothing below a listed directory is mounted, where a job may have made a link."""
    site, data = laptop(way), bed.out / "data"
    (data / "set").mkdir(parents=True, exist_ok=True)
    (data / "set/file").touch()
    for name, target in (("link", "set"), ("out", "/etc")):
        (data / name).unlink(missing_ok=True)
        (data / name).symlink_to(target)
    site.config.write_text(f'{site.config.read_text()}[policy.allow]\nmounts = ["/srv/data"]\n')
    site.serve()
    find = (*SHELL, "find /d -name file | grep .")
    jobs = {
        place: site.submit("--gpus", "0", "-v", f"/srv/data{place}:/d", *find)
        for place in ("", "/link", "/out", "/none/x")
    }
    ends = {place: site.until_state(job, "COMPLETED", "FAILED") for place, job in jobs.items()}
    failed = {
        place: each["cause"].removeprefix("--volume: ").partition(" (")[0]
        for place, each in ends.items()
        if each["cause"]
    }
    assert failed == refused
    told = [each["text"] for each in site.json("doctor") if each["name"] == "mounts"]
    assert told == (
        [f"jobs mount directories of {files.FAR} that policy.allow.mounts lists, and nothing below them"]
        * (way == "tls")
    )
    outside = site.run("submit", "-v", "/srv/data/../x:/d", IMAGE, "true", check=False)
    assert "is outside the directories that may be mounted" in outside.stderr


@pytest.mark.long
def test_the_engine_tells_what_jobs_use(bed: Bed, laptop: Laptop) -> None:
    site = laptop("ssh")
    site.serve()
    job = site.submit("--gpus", "1", *SHELL, "end=$(($(date +%s) + 4)); until test $(date +%s) -ge $end; do :; done")
    used = site.until_state(job, "COMPLETED")["attempts"][-1]["telemetry"]
    assert 0 < used["cpu"] < 10
    assert used["memory"]["peak"] > 0


def test_a_job_outlives_a_way_and_is_not_looked_for_on_another_engine(bed: Bed, laptop: Laptop, tmp_path: Path) -> None:
    site, another = laptop("ssh"), StandInEngine(tmp_path / "d.sock", **this_machine(), ID="another-engine")
    serving = site.serve()
    job = site.submit("--gpus", "1", *SHELL, UNTIL_TOLD)
    site.until_state(job, "RUNNING")
    site.kill(serving)
    site.around = bed.environ("tls") | {"DOCKER_HOST": another.url}
    serving = site.serve()
    waits = site.submit("--gpus", "0", IMAGE, "true")
    until_it_waits(site, waits, "this queue's jobs are on another engine: ")
    assert site.jobs()[job]["state"] == "RUNNING"
    assert f"rm {site.state}/engine.json" in site.run("doctor", check=False).stdout
    site.kill(serving)
    another.close()
    site.around = bed.environ("tls")
    site.serve()
    site.until_state(waits, "COMPLETED")
    site.run("exec", str(job), "touch", "/tmp/go")
    site.until_state(job, "COMPLETED")
    record = json.loads((site.state / "engine.json").read_text())
    assert (record["machine"], record["address"].partition("://")[0]) == (files.FAR, "tcp")


def test_a_guest_leaves_the_gpus_to_the_queue_there(bed: Bed, laptop: Laptop) -> None:
    """The machine's queue is told apart by its labels; one guest does not keep another from its turn."""
    site = laptop("ssh")
    gpus = f'"device={bed.uuids[0]}"'
    labels = {"gputui.store": "owner0000000", "gputui.job": "1", "gputui.attempt": "1", "gputui.gpus": bed.uuids[0]}
    words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    bed.docker(
        "run", "--detach", "--name", "owners", "--network", "host", "--gpus", gpus, *words, *SHELL[2:], UNTIL_TOLD
    )
    site.serve()
    job = site.submit("--gpus", "1", *SHELL, "true")
    until_it_waits(site, job, f"{files.FAR} has a gputui queue of its own, which gives out its GPUs: its queue owner")
    until_it_waits(site, job, "submit there: `gputui --on ssh://lab`")
    bed.docker("rm", "--force", "owners")
    site.until_state(job, "COMPLETED")


@cases("way", ["ssh", "tls"])
def test_the_input_of_an_interactive_job_ends(laptop: Laptop, way: str) -> None:
    site = laptop(way)
    site.serve()
    words = ("run", "-i", "--gpus", "0", *SHELL, "sleep 0.5; cat; cat /etc/hostname")
    assert site.run(*words, stdin=b"told\n" * 10_000).stdout == "told\n" * 10_000 + f"{files.FAR}\n"
    job = site.submit("--gpus", "0", *SHELL, "exec sleep 600")
    site.until_state(job, "RUNNING")
    inside = ("exec", "-i", str(job), "sh", "-c", "echo early; sleep 0.5; wc -c; cat /etc/hostname")
    assert site.run(*inside, stdin=b"told\n" * 10_000).stdout.split() == ["early", "50000", files.FAR]
