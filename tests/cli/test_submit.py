"""`gputui submit`."""

from __future__ import annotations

import json
import os
import re
import resource
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.container import Launch
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.request import submitter
from gputui.request.caller import LIMITS, is_taken_over
from gputui.request.job_options import KEYS
from gputui.runtime.host_processes import account_of
from gputui.runtime.process.runtime import environment
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import GIB, NOW, spec, uuid
from tests.request import docker_values


def spec_of(store: KeptStore, job_id: int = 1) -> JobSpec:
    return store.get(job_id).spec


def test_only_the_id_is_printed(run: Run, store: KeptStore) -> None:
    result = run("submit", "busybox", "echo", "hello")
    assert (result.code, result.out, result.err) == (0, "1\n", "")
    assert spec_of(store) == JobSpec("busybox", ("echo", "hello"), name="busybox", tenant="alice")
    assert store.get(1).submitted_by == "alice"
    assert store.get(1).submitted_at == NOW


def test_a_docker_run_line_works_with_two_words_replaced(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    line = (
        "--rm -d --init --name net -e A=1 -e TOKEN -v /data:/data:ro --mount type=tmpfs,target=/t -w /w -u 1000:1000 "
        "--entrypoint sh --cpus 1.5 -c 512 -m 16g --shm-size=8g --ipc=host --net host --ulimit memlock=-1 "
        '-l team=vision --runtime nvidia --gpus "device=0,1" nvcr.io/nvidia/pytorch:24.05-py3 -c "true"'
    )
    import shlex

    result = run("submit", *shlex.split(line))
    assert (result.code, result.out) == (0, "1\n")
    spec = spec_of(store)
    assert spec.image == "nvcr.io/nvidia/pytorch:24.05-py3"
    assert spec.command == ("-c", "true")
    assert spec.name == "net"
    assert spec.gpus == GpuRequest(2, 2, devices=("0", "1"))
    assert spec.options == ContainerOptions(
        env=(("A", "1"), ("TOKEN", "s3cret")),
        volumes=("/data:/data:ro",),
        mounts=("type=tmpfs,target=/t",),
        workdir="/w",
        user="1000:1000",
        entrypoint="sh",
        cpus=1.5,
        cpu_shares=512,
        memory=16 * GIB,
        shm_size=8 * GIB,
        ipc="host",
        network="host",
        ulimits=("memlock=-1",),
        labels=(("team", "vision"),),
        runtime="nvidia",
    )


def test_short_options_take_values_after_an_equals_sign_as_in_docker(run: Run, store: KeptStore) -> None:
    assert run("submit", "-m=16g", "-e=A=1", "-v=/a:/b", "-w=/w", "-c=512", "busybox").code == 0
    assert run("submit", "-m16g", "-eA=1", "-v/a:/b", "-w/w", "-c512", "busybox").code == 0
    first, second = spec_of(store, 1), spec_of(store, 2)
    assert first.options == second.options
    assert (first.options.memory, first.options.env) == (16 * GIB, (("A", "1"),))
    assert run("submit", "--name", "=x", "busybox").code == 0
    assert spec_of(store, 3).name == "=x"


def test_options_become_requests(run: Run, store: KeptStore) -> None:
    assert run("submit", "busybox").code == 0
    line = (
        "--gpus 2-4 --gpu-memory 40g --gpu-model h100 --priority 70 --nice -5 --time-limit 1h30m --retries 2 "
        "--backoff 10s --after 1 --after-any 1,1 --begin +1h --tenant vision --preemptible --hold"
    )
    assert run("submit", *line.split(), "busybox").out == "2\n"
    job, spec = store.get(2), spec_of(store, 2)
    assert spec.gpus == GpuRequest(2, 4, memory=40 * GIB, model="h100")
    assert (spec.priority, job.priority, spec.nice, spec.retries) == (70, 70, -5, 2)
    assert (spec.time_limit, spec.backoff) == (timedelta(minutes=90), timedelta(seconds=10))
    assert (spec.after, spec.after_any, spec.begin_at) == ((1,), (1,), NOW + timedelta(hours=1))
    assert (spec.tenant, spec.preemptible, job.held) == ("vision", True, True)


def test_arguments_after_the_image_are_the_job_s(run: Run, store: KeptStore) -> None:
    command = ("python", "-m", "train", "--gpus", "8", "-p", "--", "--help")
    assert run("submit", "busybox", *command).code == 0
    assert spec_of(store).command == command


def test_a_terminal_shows_the_number_of_elements(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("submit", "--array", "0-20:5%2", "busybox").out == "1  5 elements, 1_0 to 1_20\n"
    assert run("submit", "--array", "3", "busybox").out == "6  1 element, 6_3\n"
    assert run("submit", "busybox").out == "7\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert run("submit", "--array", "0-9", "busybox").out == "8\n"


def test_an_array_is_a_job_for_each_index(run: Run, store: KeptStore) -> None:
    assert run("submit", "--array", "0-2%2", "busybox").out == "1\n"
    jobs = (entry.element(job_id) for entry in store.jobs().values() for job_id in entry.ids)
    places = [(job.array.id, job.array.index, job.array.limit) for job in jobs if job.array]
    assert places == [(1, 0, 2), (1, 1, 2), (1, 2, 2)]


def test_json_is_an_object_or_a_list(run: Run) -> None:
    assert json.loads(run("submit", "--json", "busybox").out) == {"id": 1}
    assert json.loads(run("submit", "--json", "--array", "0-1", "busybox").out) == {
        "id": 2,
        "array": {"count": 2, "first": 0, "last": 1, "limit": None},
    }


def test_a_host_job_finds_the_programs_of_its_submitter(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/venv/bin:/usr/bin")
    for name in [name for name in os.environ if is_taken_over(name) and name != "PATH"]:
        monkeypatch.delenv(name)
    assert run("submit", "--host", "-e", "A=1", "--", "/usr/bin/python3", "train.py", "--lr", "1").code == 0
    spec = spec_of(store)
    assert spec.is_host
    assert spec.command == ("/usr/bin/python3", "train.py", "--lr", "1")
    assert spec.name == "python3"
    assert spec.options.workdir == str(tmp_path)
    assert spec.options.env == (("PATH", "/venv/bin:/usr/bin"), ("A", "1"))


def test_a_host_job_may_take_over_the_whole_environment(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    assert run("submit", "--host", "--", "true").code == 0
    assert "HF_HOME" not in dict(spec_of(store).options.env)
    assert run("submit", "--host", "--env-all", "--", "true").code == 0
    env = dict(store.jobs()[2].spec.options.env)
    assert (env["HF_HOME"], env["PATH"]) == ("/models", os.environ["PATH"])
    assert not {"SSH_AUTH_SOCK", "HOME", "GPUTUI_STATE"} & env.keys()
    refused = run("submit", "--env-all", "busybox")
    assert (refused.code, "--env-all" in refused.err) == (2, True)


@cases("key", [key for key in KEYS if key.container])
def test_a_host_job_refuses_options_of_containers(run: Run, store: KeptStore, key: object) -> None:
    option = getattr(key, "option")  # noqa: B009 - parametrised
    values = {"--volume": "/a:/b", "--mount": "type=tmpfs,target=/t", "--shm-size": "1g", "--ipc": "host"}
    name = option[2:].replace("-", "_")
    value = [] if name in docker_values.FLAGS else [values.get(option, docker_values.GOOD.get(name, "x").split()[0])]
    result = run("submit", option, *value, "--host", "--", "true")
    assert result.code == 2
    assert option in result.err
    assert not store.jobs()


def test_host_jobs_can_be_switched_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_SCHEDULER_HOST_JOBS", "false")
    result = run("submit", "--host", "--", "true")
    assert (result.code, result.out) == (2, "")
    assert "--host: host jobs are switched off" in result.err


def test_without_an_engine_an_image_is_refused(run: Run, store: KeptStore, tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('[[job]]\nhost = true\ncommand = ["true"]\n[[job]]\nimage = "busybox"\n')
    for arguments in (["busybox"], ["-f", str(file)]):
        result = run("--runtime", "process", "submit", *arguments)
        assert (result.code, result.out) == (2, "")
        assert "IMAGE: there is no engine here to run an image" in result.err
    assert not store.jobs()
    assert run("--runtime", "process", "submit", "--host", "--", "true").code == 0


@cases("option", sorted(submitter.REFUSED))
def test_unsupported_docker_options_are_refused_with_a_substitute(run: Run, store: KeptStore, option: str) -> None:
    value = [] if option in submitter.WITHOUT_VALUE else ["x"]
    result = run("submit", option, *value, "busybox")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gputui: error: {option}: is not an option of submit (")
    assert not store.jobs()


@cases("line", [["-it"], ["-ti"], ["-dit"], ["-i", "-t"], ["-d=true", "-it", "--rm=true"]])
def test_an_option_for_a_terminal_is_accepted_with_an_explanation(run: Run, store: KeptStore, line: list[str]) -> None:
    store.clear()
    result = run("submit", *line, "-itp", "80:80", "busybox", "top", "-b")
    assert (result.code, result.out) == (0, "1\n")
    assert result.err.startswith("gputui: note: ")
    assert result.err.count("\n") == 1
    assert "a job has no terminal" in result.err
    assert spec_of(store).options.publish == ("80:80",)
    assert spec_of(store).command == ("top", "-b")


def test_what_has_no_effect_is_told_in_at_most_one_line(run: Run) -> None:
    assert run("submit", "--init", "-q", "--restart=no", "--rm=false", "busybox").err == ""
    result = run("submit", "-d", "--rm", "--restart", "unless-stopped", "busybox")
    assert (result.code, result.err.count("\n")) == (0, 1)
    assert "--retries N" in result.err
    line = ["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=all"]
    result = run("submit", *line, "busybox")
    assert (result.code, "--gpus all" in result.err) == (0, True)
    assert run("submit", "--gpus", "all", *line, "busybox").err == ""


@cases(
    ("line", "told"),
    [
        ("busybox true --dry-run", "--dry-run"),
        ("busybox true --dry-run --time-limit=4h --frobnicate", "--dry-run, --time-limit"),
        ("--host true --dry-run", "--dry-run"),
        ("--gpus 1 busybox train.py --gpus 1", ""),
        ("-- busybox true --dry-run", ""),
        ("--host -- true --dry-run", ""),
        ("busybox true -v --frobnicate", ""),
    ],
)
def test_an_option_behind_the_image_is_the_jobs_own_with_a_note(
    run: Run, store: KeptStore, line: str, told: str
) -> None:
    store.clear()
    result = run("submit", *line.split())
    assert (result.code, len(store.jobs())) == (0, 1)
    words = f"{told} after the image or command: passed to the job; options of gputui go before it"
    assert result.err.startswith(f"gputui: note: {words}") if told else result.err == ""


def test_all_errors_are_reported_together(run: Run, store: KeptStore) -> None:
    line = "--frobnicate --memory lots --cidfile c --privileged=perhaps -p 99999:1 --wobble=3 --device /dev/nvidia0"
    result = run("submit", *line.split(), "busybox", "--ignored")
    assert (result.code, result.out) == (2, "")
    named = [told.split(":")[2].strip() for told in result.err.splitlines()]
    assert set(named) == {"--frobnicate", "--memory", "--cidfile", "--privileged", "--publish", "--wobble", "--device"}
    assert "--gpus" in result.err
    assert not store.jobs()


def test_h_names_the_host_as_in_docker_run(run: Run, store: KeptStore) -> None:
    assert run("submit", "-h", "node1", "--gpus", "1", "busybox", "true").code == 0
    assert spec_of(store).options.hostname == "node1"
    result = run("submit", "-h")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "--help" in result.err
    result = run("submit", "-h", "--gpus", "1", "busybox")
    assert (result.code, "--help" in result.err) == (2, True)
    assert run("submit", "--help").code == 0


def test_what_cannot_be_submitted_is_named(run: Run) -> None:
    result = run("submit", "--priorty", "3", "busybox")
    assert result.code == 2
    assert "--priorty" in result.err
    assert "--priority" in result.err
    result = run("submit", "--gpu-memory", "40g", "busybox")
    assert (result.code, "--gpu-memory" in result.err, "--gpus" in result.err) == (2, True, True)
    for arguments in (["submit"], ["submit", ""], ["submit", "--gpus", "1"]):
        result = run(*arguments)
        assert (result.code, "IMAGE" in result.err) == (2, True)
    assert "COMMAND" in run("submit", "--host", "--").err
    result = run("submit", "busybox", *["x" * 100_000] * 11)
    assert (result.code, "COMMAND" in result.err) == (2, True)
    result = run("submit", "busybox", "x" * 200_000)
    assert (result.code, "COMMAND" in result.err) == (2, True)
    result = run("submit", "busybox", "\udcff")
    assert result.code == 2
    assert "COMMAND: is not UTF-8 text" in result.err


BAD_VALUES = [
    ("--gpus", "two"), ("--gpus", "-1"), ("--gpus", "99999"), ("--gpu-memory", "lots"), ("--gpu-model", ""),
    ("--priority", "101"), ("--priority", "-1"), ("--priority", "1.5"), ("--nice", "x"), ("--idle-timeout", "0"),
    ("--time-limit", "0"), ("--time-limit", "-5"), ("--retries", "-1"), ("--signal", "TERM"), ("--signal", "KILL@60"),
    ("--signal", "WINK@60"), ("--signal", "65@60"), ("--signal", "TERM@0"), ("--signal", "TERM@60"),
    ("--retry-on", "0"), ("--retry-on", "256"), ("--retry-on", "1,OOPS"), ("--retry-on", "1"),
    ("--gpu-memory-step", "lots"), ("--gpu-memory-step", "20g"), ("--backoff", "soon"), ("--after", "x"),
    ("--after-any", "0"), ("--begin", "yesterday"), ("--array", "9-0"), ("--comment", " "), ("--sweep", "lr"),
    ("--sweep-limit", "0"), ("--tenant", "a" * 65), ("--tenant", "a\tb"), ("--name", "a" * 10_000),
    ("--name", "\x1b]0;title\x07"), ("--name", ""), ("--env", "=x"), ("--env-file", "/does/not/exist"),
    ("--volume", "here"), ("--mount", "type=bind"), ("--workdir", "relative"), ("--user", "a: b"), ("--cpus", "nan"),
    ("--cpu-shares", "1"), ("--memory", "1k"), ("--memory", "-1g"), ("--shm-size", "0"), ("--ipc", "maybe"),
    ("--network", "a b"), ("--ulimit", "nofile=x"), ("--label", "user=x"), ("--runtime", ""),
    ("--label-file", "/does/not/exist"),
    *((f"--{name.replace('_', '-')}", text) for name, text in docker_values.BAD.items()),
]  # fmt: skip


@cases(("option", "value"), BAD_VALUES)
def test_bad_values_are_refused_by_name_and_nothing_is_done(
    run: Run, store: KeptStore, option: str, value: str
) -> None:
    result = run("submit", option, value, "busybox")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gputui: error: {option}")
    assert result.err.count("\n") == 1
    assert len(result.err) < 400
    assert "\x1b" not in result.err
    assert not store.jobs()


def test_the_test_of_bad_values_covers_every_option() -> None:
    tried = {option for option, _ in BAD_VALUES}
    flags = {f"--{name.replace('_', '-')}" for name in docker_values.FLAGS}
    takes_any = {"--entrypoint", "--env-all", "--hold", "--preemptible", "--share", *flags}
    assert {key.option for key in KEYS} == tried | takes_any


def test_sharing_needs_a_promise_of_memory(run: Run, store: KeptStore) -> None:
    result = run("submit", "--gpus", "1", "--share", "busybox")
    assert (result.code, "--share" in result.err, "--gpu-memory" in result.err) == (2, True, True)
    assert run("submit", "--gpu-memory", "10g", "--share", "busybox").code == 2
    assert run("submit", "--gpus", "1", "--gpu-memory", "10g", "--share", "busybox").code == 0
    assert store.get(1).spec.gpus == GpuRequest(1, 1, memory=10 * GIB, share=True)


def test_dependencies_must_exist(run: Run, store: KeptStore) -> None:
    result = run("submit", "--after", "7", "busybox")
    assert (result.code, result.out) == (3, "")
    assert "7" in result.err
    assert not store.jobs()


@cases("name", ["训练", "🚀", "[red]x[/red]"])
def test_names_of_any_script_are_kept(run: Run, store: KeptStore, name: str) -> None:
    made = run("submit", "--name", name, "busybox")
    assert spec_of(store, int(made.out)).name == name


def test_the_help_names_every_variable_that_a_job_gets(run: Run) -> None:
    launch = Launch("store", 1, 1, spec(1), (uuid(0),), array_index=3)
    shared = replace(launch.spec.gpus, memory=GIB, share=True)
    found = environment(replace(launch, spec=replace(launch.spec, image=None, gpus=shared)), account_of(None, None))
    ours = {name for name in found if name.startswith("GPUTUI_")}
    told = run("submit", "--help").out
    assert ours == {name for name in re.findall(r"GPUTUI_\w+", told) if name in found}
    assert found["GPUTUI_ARRAY_INDEX"] == "3"
    assert "GPUTUI_ARRAY_INDEX" in Path("docs/cli.md").read_text(encoding="utf-8")


def test_a_host_job_needs_a_directory_that_can_be_named(
    run: Run, store: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, gone = tmp_path / os.fsdecode(b"b\xfcro"), tmp_path / "gone"
    for place, says in ((odd, "is not UTF-8 text"), (gone, "which has been deleted")):
        place.mkdir()
        monkeypatch.chdir(place)
        if place == gone:
            gone.rmdir()
        refused = run("submit", "--host", "--", "true")
        assert (refused.code, says in refused.err) == (2, True)
        assert "go to another one, or name one by --workdir" in refused.err
        assert run("submit", "--host", "-w", "/tmp", "--", "true").code == 0
        assert run("submit", "busybox").code == 0
    refused = run("submit", "-v", "./data:/data", "busybox")
    assert (refused.code, "--volume: the present directory has been deleted" in refused.err) == (2, True)
    assert [job.spec.options.workdir for job in store.jobs().values()] == ["/tmp", None] * 2


def test_variables_that_are_not_utf8_are_left_out_unless_they_were_asked_for(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_NAME", os.fsdecode(b"b\xfcro"))
    told = run("submit", "--host", "--", "true")
    assert (told.code, told.err) == (0, "gputui: note: LC_NAME: not UTF-8 text, and so not passed\n")
    assert "LC_NAME" not in dict(spec_of(store).options.env)
    assert run("submit", "busybox").err == ""
    refused = run("submit", "--host", "-e", "LC_NAME", "--", "true")
    assert (refused.code, "--env LC_NAME: is not UTF-8 text" in refused.err) == (2, True)


def test_a_host_job_takes_over_umask_and_limits(run: Run, store: KeptStore) -> None:
    before, soft = os.umask(0o027), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft[0] - 1, soft[1]))
    try:
        assert run("submit", "--host", "--", "true").code == 0
        assert run("submit", "busybox", "true").code == 0
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    inherited = spec_of(store).inherited
    assert inherited is not None
    assert (inherited.umask, dict(inherited.limits)["nofile"]) == (0o027, soft[0] - 1)
    assert set(dict(inherited.limits)) == set(LIMITS)
    assert spec_of(store, 2).inherited is None
