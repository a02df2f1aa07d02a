"""A node that is cut off and comes back, as gputui's commands tell it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.commands import Commands
from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.epilog import installed_epilog
from tests.slurm.person import Person

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]

SILENCE = 10
"""Seconds after which Slurm counts a silent node as down."""
LONG = 4 * PATIENCE


@pytest.fixture(scope="module")
def impatient() -> Iterator[Bed]:
    """Yield a cluster of two nodes with an epilog."""
    bed = Bed(nodes=2, patience=SILENCE)
    try:
        with installed_epilog(bed.start()):
            yield bed
    finally:
        bed.destroy()


@pytest.fixture
def alice(impatient: Bed) -> Iterator[Person]:
    commands = Commands(impatient.into_head)
    someone = Person(impatient, commands, "alice")
    yield someone
    impatient.clear()
    someone.forget()
    (someone.home / "config.toml").write_text("")
    commands.close()


def node_of(alice: Person, job: int) -> str:
    """Return the node on which a job runs, once its container does."""
    alice.wait_for([job], lambda states: states == ["RUNNING"])
    alice.bed.wait(lambda: str(job) in containers(alice.bed).values(), "its container runs")
    return str(alice.jobs()[job]["attempts"][-1]["node"])


def containers(bed: Bed) -> dict[str, str]:
    """Return the jobs of the containers on each node."""
    return {each["Node"]: each["Name"].removeprefix("gputui-") for each in bed.containers()}


def nodes(alice: Person) -> dict[str, str]:
    """Return why the first GPU of each node takes no jobs, as `gputui gpus` tells it."""
    return {gpu["node"]: gpu["why"] or "" for gpu in alice.run("gpus", "--json").json if gpu["index"] == 0}


def test_a_job_is_lost_with_its_node_and_its_container_goes_when_that_returns(impatient: Bed, alice: Person) -> None:
    lost, kept = (alice.submit(name, gpus=2, seconds=600) for name in ("lost", "kept"))
    node = node_of(alice, lost)
    node_of(alice, kept)
    waiting = alice.submit("waiting", gpus=2, seconds=0.2)
    impatient.cut(node)
    alice.wait_for([lost], lambda states: states == ["FAILED"], patience=LONG)
    assert containers(impatient)[node] == str(lost)  # nobody can reach it
    assert "is down" in nodes(alice)[node]
    [line] = [line for line in alice.run("queue", "--all").out.splitlines() if f" {lost} " in f" {line}"]
    assert f"node {node} was lost (NODE_FAIL)" in line
    shown = alice.run("show", str(lost)).out
    assert f"ended by              node {node} was lost (NODE_FAIL)" in shown
    assert "exit code" not in shown
    assert f"node {node} was lost" in alice.run("explain", str(lost), check=False).err
    assert "waits for resources (Resources)" in alice.run("explain", str(waiting)).out
    assert alice.run("wait", str(lost), check=False).code == 1
    impatient.plug(node)
    impatient.wait(lambda: str(lost) not in containers(impatient).values(), "its container is gone", LONG)
    assert alice.wait([waiting], patience=LONG) == ["COMPLETED"]
    assert nodes(alice)[node] == ""
    assert alice.jobs()[kept]["state"] == "RUNNING"


def test_a_job_runs_again_after_its_node_was_lost_if_the_site_wants_that(impatient: Bed, alice: Person) -> None:
    (alice.home / "config.toml").write_text("[cluster]\nrequeue = true\n")
    job = alice.submit("again", gpus=2, seconds=600)
    node = node_of(alice, job)
    impatient.cut(node)
    alice.wait_for([job], lambda states: states != ["RUNNING"], patience=LONG)
    told = "why       requeued: begins at "  # once Slurm has looked at the job again
    impatient.wait(lambda: told in alice.run("explain", str(job)).out, told)
    assert "requeued: begins at " in alice.run("queue").out
    impatient.plug(node)
    alice.wait_for([job], lambda states: states == ["RUNNING"], patience=LONG)
    impatient.wait(lambda: list(containers(impatient).values()) == [str(job)], "one container runs", LONG)
    assert alice.jobs()[job]["attempts"][-1]["number"] == 2
    alice.run("cancel", str(job))
    impatient.wait(lambda: not impatient.containers(), "no container is left")
