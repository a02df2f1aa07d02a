"""Conversion of a spec to a draft and a job file, and back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.errors import InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, LimitWarning
from gputui.request import draft as drafts
from gputui.request import job_file
from gputui.request.draft import asked, filled_texts
from gputui.request.job_options import DOCKER_KEYS, KEYS, RARER
from gputui.request.submitter import Submitter
from tests.cases import cases
from tests.factories import GIB, NOW, spec
from tests.request.docker_values import GOOD

BY = Submitter("alice", NOW, Path("/home/alice"), {"PATH": "/bin"})
RICH = JobSpec(
    image="nvcr.io/nvidia/pytorch:24.10",
    command=("sh", "-c", "a && b 'c'\n\"d\"\x7f", ""),
    name="two words",
    tenant="bob",
    gpus=GpuRequest(2, 4, memory=10 * GIB + 1, model="h100", share=True),
    priority=70,
    nice=-5,
    time_limit=timedelta(days=1, minutes=3, seconds=7),
    retries=3,
    backoff=timedelta(seconds=1.5),
    retry_on=("1", "GPU_OOM"),
    gpu_memory_step=GIB,
    warning=LimitWarning(10, timedelta(minutes=2)),
    after=(3, 9),
    after_any=(4,),
    begin_at=NOW + timedelta(hours=2),
    preemptible=True,
    options=ContainerOptions(
        env=(("A", "1"), ("B", "x y='z'"), ("dotted.name", "")),
        volumes=("/a b:/c:ro", "/d"),
        mounts=("type=bind,source=/x,target=/y",),
        workdir="/w",
        user="1:2",
        entrypoint="/bin/sh",
        cpus=1.25,
        cpu_shares=512,
        memory=64 * GIB,
        shm_size=16 * GIB,
        ipc="host",
        network="host",
        ulimits=("memlock=-1", "nofile=1:2"),
        labels=(("k", "v w"), ("empty", "")),
        runtime="nvidia",
    ),
)
SPECS = [
    RICH,
    spec(),
    spec(1),
    replace(spec(), gpus=GpuRequest(1, 1024, everything=True)),
    replace(spec(), gpus=GpuRequest(2, 2, devices=("0", "GPU-00000001"))),
    replace(spec(), warning=LimitWarning(35, timedelta(seconds=90)), time_limit=timedelta(hours=1)),
    replace(spec(), image=None, options=ContainerOptions(env=(("PATH", "/bin"), ("A", "1")), workdir="/home/alice")),
]


def test_rarer_options_of_docker_are_read_back(tmp_path: Path) -> None:
    assert {*GOOD} == {key.name for key in DOCKER_KEYS if key.name in RARER}
    wanted = asked({"image": "busybox", "entrypoint": "''", **GOOD}, BY)
    draft = drafts.draft_of_spec(wanted.spec, NOW)
    assert {name: draft[name] for name in GOOD} == GOOD
    assert asked(draft, BY) == wanted
    assert wanted.spec.options.entrypoint == ""
    file = tmp_path / "job.toml"
    file.write_text(job_file.draft_as_toml(draft))
    assert job_file.read_jobs(str(file), BY) == (wanted,)


@cases("wanted", SPECS)
def test_a_draft_of_a_spec_gives_the_same_spec(wanted: JobSpec) -> None:
    assert asked(drafts.draft_of_spec(wanted, NOW), BY).spec == wanted


def test_a_past_begin_is_omitted() -> None:
    assert "begin" not in drafts.draft_of_spec(replace(RICH, begin_at=NOW - timedelta(hours=1)), NOW)


@cases("with_others", [False, True])
@cases("wanted", SPECS)
def test_a_draft_is_written_as_a_job_file_and_read_back(wanted: JobSpec, with_others: bool, tmp_path: Path) -> None:
    draft = {**drafts.draft_of_spec(wanted, NOW), "array": "0-3%2", "hold": "yes"}
    file = tmp_path / "job.toml"
    file.write_text(job_file.draft_as_toml(draft, with_others=with_others))
    assert job_file.read_jobs(str(file), BY) == (asked(draft, BY),)
    assert asked(job_file.read_draft(file, BY), BY) == asked(draft, BY)


def test_the_file_for_an_editor_names_every_option() -> None:
    text = job_file.draft_as_toml({"image": "busybox"}, with_others=True)
    assert all(f"{key.name} = " in text for key in KEYS)


@cases(
    ("text", "where"),
    [
        ("[[job]]\nimage = 'a'\n[[job]]\nimage = 'b'", "job.toml"),
        ("[[job]]\nimage = 'a'\ngpus = 'x'", "job[1].gpus"),
        ("[[job]]\nimage = 'a'\nqpus = 1", "job[1].qpus"),
        ("[[job", "job.toml"),
        ("job = 3", "job.toml: job"),
    ],
)
def test_errors_in_a_file_are_reported_with_their_place(text: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(InputError) as told:
        job_file.read_draft(file, BY)
    assert where in str(told.value)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_text_survives_the_file(text: str) -> None:
    import tomllib

    draft = filled_texts({"image": "busybox", "workdir": text, "command": "'" + text.replace("'", "") + "'"})
    table = tomllib.loads(job_file.draft_as_toml(draft))["job"][0]
    assert str(table.get("workdir", "")) == draft.get("workdir", "")
    assert table["command"] == [text.replace("'", "")]
