"""Batch scripts with containers, on a real Docker engine."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from gputui.domain.job_spec import GpuRequest, Interactive, LimitWarning
from tests.cases import cases
from tests.cluster.batch import JOB, KEY, BatchRun, noted, script_of
from tests.factories import uuid
from tests.lane import in_its_lane
from tests.process_list import command_lines
from tests.runtime.conftest import engine
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd
from tests.waiting import until

pytestmark = pytest.mark.docker
__all__ = ["engine"]

NAME = f"gputui-{JOB}"
docker_script = partial(script_of, network=NETWORK)
LOOP = ("sh", "-c", "echo begun; while :; do sleep 0.1; done")
POLITE = (
    "sh",
    "-c",
    "trap 'echo asked to end; sleep 0.3; echo saved; exit 7' TERM; echo begun; while :; do sleep 0.1; done",
)
MOMENTS = [f"{when} {command}" for command in ("run", "logs", "wait", "stop", "rm") for when in ("before", "after")]
RARE = frozenset({"after logs", "after wait", "after stop", "after rm"})
"""Moments between two commands, and after the last one, in which a signal seldom comes."""


class Begin(Protocol):
    """Starts a script, with the GPUs and the variables that Slurm gives it."""

    def __call__(self, script: str, gpus: str = "", **variables: str) -> BatchRun: ...


@pytest.fixture
def begin(engine: Dockerd, tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts a script; check that no container outlives the scripts."""
    runs = []

    def start(script: str, gpus: str = "", **variables: str) -> BatchRun:
        runs.append(BatchRun(tmp_path, script, engine.host, gpus, **variables))
        return runs[-1]

    yield start
    for run in runs:
        run.end()
    left = engine.docker("ps", "--all", "--quiet", "--filter", f"label=gputui.job={JOB}").split()
    for container in left:
        engine.docker("rm", "--force", container)
    assert not left


def inspected(engine: Dockerd) -> dict[str, Any]:
    """Return the container as the engine describes it, as soon as it runs."""

    def found() -> Any:
        answer = engine.docker("inspect", "--type", "container", NAME, check=False)
        described = json.loads(answer or "[]")
        return described[0] if described and described[0]["State"]["Running"] else None

    described: dict[str, Any] = until(found, "no container runs")
    return described


@pytest.mark.parametrize("code", [0, 3, 127])
def test_the_exit_code_and_the_output_are_the_containers(begin: Begin, code: int, tmp_path: Path) -> None:
    command = ("sh", "-c", f"echo out; sleep 0.1; echo err >&2; exit {code}")
    run = begin(docker_script(command=command, output=f"{tmp_path}/%j.out"))
    assert run.wait() == code
    assert run.output == "out\nerr\n"
    assert noted(tmp_path).code == code


@cases(
    ("job", "code", "words", "said"),
    [
        ({"command": ("no-such-program",), "no_init": True}, 127, "its image has no such command", "no-such-program"),
        ({"command": ("/etc/passwd",), "no_init": True}, 126, "its command cannot be run", "permission denied"),
        (
            {"image": "gputui-test:none", "pull": "never"},
            125,
            "there is no image gputui-test:none for this user on this node",
            "gputui-test:none",
        ),
        ({"image": "registry.invalid/a/nvidia:1"}, 125, "registry.invalid/a/nvidia:1 could not be pulled", "lookup"),
        ({"command": ("true",), "cpus": 1e6}, 125, "Docker on this node could not start its container", "CPUs"),
        ({"command": ("true",), "runtime": "none"}, 125, "Docker on this node has no such runtime", "none"),
        (
            {"command": ("cat",), "no_init": True, "interactive": Interactive(stdin=True), "workdir": "/etc/passwd"},
            125,
            "Docker on this node could not start its container",
            "not a directory",
        ),
    ],
)
def test_a_container_that_cannot_start_ends_its_output_with_our_words_and_the_engines(
    begin: Begin, job: dict[str, Any], code: int, words: str, said: str
) -> None:
    run = begin(docker_script(**job))
    assert run.wait() == code, run.output
    last = run.output.splitlines()[-1]
    assert last.startswith(f"gputui: {words}: "), run.output
    assert said in last
    assert "Error response" not in last


PERMISSION = (
    "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: connect"
)
SEE = "See 'docker run --help'."


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f'echo "docker: {PERMISSION}\n{SEE}" >&2; exit 126', f"this user may not use Docker on gpu1: {PERMISSION}"),
        (
            "echo 'docker: Cannot connect to the Docker daemon. Is it running?\n\nRun x docker' >&2; exit 125",
            "Docker does not run on gpu1: Cannot connect to the Docker daemon. Is it running?",
        ),
        ("echo '/spool/slurm_script: line 9: exec: docker: not found' >&2; exit 127", "gpu1 has no Docker: not found"),
    ],
)
def test_a_node_whose_docker_this_user_cannot_use_is_told_at_once(
    begin: Begin, tmp_path: Path, program: str, words: str
) -> None:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(f"#!/bin/sh\n{program}\n")
    docker.chmod(0o755)
    run = begin(docker_script(command=("true",)), SLURMD_NODENAME="gpu1")
    assert run.wait() == 125
    assert run.output.splitlines()[-1] == f"gputui: {words}"


LAYERS = "docker: Error response from daemon: failed to create task: OCI runtime create failed: runc create failed: "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "its GPUs could not be given to it on gpu1",
            "error running hook: stderr: auto\nnvml error: driver not loaded",
        ),
        ("there is no image r/nvidia/x:1 for this user on gpu1", 'resolve reference "r/nvidia/x:1": not found.'),
        ("Docker's disk on gpu1 is full", "write /x: no space left on device."),
        ("r/nvidia/x:1 could not be pulled", "toomanyrequests: You have reached your pull rate limit: manifest"),
        ("its mounts are not possible on gpu1", "invalid mount config: bind source path does not exist: /data"),
    ],
)
def test_the_useful_line_of_docker_is_told_with_its_kind(begin: Begin, tmp_path: Path, words: str, said: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "said").write_text(f"{LAYERS}{said}\n\nRun 'docker run --help' for more information\n")
    docker = tmp_path / "bin" / "docker"
    docker.write_text(
        f"#!/bin/sh\n[ $1 = run ] || {{ echo No such object; exit 1; }}\ncat {tmp_path}/said >&2; exit 125\n"
    )
    docker.chmod(0o755)
    run = begin(docker_script(image="r/nvidia/x:1"), SLURMD_NODENAME="gpu1")
    assert run.wait() == 125
    assert run.output.splitlines()[-1] == f"gputui: {words}: {said}".replace("\n", " ")


def test_a_container_over_its_memory_limit_says_so(begin: Begin) -> None:
    run = begin(docker_script(command=("sh", "-c", "tail /dev/zero"), memory=32 * 1024**2))
    assert run.wait() in {1, 137}
    last = run.output.splitlines()[-1]
    assert last == "gputui: the kernel ended it: over its memory limit of 32 MiB"


def test_slurms_variables_reach_the_container_unless_the_job_sets_them(begin: Begin) -> None:
    script = docker_script(command=("env",), env=(("SLURM_PROCID", "mine"),))
    paths = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_SUBMIT_DIR": "/home"}
    run = begin(
        script, SLURM_PROCID="0", SLURM_JOB_NAME="a b=c", SLURM_ARRAY_TASK_ID="7", SLURM_ARRAY_JOB_ID="3", **paths
    )
    assert run.wait() == 0
    lines = [line for line in run.output.splitlines() if line.startswith("SLURM_")]
    wanted = {"JOB_ID=4711", "PROCID=mine", "JOB_NAME=a b=c", "ARRAY_TASK_ID=7", "ARRAY_JOB_ID=3", "CPUS_ON_NODE=2"}
    assert sorted(lines) == sorted(f"SLURM_{each}" for each in {*wanted, "CLUSTER_NAME=lab"})


def test_the_container_gets_the_gpus_that_slurm_chose(begin: Begin, engine: Dockerd) -> None:
    script = docker_script(command=LOOP, gpus=GpuRequest(2, 2), tenant="lab", labels=(("a", "b"), ("gputui.job", "1")))
    run = begin(script, "1,3", CUDA_VISIBLE_DEVICES="0,1")
    found = inspected(engine)
    run.signal(everything=False)
    run.wait()
    wanted = [uuid(1), uuid(3)]
    assert found["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == wanted
    labels = {"gputui.job": str(JOB), "gputui.key": KEY, "gputui.gpus": ",".join(wanted), "user": "lab", "a": "b"}
    assert found["Config"]["Labels"] == labels
    run = begin(docker_script(command=("env",), gpus=GpuRequest(2, 2)), "1,3")
    assert run.wait() == 0
    assert {f"NVIDIA_VISIBLE_DEVICES={','.join(wanted)}", "GPUTUI_GPUS=2"} <= set(run.output.splitlines())


def test_a_gpu_that_nvidia_smi_does_not_list_fails_the_job(begin: Begin) -> None:
    run = begin(docker_script(gpus=GpuRequest(1, 1)), "7")
    assert run.wait() == 125
    assert run.output == "gputui: nvidia-smi does not list the GPUs that Slurm chose: 7\n"


def test_an_element_of_a_sweep_gets_its_values(begin: Begin) -> None:
    command = ("sh", "-c", "echo {lr} {{lr}} ${lr} {seed}; env")
    script = docker_script(command=command, sweep=(("lr", '"a b",1e-4'), ("seed", "08-10")), array=tuple(range(6)))
    run = begin(script, SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="2")
    assert run.wait() == 0
    lines = run.output.splitlines()
    assert lines[0] == "a b {lr} 10"
    assert {"GPUTUI_SWEEP_LR=a b", "GPUTUI_SWEEP_SEED=10", "GPUTUI_JOB_ID=40_2", "GPUTUI_ARRAY_INDEX=2"} <= set(lines)


def test_values_reach_the_container_and_not_the_list_of_processes(begin: Begin, tmp_path: Path) -> None:
    env = (("SECRET", "hidden $x 'y'"), ("LINES", "one\ntwo\n"), ("DOCKER_HOST", "tcp://elsewhere"), ("é", "ü"))
    BatchRun.stopping_at(tmp_path, "before run")
    run = begin(docker_script(command=("env",), env=env))
    run.wait_for_moment()
    shown = b"\n".join(b" ".join(words) for words in command_lines().values())
    run.go_on()
    assert run.wait() == 0
    assert all(f"{name}={value}\n" in run.output for name, value in env)
    assert b"run --detach" in shown
    assert b"hidden" not in shown


@pytest.mark.parametrize("everything", [pytest.param(False, marks=pytest.mark.long), True])  # Slurm signals everything
@pytest.mark.parametrize("moment", [in_its_lane(moment, is_long=moment in RARE) for moment in MOMENTS])
def test_a_cancelled_job_leaves_no_container(begin: Begin, tmp_path: Path, moment: str, everything: bool) -> None:
    BatchRun.stopping_at(tmp_path, moment)
    run = begin(docker_script(command=LOOP, stop_timeout=1))
    if moment in {"after logs", "after wait", *MOMENTS[-4:]}:
        run.wait_for("begun")
        run.signal(everything=False)
    run.wait_for_moment()
    run.signal(everything=everything)
    run.go_on()
    assert run.wait() in {137, 143}


@pytest.mark.parametrize("everything", [False, True])
def test_a_cancelled_job_may_save_its_work(begin: Begin, everything: bool) -> None:
    run = begin(docker_script(command=POLITE))
    run.wait_for("begun")
    run.signal(everything=everything)
    assert run.wait() == 7
    assert run.output == "begun\nasked to end\nsaved\n"


def test_the_job_is_stopped_by_its_own_signal(begin: Begin) -> None:
    command = (
        "sh",
        "-c",
        "trap 'echo wrong' TERM; trap 'echo right; exit 9' USR1; echo begun; while :; do sleep 0.1; done",
    )
    run = begin(docker_script(command=command, stop_signal="SIGUSR1"))
    run.wait_for("begun")
    run.signal(everything=True)
    assert run.wait() == 9
    assert run.output == "begun\nright\n"


@pytest.mark.parametrize(("sent", "wanted"), [(signal.SIGUSR1, "USR1"), (signal.SIGURG, "TERM")])
def test_signals_and_warnings_are_passed_on(begin: Begin, sent: signal.Signals, wanted: str) -> None:
    command = ("sh", "-c", f"trap 'echo warned; exit 5' {wanted}; echo begun; while :; do sleep 0.1; done")
    warning = LimitWarning(signal.SIGTERM, timedelta(seconds=60))
    run = begin(docker_script(command=command, warning=warning))
    run.wait_for("begun")
    run.signal(sent, everything=False)
    assert run.wait() == 5


def test_a_suspended_job_stands_still(begin: Begin, engine: Dockerd) -> None:
    run = begin(docker_script(command=LOOP))
    run.wait_for("begun")

    def status() -> str:
        return engine.docker("inspect", "--format", "{{.State.Status}}", NAME)

    run.signal(signal.SIGTSTP, everything=False)
    until(lambda: status() == "paused", "it was not paused")
    run.signal(signal.SIGWINCH, everything=False)
    until(lambda: status() == "running", "it does not go on")
    run.signal(everything=True)
    assert run.wait() in {137, 143}


@pytest.mark.parametrize(("verb", "restarts"), [(("run", "--detach"), 1), (("run", "--detach"), 0), (("create",), 0)])
def test_a_container_of_an_earlier_run_is_replaced(
    begin: Begin, engine: Dockerd, verb: tuple[str, ...], restarts: int
) -> None:
    engine.docker(*verb, f"--name={NAME}", f"--label=gputui.job={JOB}", IMAGE, "sleep", "600")
    run = begin(docker_script(command=("echo", "new")), SLURM_RESTART_COUNT=str(restarts))
    assert run.wait() == 0
    lines = run.output.splitlines()
    assert lines == ["new"] if restarts else lines[-2:] == [f"gputui: an old container {NAME} is removed", "new"]


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_job_that_is_cancelled_while_its_image_is_pulled_ends_at_once(
    begin: Begin, tmp_path: Path, everything: bool
) -> None:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    pulls = f"touch {tmp_path}/pulls; exec sleep 600"
    docker.write_text(f'#!/bin/bash\n[[ $1 != run ]] || {{ {pulls}; }}\nexec {shutil.which("docker")} "$@"\n')
    docker.chmod(0o755)
    run = begin(docker_script(command=("true",)))
    until((tmp_path / "pulls").exists, "docker run never began")
    run.signal(everything=everything)
    assert run.wait() == 143


def test_limits_are_those_of_the_allocation_where_the_site_wants_them(begin: Begin, engine: Dockerd) -> None:
    script = docker_script(command=LOOP, site={"limit_containers": True})
    run = begin(script, SLURM_MEM_PER_CPU="100", SLURM_CPUS_ON_NODE="1")
    found = inspected(engine)["HostConfig"]
    run.signal(everything=False)
    run.wait()
    assert (found["NanoCpus"], found["Memory"]) == (10**9, 100 * 1024**2)


@pytest.mark.parametrize("comes", [True, in_its_lane(False, is_long=True)])
def test_a_container_with_a_terminal_is_started_by_whoever_attaches_first(
    begin: Begin, engine: Dockerd, comes: bool
) -> None:
    claim = Path(f"/tmp/{NAME}.start")
    run = begin(docker_script(command=("sh", "-c", "echo begun; exit 5"), interactive=Interactive(tty=True)))
    until(lambda: engine.docker("ps", "--all", "--quiet", "--filter", f"name={NAME}"), "there is no container")
    if comes:
        claim.mkdir()
        assert engine.docker("start", "--attach", NAME, check=False) == "begun"
    assert run.wait() == 5
    assert "begun" in run.output
    assert not claim.exists()
