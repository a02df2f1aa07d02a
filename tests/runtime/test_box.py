"""Create requests of plain users' containers: what a box has, whatever the engine and the job say."""

from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import Box, Launch
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.create import create_request
from gputui.runtime.docker.engine import EngineFacts, read_facts
from tests.cases import cases

UID = 61_234
"""Unused uid."""
FACTS = EngineFacts(version="28.0", cpus=8, api=(1, 48))
BOX = Box(pids=100, memory=2**30, cpus=2.0, shm_size=2**20)

pytestmark = pytest.mark.skipif(os.geteuid() == UID, reason="runs as the user of these tests")


def body(box: Box | None = BOX, facts: EngineFacts = FACTS, **options: Any) -> dict[str, Any]:
    spec = JobSpec(image="debian", command=("true",), options=ContainerOptions(**options))
    launch = Launch("store", 1, 1, spec, (), run_as=UID, submitter=UID, box=box)
    return create_request(launch, facts, RuntimeSettings()).body


def test_boxes_of_containers() -> None:
    # a box has the submitters account and no capability
    made = body(cap_drop=("NET_RAW",), security_opt=("no-new-privileges:false",))
    host = made["HostConfig"]
    assert made["User"] == f"{UID}:{UID}"
    assert (host["CapAdd"], host["CapDrop"]) == ([], ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Privileged"] is False
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    # a box has limits and a job may ask for less
    host = body()["HostConfig"]
    limits = [host[name] for name in ("PidsLimit", "Memory", "NanoCpus", "ShmSize")]
    assert limits == [100, 2**30, 2 * 10**9, 2**20]
    less = body(pids_limit=5, memory=2**25, cpus=0.5, shm_size=2**19)["HostConfig"]
    assert [less[name] for name in ("PidsLimit", "Memory", "NanoCpus", "ShmSize")] == [5, 2**25, 5 * 10**8, 2**19]
    # labels of a job are not its containers, and those of an image give it none of ours
    labels = body(labels=(("traefik.enable", "true"), ("user", "root")))["Labels"]
    ours = ("store", "job", "attempt", "boot", "gpus", "guest", "submitter")
    assert labels.keys() == {f"gputui.{name}" for name in ours}
    assert not labels["gputui.guest"]
    assert "traefik.enable" in body(None, labels=(("traefik.enable", "true"),))["Labels"]


@cases("how", ["the image is listed", "the engine remaps users"])
def test_an_images_own_user_has_capabilities_over_its_own_files_alone(how: str) -> None:
    box = replace(BOX, is_image_user=how == "the image is listed")
    made = body(box, replace(FACTS, remaps_users=how != "the image is listed"))
    assert "User" not in made
    able = {"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"}
    assert (set(made["HostConfig"]["CapAdd"]), made["HostConfig"]["CapDrop"]) == (able, ["ALL"])
    assert made["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


@cases(
    ("security", "remaps"),
    [
        (["name=seccomp,profile=builtin", "name=userns"], True),
        (["name=rootless", "name=seccomp"], False),
        (None, False),
    ],
)
def test_only_an_engine_of_root_remaps_users(security: list[str] | None, remaps: bool) -> None:
    """Root in a rootless engine is the account that runs the engine."""
    assert read_facts({"ApiVersion": "1.48"}, {"SecurityOptions": security}).remaps_users is remaps
