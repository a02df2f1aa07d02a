"""What batch scripts say: Slurm's options, and words that bash sees as they were written."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.cluster.slurm.batch_script import array, batch_script, shell_text, word
from gputui.domain import sweep as sweeps
from gputui.domain.cluster import element_id
from gputui.domain.errors import InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, Interactive, LimitWarning, Submission
from gputui.domain.settings import Settings
from tests.cases import cases
from tests.cluster.batch import script_of
from tests.factories import spec
from tests.lane import examples

ANY_TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)


def options_of(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def run(script: str, **variables: str) -> bytes:
    """Return the output of a script of a host job."""
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", **variables}
    return subprocess.run(["bash"], input=script.encode(), env=env, capture_output=True, check=True).stdout


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ANY_TEXT))
def test_bash_sees_exactly_the_words(words: list[str]) -> None:
    script = array("words", map(word, words)) + 'printf \'%s\\0\' "${#words[@]}" "${words[@]}"'
    assert b"\r\n" not in script.encode()
    assert run(script).split(b"\0")[1 : len(words) + 1] == [word.encode() for word in words]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ANY_TEXT, min_size=1), st.dictionaries(NAMES.filter(str.isidentifier), ANY_TEXT, max_size=3), ANY_TEXT)
def test_a_host_job_gets_its_words_and_its_environment(words: list[str], env: dict[str, str], name: str) -> None:
    env = {f"X_{key}": value for key, value in env.items()}
    command = ("bash", "-c", 'printf "%s\\0" "$@"; env -0', *words)
    script = script_of(image=None, command=("env", "-u", "_", *command), env=tuple(env.items()), name=name)
    found = run(script).split(b"\0")
    assert found[: len(words) - 1] == [word.encode() for word in words[1:]]
    assert {f"{key}={value}".encode() for key, value in env.items()} <= set(found)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(ANY_TEXT, min_size=1, max_size=3), ANY_TEXT)
def test_the_values_of_a_sweep_are_words_too(values: list[str], text: str) -> None:
    sweep = (("a", sweeps.quoted_list(values)), ("b", "5-6"))
    command = ("printf", "%s\\0", text + "{a}", "{b}{index}{{a}}${a}")
    script = script_of(image=None, command=command, sweep=sweep, array=tuple(range(len(values) * 2)))
    for index in range(len(values) * 2):
        found = run(script, SLURM_ARRAY_TASK_ID=str(index)).split(b"\0")
        at = sweeps.values_at(sweep, index) | {"index": str(index)}
        assert found[:2] == [sweeps.filled(each, at).encode() for each in command[2:]]


def test_options_of_slurm() -> None:
    # Slurm is told what it plans with
    job = spec(
        (2, 2),
        priority=20,
        time_limit=timedelta(hours=25, seconds=1),
        after=(7, element_id(40, 3)),
        after_any=(9,),
        begin_at=datetime(2026, 3, 2, 12, tzinfo=UTC),
        warning=LimitWarning(15, timedelta(minutes=1)),
        options=ContainerOptions(cpus=1.5, memory=3 * 1024**3 + 1),
    )
    script = batch_script(Submission(job, True, (0, 1, 2, 7), 2), "k", Settings(), "/logs/%A_%a")
    assert options_of(script) == [
        "--job-name=train",
        "--comment=gputui:k",
        "--nodes=1",
        "--ntasks=1",
        "--export=NIL",
        "--open-mode=append",
        "--no-requeue",
        "--gres=gpu:2",
        "--cpus-per-task=2",
        "--mem=3073M",
        "--time=1-01:01:00",
        "--hold",
        "--nice=30000",
        "--begin=uts1772452800",
        "--dependency=afterok:7:40_3,afterany:9",
        "--array=0-2,7%2",
        "--signal=B:23@60",
        "--output=/logs/%A_%a",
    ]
    # the site adds options of its own
    site = {"partition": "gpu", "account": "lab", "requeue": True, "sbatch_options": ("--qos=low", "--mail-user=a b")}
    found = options_of(script_of(site=site, gpus=GpuRequest(1, 1, model="H200")))
    assert {"--partition=gpu", "--account=lab", "--requeue", "--qos=low", '--mail-user="a b"'} <= set(found)
    assert "--gres=gpu:h200:1" in found
    assert not [option for option in found if option.startswith("--time")]  # the partition's, as Slurm has it
    assert "--time=1-00:00:00" in options_of(script_of(site={"default_time": timedelta(days=1)}))
    # nothing of a job acts on the terminal that shows its script: nor ends a line: for readers of Unicode, U+0085 and
    # U+2028 do.
    options = ContainerOptions(env=(("A", UNSEEN),), labels=(("note", f"a\n{UNSEEN}"),), workdir=f"/{UNSEEN}")
    asked = spec(name=f"name{UNSEEN[:-1]}", command=("echo", UNSEEN), options=options)
    script = batch_script(Submission(asked), "key", Settings())
    assert script.splitlines() == script.removesuffix("\n").split("\n")
    assert all(line.replace("\t", "").isprintable() for line in script.splitlines())
    # a line break in an option stays as it is
    options = ContainerOptions(labels=(("note", "a\nb"),))
    script = batch_script(Submission(spec(options=options)), "key", Settings())
    assert "note=a\nb'" in script
    # a name stays in its line
    found = options_of(script_of(name='a\n#SBATCH --uid=0 "\\'))
    assert found[0] == '--job-name="a #SBATCH --uid=0 \\"\\\\"'


UNSEEN = "\x1b[2J\x85\x9b31m\u2028\u202e\u200b\udc9b"


@cases(
    ("job", "where"),
    [
        ({"gpus": GpuRequest(1, 1, ("0",))}, "--gpus"),
        ({"gpus": GpuRequest(2, 4)}, "--gpus"),
        ({"gpus": GpuRequest(1, 1, memory=1)}, "--gpu-memory"),
        ({"gpus": GpuRequest(1, 1, share=True)}, "--share"),
        ({"retries": 1}, "--retries"),
        ({"image": None, "volumes": ("/a:/b",)}, "--volume"),
        ({"image": None, "command": ()}, "--command"),
        ({"env": (("a=b", ""),)}, "--env"),
        ({"publish": ("x",)}, "--publish"),
    ],
)
def test_what_slurm_cannot_do_is_refused(job: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refusal:
        script_of(**job)
    assert refusal.value.where == where


@cases("job", [{"privileged": True}, {"volumes": ("name:/b",)}, {"shm_size": 1}])
@cases("container", ["apptainer", "srun"])
def test_what_only_docker_does_is_refused_elsewhere(job: dict[str, Any], container: str) -> None:
    with pytest.raises(InputError):
        script_of(site={"container": container}, **job)


PRINTS = "#!/bin/bash\nprintf '%s\\n' \"${0##*/}\" \"$@\"\nenv | grep -E '^(APPTAINERENV_)?(A|GPUTUI_JOB_ID)='\n"


def printed(folder: Path, program: str, script: str) -> list[str]:
    """Return the words and variables that the script gives to the program."""
    (folder / program).write_text(PRINTS)
    (folder / program).chmod(0o755)
    return run(script, PATH=f"{folder}:{os.environ['PATH']}").decode().splitlines()


def test_apptainer_runs_the_command(tmp_path: Path) -> None:
    job: dict[str, Any] = {"volumes": ("/a:/b:ro",), "workdir": "/w", "env": (("A", "x y"),), "gpus": GpuRequest(1, 1)}
    script = script_of(site={"container": "apptainer"}, image="busybox:1", command=("a b", "*"), **job)
    words = ["apptainer", "exec", "--compat", "--nv", "--bind=/a:/b:ro", "--pwd=/w", "docker://busybox:1", "a b", "*"]
    found = printed(tmp_path, "apptainer", script)
    assert found[: len(words)] == words
    assert set(found[len(words) :]) == {"APPTAINERENV_A=x y", "APPTAINERENV_GPUTUI_JOB_ID=1"}


def test_srun_runs_the_command(tmp_path: Path) -> None:
    job: dict[str, Any] = {"mounts": ("type=bind,source=/a,target=/b",), "env": (("A", "x y"),)}
    script = script_of(site={"container": "srun"}, image="nvcr.io/nvidia/pytorch:24.01", command=("a b",), **job)
    found = printed(tmp_path, "srun", script)
    image = "--container-image=nvcr.io#nvidia/pytorch:24.01"
    mounts = "--container-mounts=/a:/b"
    words = ["srun", "--export=ALL", image, "--no-container-mount-home", mounts, "--container-env=A", "--", "a b"]
    assert found[: len(words)] == words
    assert set(found[len(words) :]) == {"A=x y", "GPUTUI_JOB_ID=1"}


@cases(
    ("asked", "limit"),
    [
        ("nofile=1024:2048", "ulimit -Sn 1024 && ulimit -Hn 2048"),
        ("nproc=64", "ulimit -Su 64 && ulimit -Hu 64"),
        ("memlock=-1", "ulimit -Sl unlimited && ulimit -Hl unlimited"),
        ("core=0:unlimited", "ulimit -Sc 0 && ulimit -Hc unlimited"),
        ("fsize=1048576", "ulimit -Sf 1024 && ulimit -Hf 1024"),  # bash counts kibibytes
    ],
)
def test_a_host_job_has_its_limits(asked: str, limit: str) -> None:
    script = script_of(image=None, command=("true",), ulimits=(asked,))
    assert f"{limit} || exit 125\n" in script


@cases("asked", ["msgqueue=1", "nofile=many", "nofile=1:٣", "nofile="])
def test_limits_that_bash_lacks_are_refused(asked: str) -> None:
    with pytest.raises(InputError) as refusal:
        script_of(image=None, command=("true",), ulimits=(asked,))
    assert refusal.value.where == "--ulimit"


@cases(
    ("image", "address"),
    [
        ("busybox:1", "docker://busybox:1"),
        ("docker://ghcr.io/a/b", "docker://ghcr.io/a/b"),
        ("/images/torch.sif", "/images/torch.sif"),
        ("./torch.sif", "./torch.sif"),
    ],
)
def test_apptainer_runs_a_file_or_an_address(tmp_path: Path, image: str, address: str) -> None:
    script = script_of(site={"container": "apptainer"}, image=image, command=())
    assert printed(tmp_path, "apptainer", script)[1:4] == ["run", "--compat", address]


@cases(
    ("image", "name"),
    [
        ("busybox", "busybox"),
        ("library/busybox", "library/busybox"),
        ("localhost/b:1", "localhost#b:1"),
        ("registry:5000/b", "registry:5000#b"),
        ("nvcr.io#nvidia/cuda", "nvcr.io#nvidia/cuda"),
        ("/images/torch.sqsh", "/images/torch.sqsh"),
        ("./torch.sqsh", "./torch.sqsh"),
    ],
)
def test_srun_gets_images_as_enroot_names_them(image: str, name: str) -> None:
    script = script_of(site={"container": "srun"}, image=image, command=("true",), workdir="/w")
    assert {f"--container-image={name}", "--container-workdir=/w"} <= {word.strip("'") for word in script.split()}


@cases("container", ["apptainer", "srun"])
@cases(
    ("job", "where"),
    [
        ({"volumes": ("/a,b:/c",)}, "--volume"),
        ({"volumes": ("/a",)}, "--volume"),
        ({"mounts": ("type=volume,source=v,target=/c",)}, "--mount"),
        ({"mounts": ("type=bind,source=/a,target=/b:c",)}, "--mount"),
        ({"mounts": ("nonsense",)}, "--mount"),
        ({"ulimits": ("nofile=1",)}, "--ulimit"),
    ],
)
def test_mounts_that_only_docker_has_are_refused(container: str, job: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refusal:
        script_of(site={"container": container}, command=("true",), **job)
    assert refusal.value.where == where


def test_options_of_containers() -> None:
    # a path that cannot be mounted is the one named
    for mount, path in (("/a,b:/c", "'/a,b'"), ("/a:/b,c", "'/b,c'")):
        with pytest.raises(InputError, match=f"{path} has a comma or a colon"):
            script_of(site={"container": "apptainer"}, command=("true",), volumes=(mount,))
    # srun needs the command
    with pytest.raises(InputError) as refusal:
        script_of(site={"container": "srun"}, command=())
    assert refusal.value.where == "--command"


def test_a_container_with_a_terminal_and_input() -> None:
    assert "attached=1\n" in script_of(interactive=Interactive(stdin=True, tty=True))
    assert "--interactive --tty" in " ".join(script_of(interactive=Interactive(stdin=True, tty=True)).split())
    assert "attached=0\n" in script_of()
    with pytest.raises(InputError, match="only a job in a container of Docker"):
        script_of(interactive=Interactive(tty=True), site={"container": "apptainer"})
    with pytest.raises(InputError, match="only a job in a container of Docker"):
        script_of(interactive=Interactive(tty=True), image=None)


def test_slurms_numbers_are_those_of_the_drivers_files(tmp_path: Path) -> None:
    """Nothing but the GPU that is not initialised costs a call of nvidia-smi, a single one."""
    for place, (minor, uuid) in enumerate([(1, "GPU-b"), (0, "GPU-a"), (3, "GPU-????????"), (2, "GPU-c")]):
        (tmp_path / f"{place}").mkdir()
        lines = f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (tmp_path / f"{place}" / "information").write_text(lines)
    smi = f"nvidia-smi() {{ echo asked >>{tmp_path}/asked; echo '3, GPU-d'; }}\n"
    script = (
        smi + shell_text("gpus.sh").replace("/proc/driver/nvidia/gpus", str(tmp_path)) + 'gpu_uuids; echo "$uuids"\n'
    )
    assert run(script, SLURM_JOB_GPUS="0,1,MIG-x,2,3,3") == b"GPU-a,GPU-b,MIG-x,GPU-c,GPU-d,GPU-d\n"
    assert (tmp_path / "asked").read_text() == "asked\n"
