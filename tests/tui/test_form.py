"""The submit form: what was typed, or which field is wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.job import GpuRequest
from gputui.tui.form import Draft, Origin, errors, submission

HERE = Origin("alice", "/home/alice", {"PATH": "/bin", "SECRET": "x"})


def test_a_container_job() -> None:
    draft = Draft(
        "nvcr.io/nvidia/pytorch:24.10",
        "python train.py --name 'two words'",
        gpus="2-4",
        priority="70",
        time_limit="1h30m",
        retries="2",
        env="A=1 B='x y'",
        volumes="/data:/data:ro",
    )
    spec = submission(draft, HERE).spec
    assert spec.command == ("python", "train.py", "--name", "two words")
    assert (spec.name, spec.tenant, spec.priority, spec.retries) == ("pytorch", "alice", 70, 2)
    assert spec.gpus == GpuRequest(2, 4)
    assert spec.time_limit == timedelta(minutes=90)
    assert spec.options.env == (("A", "1"), ("B", "x y"))
    assert spec.options.volumes == ("/data:/data:ro",)


def test_a_host_job_takes_the_path_and_the_directory_over_and_no_secret() -> None:
    spec = submission(Draft(command="/usr/bin/python3 x.py", env="PATH=/opt"), HERE).spec
    assert spec.is_host
    assert spec.name == "python3"
    assert spec.options.env == (("PATH", "/opt"),)
    assert spec.options.workdir == "/home/alice"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", "many"),
        ("gpus", "4-2"),
        ("gpus", "-1"),
        ("gpus", "device=0,0"),
        ("gpus", "99999"),
        ("gpu_memory", "much"),
        ("gpu_memory", "share"),
        ("gpu_memory", "10g alone"),
        ("gpu_memory", "0"),
        ("priority", "101"),
        ("priority", "-1"),
        ("priority", "high"),
        ("time_limit", "soon"),
        ("time_limit", "0"),
        ("retries", "x"),
        ("env", "NOVALUE"),
        ("env", "1A=2"),
        ("env", "A='open"),
        ("command", "echo 'open"),
        ("command", "a\0b"),
        ("volumes", "relative"),
        ("volumes", "/a:b"),
        ("image", "two words"),
        ("image", "--privileged"),
        ("name", "a\x1bb"),
        ("name", "n" * 300),
    ],
)
def test_what_is_wrong_is_told_at_its_field(field: str, value: str) -> None:
    good = {"image": "busybox", "command": "true"}
    draft = Draft(**{**good, field: value})
    assert errors(draft, HERE).get(field)
    with pytest.raises(InputError):
        submission(draft, HERE)


def test_memory_of_gpus_and_sharing_them() -> None:
    def request(gpus: str, memory: str) -> GpuRequest:
        return submission(Draft("busybox", gpus=gpus, gpu_memory=memory), HERE).spec.gpus

    assert request("2", "40g") == GpuRequest(2, 2, memory=40 * 1024**3)
    assert request("1", " 10g  share ") == GpuRequest(1, 1, memory=10 * 1024**3, share=True)
    assert "gpu_memory" in errors(Draft("busybox", gpus="0", gpu_memory="10g share"), HERE)


def test_a_host_job_needs_a_command_and_no_volumes() -> None:
    assert "command" in errors(Draft(), HERE)
    assert "volumes" in errors(Draft(command="x", volumes="/a:/b"), HERE)


def test_host_jobs_may_be_switched_off() -> None:
    off = Origin("alice", "/", {}, host_jobs=False)
    assert "image" in errors(Draft(command="true"), off)


def test_several_wrong_fields_are_told_together() -> None:
    assert errors(Draft("busybox", gpus="x", priority="y"), HERE).keys() >= {"gpus", "priority"}


@given(st.lists(st.text(max_size=60), min_size=10, max_size=10))
def test_whatever_is_typed_is_taken_or_refused(values: list[str]) -> None:
    draft = Draft(*values)
    found = errors(draft, HERE)
    try:
        submission(draft, HERE)
    except InputError:
        assert found
    else:
        assert not found
