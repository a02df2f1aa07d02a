"""Drafts of a form: the requested job, errors, and masked values."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.job_spec import GpuRequest, LimitWarning
from gputui.request.draft import MASK, NAMES, asked, draft_without_secrets, env_names, faults, masked, revealed
from gputui.request.submitter import Submitter
from tests.cases import cases
from tests.factories import NOW

BY = Submitter("alice", NOW, Path("/home/alice"), {"PATH": "/bin", "FROM_HERE": "yes", "SECRET": "x"})
GOOD = {"image": "busybox", "command": "true"}


def test_a_container_job() -> None:
    draft = {
        "image": "nvcr.io/nvidia/pytorch:24.10", "command": "python train.py --name 'two words'", "gpus": "2-4",
        "gpu_memory": "10g", "share": "yes", "priority": "70", "time_limit": "1h30m", "signal": "TERM@60",
        "retries": "2", "env": "A=1 B='x y' FROM_HERE", "volume": "/data:/data:ro", "after": "3,4", "begin": "+1h",
        "array": "0-3%2", "hold": "yes",
    }  # fmt: skip
    found = asked(draft, BY)
    spec = found.spec
    assert (found.held, found.array, found.array_limit) == (True, (0, 1, 2, 3), 2)
    assert spec.command == ("python", "train.py", "--name", "two words")
    assert (spec.name, spec.tenant, spec.priority, spec.retries) == ("pytorch", "alice", 70, 2)
    assert spec.gpus == GpuRequest(2, 4, memory=10 * 1024**3, share=True)
    assert (spec.time_limit, spec.warning) == (timedelta(minutes=90), LimitWarning(15, timedelta(seconds=60)))
    assert spec.options.env == (("A", "1"), ("B", "x y"), ("FROM_HERE", "yes"))
    assert spec.options.volumes == ("/data:/data:ro",)
    assert (spec.after, spec.begin_at) == ((3, 4), NOW + timedelta(hours=1))


def test_a_host_job_inherits_path_and_directory_but_no_secrets() -> None:
    spec = asked({"command": "/usr/bin/python3 x.py", "env": "PATH=/opt"}, BY).spec
    assert spec.is_host
    assert spec.name == "python3"
    assert spec.options.env == (("PATH", "/opt"),)
    assert spec.options.workdir == "/home/alice"


@cases(
    ("name", "text"),
    [
        ("gpus", "many"),
        ("gpus", "4-2"),
        ("gpus", "-1"),
        ("gpus", "device=0,0"),
        ("gpu_memory", "much"),
        ("gpu_memory", "10g"),
        ("gpu_model", "h100"),
        ("share", "perhaps"),
        ("priority", "101"),
        ("priority", "high"),
        ("time_limit", "soon"),
        ("time_limit", "0"),
        ("signal", "TERM"),
        ("retries", "x"),
        ("retry_on", "OOM"),
        ("after", "x"),
        ("begin", "later"),
        ("begin", "+soon"),
        ("array", "5-1"),
        ("env", "A='open"),
        ("env", f"A={MASK}"),
        ("command", "echo 'open"),
        ("command", "a\0b"),
        ("volume", "relative"),
        ("mount", "type=bind"),
        ("workdir", "relative"),
        ("image", "two words"),
        ("image", "--privileged"),
        ("name", "a\x1bb"),
        ("name", "n" * 300),
    ],
)
def test_errors_are_reported_by_name(name: str, text: str) -> None:
    draft = {**GOOD, name: text}
    assert name in faults(draft, BY)
    with pytest.raises(InputError):
        asked(draft, BY)


def test_faults_are_reported_together() -> None:
    assert faults({**GOOD, "gpus": "x", "priority": "y", "begin": "z"}, BY).keys() >= {"gpus", "priority", "begin"}
    assert faults({"gpus": "1"}, BY).keys() == {"image"}
    assert faults({"command": "x", "volume": "/a:/b"}, BY).keys() == {"volume"}


def test_masked_values_of_the_environment_are_restored() -> None:
    draft = {**GOOD, "env": "TOKEN='a b' SEED=1 FROM_HERE"}
    shown = masked(draft)
    assert "a b" not in shown["env"]
    assert "SEED=1" not in shown["env"]
    hidden = {"TOKEN": "a b", "SEED": "1"}
    assert asked(revealed(shown, hidden), BY) == asked(draft, BY)
    changed = {**shown, "env": shown["env"].replace(f"SEED={MASK}", "SEED=2")}
    assert dict(asked(revealed(changed, hidden), BY).spec.options.env)["SEED"] == "2"


@cases("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PASSWORD", "WANDB_API_KEY", "MY_KEY"])
def test_suspected_secrets_are_written_into_no_file(name: str) -> None:
    kept = draft_without_secrets({**GOOD, "env": f"{name}=hush EPOCHS=3"})
    assert kept["env"] == f"{name} EPOCHS=3"
    assert env_names(kept) == (name, "EPOCHS")


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=60)))
def test_any_draft_is_accepted_or_refused(draft: dict[str, str]) -> None:
    found = faults(draft, BY)
    try:
        asked(draft, BY)
    except InputError:
        assert found
    else:
        assert not found
