"""Changes to a waiting job, as a draft."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from gputui.domain.errors import InputError
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.request import draft as drafts
from gputui.request import edits
from gputui.request.job_options import BY_NAME
from gputui.request.submitter import Submitter
from tests.cases import cases
from tests.factories import GIB, NOW, job
from tests.request.docker_values import GOOD
from tests.request.test_draft_from_spec import RICH

BY = Submitter("mallory", NOW, Path("/home/mallory"), {"PATH": "/evil", "HERE": "yes"})
JOB = job(7).evolve(spec=RICH, priority=80)
HOST = job(
    8,
    image=None,
    command=("true",),
    options=ContainerOptions(env=(("PATH", "/bin"), ("A", "1")), workdir="/home/alice"),
)
ANEW = {
    "image": "busybox:2", "command": "python x.py", "gpus": "8", "gpu_memory": "20g", "gpu_model": "a100",
    "share": "", "priority": "10", "retries": "7", "time_limit": "3h", "idle_timeout": "30m", "signal": "TERM@1m",
    "name": "other", "comment": "another", "env": "B=2", "volume": "/x:/y", "workdir": "/v", "after": "5",
    "begin": "2026-03-03T12:00:00+00:00", "hold": "yes", "mount": "type=bind,source=/p,target=/q",
    "entrypoint": "/bin/bash", "user": "9:9", "after_any": "6", "preemptible": "", "nice": "30", "backoff": "9s",
    "retry_on": "2", "gpu_memory_step": "2g", "cpus": "3", "cpu_shares": "100", "memory": "8g", "shm_size": "2g",
    "ipc": "private", "network": "none", "ulimit": "nofile=5:6", "label": "k=other", "runtime": "runc", **GOOD,
    "publish": "127.0.0.1:8080:80",
}  # fmt: skip


def draft(wanted: Job = JOB) -> dict[str, str]:
    return edits.draft_of(wanted, NOW)


def changed(wanted: Job = JOB, **texts: str) -> Job:
    return edits.read(wanted, draft(wanted), {**draft(wanted), **texts}, BY).on(wanted, NOW)


def flat(spec: JobSpec) -> dict[str, object]:
    """Return every field of a spec and of its parts by itself."""
    parts = {"gpus", "options"}
    found: dict[str, object] = {name: value for name, value in asdict(spec).items() if name not in parts}
    for part in (spec.gpus, spec.options):
        found |= {f"{type(part).__name__}.{name}": value for name, value in asdict(part).items()}
    return found


def test_an_unchanged_draft_changes_nothing_and_all_fields_can_be_changed() -> None:
    for each in (JOB, HOST, job(9)):
        assert not edits.read(each, draft(each), draft(each), BY)
        assert edits.faults(each, draft(each), draft(each), BY) == {}
    assert {*ANEW, *edits.locked(JOB), "env_file", "label_file"} == {"image", "command", *BY_NAME}


@cases("name", sorted(ANEW))
def test_each_option_changes_only_its_own_field(name: str) -> None:
    edit = edits.read(JOB, draft(), {**draft(), name: ANEW[name]}, BY)
    after = edit.on(JOB, NOW)
    assert edit
    if name == "hold":
        assert after == JOB.evolve(held=True, held_at=NOW)
        return
    was, then = flat(JOB.spec), flat(after.spec)
    different = {field for field, value in was.items() if then[field] != value}
    assert different == ({"GpuRequest.minimum", "GpuRequest.maximum"} if name == "gpus" else different)
    assert len(different) == (2 if name == "gpus" else 1)
    assert drafts.text_of(draft(after), name) == ANEW[name]


def test_a_host_process_keeps_the_environment_of_its_submitter() -> None:
    assert changed(HOST, time_limit="1h").spec.options == HOST.spec.options
    assert changed(HOST, env="A=2 HERE").spec.options == replace(
        HOST.spec.options, env=(("PATH", "/bin"), ("A", "2"), ("HERE", "yes"))
    )


def test_variables_are_read_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("NEW=1\n")
    assert ("NEW", "1") in changed(env_file=str(file)).spec.options.env


@cases("name", ["time_limit", "after", "begin", "env", "gpu_model", "preemptible", "volume"])
def test_a_blank_removes_optional_values(name: str) -> None:
    texts = {name: "", "signal": ""} if name == "time_limit" else {name: ""}
    after = changed(JOB, **texts)
    assert drafts.text_of(draft(after), name) == ""


def test_a_past_begin_stays_and_a_new_one_replaces_a_retry_pause() -> None:
    over = job(7).evolve(spec=replace(RICH, begin_at=NOW - timedelta(hours=1)), not_before=NOW + timedelta(hours=9))
    assert changed(over, name="x").spec.begin_at == over.spec.begin_at
    assert changed(over, name="x").not_before == over.not_before
    later = changed(over, begin="+2h")
    assert (later.spec.begin_at, later.not_before) == (NOW + timedelta(hours=2), None)


def test_the_draft_shows_the_current_priority_and_gpus_are_replaced_as_a_whole() -> None:
    assert draft()["priority"] == "80"
    assert changed(priority="").priority == 50
    assert changed(name="x").priority == 80
    assert changed(gpus="all", share="").spec.gpus == GpuRequest(1, 1024, (), True, 10 * GIB + 1, "h100")


@cases(
    ("wanted", "name", "text", "why"),
    [
        (JOB, "tenant", "eve", "cannot be changed; a clone may"),
        (JOB, "array", "0-9", "a job cannot become an array"),
        (JOB.evolve(array=ArrayRef(5, 2)), "array", "0-9", "element 2 of array 5"),
        (HOST, "image", "busybox", "a host job cannot get an image"),
        (JOB, "image", "", "a container job cannot become a host job"),
    ],
)
def test_fixed_fields_are_refused_with_the_reason(wanted: Job, name: str, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as fault:
        changed(wanted, **{name: text})
    assert fault.value.where == name
    after = {**draft(wanted), name: text}
    assert edits.faults(wanted, draft(wanted), after, BY)[name].what == fault.value.what


@cases(
    ("texts", "where"),
    [
        ({"gpus": "many"}, "gpus"),
        ({"gpus": "0"}, "gpu_memory"),
        ({"priority": "101"}, "priority"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"command": "'open"}, "command"),
        ({"begin": "yesterday-ish"}, "begin"),
        ({"after": "x"}, "after"),
        ({"retries": ""}, "retry_on"),
        ({"volume": "no-colon:"}, "volume"),
    ],
)
def test_errors_are_reported_with_their_names(texts: dict[str, str], where: str) -> None:
    with pytest.raises(InputError) as fault:
        changed(JOB, **texts)
    assert fault.value.where == where
    assert where in edits.faults(JOB, draft(), {**draft(), **texts}, BY)


def test_masked_values_keep_their_secrets() -> None:
    before = drafts.masked(draft())
    after = {**before, "env": before["env"] + " NEW=1"}
    hidden = dict(JOB.spec.options.env)
    edit = edits.read(JOB, drafts.revealed(before, hidden), drafts.revealed(after, hidden), BY)
    assert edit.on(JOB, NOW).spec.options.env == (*RICH.options.env, ("NEW", "1"))


def test_the_limit_of_a_job_whose_image_nobody_here_knows_is_changed() -> None:
    theirs = job(9, image=None, command=(), name="not | a name of ours", time_limit=timedelta(hours=1))
    before = edits.draft_of(theirs, NOW)
    after = {**before, "time_limit": "+30m"}
    assert edits.faults(theirs, before, after, BY) == {}
    assert edits.read(theirs, before, after, BY).spec == {"time_limit": timedelta(minutes=90)}
    wrong = {**before, "time_limit": "soon"}
    assert list(edits.faults(theirs, before, wrong, BY)) == ["time_limit"]
