"""Commands in pods and terminals of pods, over websockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.domain.cluster import Capability
from gputui.domain.container import ExecRequest
from gputui.domain.errors import CapabilityError, ClusterRefusedError, ClusterUnavailableError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, Submission
from gputui.domain.state import JobState
from gputui.ports.backend import Attach
from tests.cases import cases
from tests.cluster.talk import Talk
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until


def running(cluster: KubernetesCluster, interactive: Interactive | None = None, *command: str) -> Job:
    wanted = replace(spec(command=command or ("true",)), interactive=interactive)
    [job_id] = cluster.submit([Submission(wanted)], "k1")
    return until(lambda: cluster.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")


def sh(script: str, *, stdin: bool = False) -> ExecRequest:
    return ExecRequest(("sh", "-c", script), stdin)


def test_commands_in_a_pod(harness: KubernetesHarness) -> None:
    # the place is the pod and its node
    job = running(harness.kube)
    pod = harness.pod(job)
    assert harness.kube.place(job) == f"pod {pod['metadata']['name']} on {pod['spec']['nodeName']}"
    # much output comes whole
    talk = Talk(harness.kube.enter(running(harness.kube), sh("head -c 300000 /dev/zero; echo end >&2")))
    assert (talk.end(), len(talk.out), talk.err) == (0, 300_000, b"end\n")
    # a command that the image lacks
    with pytest.raises(ClusterRefusedError, match='exec: "nosuch": executable file not found'):
        Talk(harness.kube.enter(running(harness.kube), ExecRequest(("nosuch",)))).end()


def test_a_lost_connection_tells_no_exit_code(harness: KubernetesHarness) -> None:
    channel = harness.kube.enter(running(harness.kube), sh("echo begun; read word", stdin=True))
    talk = Talk(channel)
    talk.until(b"begun")
    harness.fake.drop_streams()
    assert talk.end() is None


def test_an_image_without_ps_has_no_empty_list(
    harness: KubernetesHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    job = running(harness.kube, None, "sleep", "60")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterRefusedError, match="its processes cannot be listed") as refused:
        harness.kube.processes(job)
    assert refused.value.hint == "its image needs sh and ps"


def test_a_node_that_does_not_answer(harness: KubernetesHarness) -> None:
    job = running(harness.kube)
    harness.fake.silent_nodes = {"gpu1", "gpu2", "gpu3"}
    with pytest.raises(ClusterUnavailableError, match=r"i/o timeout \(500\)"):
        harness.kube.enter(job, sh("true"))


def test_a_job_that_has_ended_has_no_pod_to_enter(harness: KubernetesHarness) -> None:
    job = running(harness.kube)
    harness.finish(job)
    until(lambda: harness.kube.job(job.id), lambda found: found.state.is_terminal, "it has ended")
    with pytest.raises(ClusterRefusedError, match="no pod that runs"):
        harness.kube.enter(job, sh("true"))


def test_releases_before_1_30_cannot_end_input(make: MakeHarness) -> None:
    kube = make("v1.28.3").kube
    talk = Talk(kube.enter(running(kube), sh("read word; echo got $word; cat", stdin=True)))
    talk.channel.end_input()
    talk.channel.send(b"it\n")
    talk.until(b"got it\n")
    talk.channel.close()


def test_a_terminal_is_attached_to_from_another_machine(harness: KubernetesHarness) -> None:
    job = running(harness.kube, Interactive(stdin=True, tty=True), "sh", "-c", "read word; echo got $word")
    container = harness.pod(job)["spec"]["containers"][0]
    assert (container["stdin"], container["tty"]) == (True, True)
    other = harness.open()
    found = until(lambda: other.job(job.id), lambda job: job.state is JobState.RUNNING, "it runs")
    assert found.spec.interactive == Interactive(stdin=True, tty=True)
    talk = Talk(other.enter(found, Attach()))
    talk.channel.resize(30, 100)
    talk.channel.send(b"it\n")
    talk.until(b"got it")
    talk.channel.close()


def test_what_has_no_terminal(harness: KubernetesHarness) -> None:
    with pytest.raises(ClusterRefusedError, match="has no terminal"):
        harness.kube.enter(running(harness.kube), Attach())
    with pytest.raises(InputError, match="by -it"):
        running(harness.kube, Interactive(stdin=True))


@cases(("resource", "capability"), [("pods/exec", Capability.INSIDE), ("pods/attach", Capability.STREAMS)])
def test_the_right_to_enter_pods_is_a_capability(make: MakeHarness, resource: str, capability: Capability) -> None:
    harness = make()
    ann = harness.as_user("ann")
    harness.fake.access.revoke("", resource, "create")
    job = running(ann)
    assert not ann.caps.has(capability)
    with pytest.raises(CapabilityError, match=f"the right to create {resource} is missing"):
        ann.place(job) if capability is Capability.INSIDE else ann.enter(job, Attach())
