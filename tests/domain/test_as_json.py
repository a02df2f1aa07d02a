"""Output of `--json`: the keys that other programs rely on, and that no secret is among the values."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.as_json import gpu_json, job_detail_json, job_json
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Drain, GpuState, Health, HealthCode, Holder
from gputui.domain.job_spec import ContainerOptions, GpuRequest
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.domain.telemetry import AttemptTelemetry, Spread
from tests.factories import NOW, job, running, sample, snapshot, uuid, view


def words(text: str) -> set[str]:
    return set(text.split())


JOB_KEYS = words(
    "id name state reason tenant priority image command gpus_min gpus_max held submitted_at started_at ended_at "
    "expected_start_at time_limit exit_code labels attempts"
)
ATTEMPT_KEYS = words("number gpus container_id started_at ended_at exit_code cause log_path")
GPU_KEYS = words(
    "uuid index model state health job_id holders memory_total memory_used utilization temperature power power_limit "
    "age"
)
HOLDER_KEYS = {"kind", "name", "user", "pid", "container_id", "memory", "image", "job_id", "since"}
SECRET = "hunter2"


def test_jobs() -> None:
    # a waiting job
    waiting = job(7, gpus=(2, 4), age=60, time_limit=timedelta(hours=1), command=("a", "b"))
    reason = Reason(PendingReason.RESOURCES, "needs 2 GPUs, 1 is free")
    made = job_json(waiting, snapshot(reasons={7: reason}, expected_starts={7: NOW}))
    assert made.keys() >= JOB_KEYS
    assert made["reason"] == {"code": "Resources", "text": "needs 2 GPUs, 1 is free"}
    assert (made["state"], made["gpus_min"], made["gpus_max"], made["time_limit"]) == ("PENDING", 2, 4, 3600.0)
    assert (made["submitted_at"], made["expected_start_at"]) == ("2026-03-02T11:59:00Z", "2026-03-02T12:00:00Z")
    assert (made["command"], made["attempts"]) == (["a", "b"], [])
    assert all(made[key] is None for key in ("started_at", "ended_at", "exit_code", "cause"))
    # an ended job
    cause = Cause(CauseCode.OUT_OF_MEMORY, "killed by the kernel")
    ended = running(3, on=[uuid(0)]).with_attempt(ended_at=NOW, exit_code=137, cause=cause, log_path="logs/3/1.log")
    made = job_json(ended.evolve(state=JobState.OUT_OF_MEMORY, ended_at=NOW, exit_code=137, cause=cause))
    [attempt] = made["attempts"]
    assert attempt.keys() >= ATTEMPT_KEYS
    assert (attempt["gpus"], attempt["container_id"], attempt["log_path"]) == ([uuid(0)], "c3", "logs/3/1.log")
    assert (attempt["cause"], attempt["cause_code"]) == ("killed by the kernel", "OutOfMemory")
    assert (made["state"], made["exit_code"], made["reason"]) == ("OUT_OF_MEMORY", 137, None)
    # a request for all GPUs is not a number
    everything = replace(job().spec, gpus=GpuRequest(1, 1024, everything=True))
    assert job_json(job(spec=everything))["gpus_max"] is None


def test_no_secret_is_shown() -> None:
    options = ContainerOptions(env=(("TOKEN", SECRET), ("EMPTY", "")), labels=(("team", "vision"),))
    entry = AuditEntry(NOW, 1000, "alice", "submit", "job 1", "", "priority 50")
    made = job_detail_json(job(options=options), snapshot(), [entry])
    assert SECRET not in json.dumps(made)
    assert made["spec"]["env"] == {"TOKEN": "***", "EMPTY": "***"}
    assert made["labels"] == {"team": "vision"}
    assert made["audit"] == [
        {
            "at": "2026-03-02T12:00:00Z",
            "uid": 1000,
            "user": "alice",
            "verb": "submit",
            "target": "job 1",
            "before": "",
            "after": "priority 50",
        }
    ]


def test_gpus() -> None:
    # a GPU
    holder = Holder("container", "jupyter", "bob", 17, "c0ffee", None)
    health = Health(HealthCode.XID, "Xid 79")
    made = gpu_json(
        view(3, GpuState.FOREIGN, holders=(holder,), health=health, drain=Drain("fan", "alice", NOW), why="jupyter")
    )
    assert made.keys() >= GPU_KEYS
    assert made["holders"][0].keys() == HOLDER_KEYS
    assert (made["state"], made["health"]) == ("FOREIGN", {"code": "Xid", "text": "Xid 79"})
    assert (made["utilization"], made["memory_used"], made["age"]) == (0.0, 0, 0.0)
    assert made["drain"] == {"reason": "fan", "by": "alice", "at": "2026-03-02T12:00:00Z"}
    json.dumps(made)
    # unreadable values are null not zero
    blind = sample(utilization=None, memory_used=None, temperature=None, power=None)
    for seen in (view(sample=blind), view(sample=None, age=None, state=GpuState.UNKNOWN)):
        made = gpu_json(seen)
        assert all(made[key] is None for key in ("utilization", "memory_used", "temperature", "power"))
    assert made["age"] is None
    assert made["memory_total"] == seen.gpu.memory_total


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    documented = set(re.findall(r"`([a-z0-9_]+)`", text))
    detail = job_detail_json(running(on=[uuid(0)]), snapshot(), [])
    telemetry = (*AttemptTelemetry.__struct_fields__, *Spread.__struct_fields__)
    shown = {*detail, *detail["attempts"][0], *gpu_json(view()), *HOLDER_KEYS, *telemetry}
    assert shown <= documented
