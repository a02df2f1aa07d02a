"""Engines of other kinds on the other machine, and what becomes of jobs and readings while one is restarted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote import files
from tests.remote.bed import Bed
from tests.remote.conftest import Laptop, states
from tests.remote.far_jobs import FarJobs
from tests.remote.image import PYTHON_IMAGE
from tests.waiting import until

pytestmark = [
    *(pytest.mark.docker, pytest.mark.ssh, pytest.mark.nvml, pytest.mark.xdist_group("remote")),
    pytest.mark.long,
]


@pytest.mark.parametrize("how", ["TERM", "KILL"])
@pytest.mark.parametrize("options", [(), ("--live-restore",)], ids=["ending", "live-restore"])
def test_a_restart_of_the_engine_is_charged_to_no_job(
    bed: Bed, laptop: Laptop, own_engine: None, options: tuple[str, ...], how: str
) -> None:
    """A stopping engine ends its containers and still answers on open connections, as those of ssh and TLS are."""
    if options:
        bed.stop_engine()
        bed.start_engine(*options)
    jobs = {}
    for way in ("ssh", "tls"):
        site = laptop(way)
        site.config.write_text(f"{site.config.read_text()}as_guest = true\n")
        serving = site.serve()
        jobs[way] = FarJobs(bed, site), site, serving
        jobs[way][0].close_gate()
        jobs[way][0].submit(1)
        until(lambda way=way: jobs[way][0].held(), site.evidence)  # type: ignore[misc]
    _, site, _ = jobs["tls"]
    bed.stop_engine(how)
    site.until(lambda: set(states(site).values()) <= {"ALLOCATED", "UNKNOWN"})
    bed.start_engine(*options)
    for own, site, serving in jobs.values():
        own.open_gate()
        ended = site.until_state(own.ids[0], "COMPLETED", "FAILED", "LOST")
        assert ended["state"] == "COMPLETED", ended
        assert len(own.gpus_inside()[0]) == len(ended["attempts"]) == (1 if options else 2)
        serving.terminate()
        serving.wait()
    until(lambda: not bed.probe_containers(), lambda: f"{bed.containers()}")


@pytest.fixture
def own_engine(bed: Bed) -> Iterator[None]:
    """Let a test restart the engine, which afterwards is as it was."""
    yield
    bed.stop_engine()
    bed.start_engine()


def test_the_gpus_of_an_engine_that_remaps_users_are_read(bed: Bed, laptop: Laptop, own_engine: None) -> None:
    """Its containers see the processes of the machine only with the users of the machine."""
    bed.stop_engine()
    bed.start_engine("--userns-remap=nobody:nogroup")
    bed.import_images()
    site = laptop("tls")
    site.serve()
    pid = bed.start_on_far("sleep", "300")
    bed.idle(f"gpu 1 process {pid} 1073741824 C")
    site.until(lambda: list(states(site).values()) == ["FREE", "FOREIGN", "FREE", "FREE"])
    assert site.json("gpus")[1]["holders"][0]["user"] == "root"
    told = site.run("doctor", check=False).stdout
    assert f"the GPUs of {files.FAR} are read in a container of {PYTHON_IMAGE}" in told
    assert "cannot be told apart" not in told
    bed.on_far("kill", str(pid))
