"""What of a waiting job is asked for anew, from texts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gputui.domain.errors import InputError
from gputui.domain.job import ContainerOptions, GpuRequest, Job
from gputui.request.edits import EDITABLE, HINTS, read, shown
from tests.factories import GIB, NOW, job

JOB = job(
    7,
    gpus=(2, 4),
    time_limit=timedelta(hours=2),
    command=("python", "train.py", "--name", "two words"),
    options=ContainerOptions(env=(("TOKEN", "hunter2"), ("A", "1"))),
).evolve(priority=70)


def changed(wanted: Job = JOB, **texts: str) -> Job:
    before = shown(wanted)
    return wanted.evolve(spec=read(wanted, before, {**before, **texts}, NOW).apply(wanted.spec))


def test_texts_left_as_they_are_change_nothing() -> None:
    strange = JOB.evolve(spec=JOB.spec)
    assert not read(strange, shown(strange), shown(strange), NOW)
    assert set(shown(JOB)) == set(EDITABLE)
    assert set(HINTS) <= set(EDITABLE)


def test_each_text_changes_its_own_field_and_no_other() -> None:
    spec = changed(gpus="1", gpu_memory="40g", time_limit="30m", after="3,4", retries="2").spec
    assert spec.gpus == GpuRequest(1, 1, memory=40 * GIB)
    assert (spec.time_limit, spec.after, spec.retries) == (timedelta(minutes=30), (3, 4), 2)
    assert (spec.command, spec.options, spec.name) == (JOB.spec.command, JOB.spec.options, JOB.spec.name)


def test_a_blank_takes_away_what_may_be_missing() -> None:
    assert changed(time_limit="").spec.time_limit is None
    with pytest.raises(InputError) as fault:
        changed(name="")
    assert fault.value.where == "name"


def test_the_priority_is_what_it_is_now() -> None:
    assert shown(JOB)["priority"] == "70"
    edit = read(JOB, shown(JOB), {**shown(JOB), "priority": "50"}, NOW)
    assert edit.spec == {"priority": 50}


def test_variables_are_set_and_taken_away_and_never_shown() -> None:
    assert "hunter2" not in str(shown(JOB))
    assert changed(env="B='x y' -A").spec.options.env == (("TOKEN", "hunter2"), ("B", "x y"))
    with pytest.raises(InputError, match="has no value"):
        changed(env="B")


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        ({"gpus": "many"}, "gpus"),
        ({"gpus": "0", "gpu_memory": "40g"}, "gpus"),
        ({"priority": "101"}, "priority"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"command": "'open"}, "command"),
        ({"begin": "yesterday-ish"}, "begin"),
        ({"after": "x"}, "after"),
        ({"image": ""}, "image"),
    ],
)
def test_what_is_wrong_is_told_with_its_name(texts: dict[str, str], where: str) -> None:
    with pytest.raises(InputError) as fault:
        read(JOB, shown(JOB), {**shown(JOB), **texts}, NOW)
    assert fault.value.where == where


def test_a_host_job_has_no_image_and_wants_a_command() -> None:
    host = job(8, image=None, command=("true",))
    assert "image" not in shown(host)
    with pytest.raises(InputError, match="needs a command"):
        changed(host, command="")
