"""Jobs are decoded from documents as they were encoded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.errors import Cause, CauseCode, InputError, StoreFormatError
from gputui.domain.gpu import Drain
from gputui.domain.job import ArrayRef, Attempt, Job, Stopping
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import runs_of
from gputui.domain.settings import TenantSettings, Window
from gputui.domain.snapshot import Controls, StandingRule
from gputui.store.codec import (
    JobCache,
    decode_audit,
    decode_controls,
    decode_job,
    decode_recurring,
    encode,
    encode_job,
)
from gputui.store.queue_files import JournalEntry, encode_line
from tests.cases import cases
from tests.factories import NOW, job, recurring
from tests.lane import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
durations = st.timedeltas(timedelta(0), timedelta(days=3650))
sizes = st.integers(0, 2**60)


st.register_type_strategy(str, texts)
st.register_type_strategy(int, sizes)
st.register_type_strategy(datetime, moments)
st.register_type_strategy(timedelta, durations)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=examples(60), deadline=None)
@given(st.from_type(Job).map(lambda job: job.evolve(runs=())))
def test_any_job_is_decoded_as_encoded(original: Job) -> None:
    document = encode_job(original)
    read = msgspec.json.decode(msgspec.json.encode(document))
    assert decode_job(original.id, read) == original
    assert repr(read) == repr(document)  # of the same types all through: a writer keeps the document it has written


@given(st.lists(st.integers(0, 99), min_size=2, max_size=20, unique=True))
def test_an_entry_is_decoded_with_its_elements(indices: list[int]) -> None:
    entry = job(7, array=ArrayRef(7, indices[0], 3)).with_runs(runs_of(7, indices))
    text = msgspec.json.encode(encode_job(entry))
    assert decode_job(7, msgspec.json.decode(text)) == entry


@cases(
    "runs",
    [
        [[7, 0, 0, 1]],
        [[7, 0, 5, 0]],
        [[8, 0, 5, 1]],
        [[7, 0, 5, 1], [9, 5, 2, 1]],
        [[7, 0, 5, 1], [3, 5, 2, 1]],
        [[7, 0]],
        [7],
    ],
)
def test_inconsistent_runs_are_refused(runs: list[object]) -> None:
    document = encode_job(job(7, array=ArrayRef(7, 0))) | {"runs": runs}
    with pytest.raises(StoreFormatError, match="cannot be read"):
        decode_job(7, document)
    with pytest.raises(StoreFormatError, match="cannot be read"):
        JobCache().decode("7", document)


@settings(max_examples=examples(30), deadline=None)
@given(st.from_type(AuditEntry))
def test_any_audit_entry_is_decoded_as_encoded(entry: AuditEntry) -> None:
    document = encode(entry)
    read = msgspec.json.decode(msgspec.json.encode(document))
    assert decode_audit(read) == entry
    assert repr(read) == repr(document)


@settings(max_examples=examples(30), deadline=None)
@given(st.from_type(RecurringJob))
def test_any_recurring_job_is_decoded_as_encoded(entry: RecurringJob) -> None:
    document = encode_job(entry)
    read = msgspec.json.decode(msgspec.json.encode(document))
    assert decode_recurring(entry.id, read) == entry
    assert repr(read) == repr(document)


def test_keys_of_newer_versions_are_kept_and_defaults_are_not() -> None:
    document = encode_job(recurring()) | {"colour": "red"}
    paused = replace(decode_recurring(0, document), paused=True)
    assert encode_job(paused, document) == encode_job(paused) | {"colour": "red"}
    document = encode_job(job()) | {"colour": "red"}
    changed = decode_job(1, document).evolve(priority=9)
    assert encode_job(changed, document) == encode_job(changed) | {"colour": "red"}
    document = encode_job(job(held=True))
    assert "held" not in encode_job(job(), document)
    document = encode_job(Job(5, JobSpec(), NOW))
    assert document == {"spec": {}, "submitted_at": "2026-03-02T12:00:00Z", "state": "PENDING"}
    with pytest.raises(StoreFormatError, match=r"job 7: .*\$\.spec\.retries"):
        decode_job(7, {"spec": {"retries": "two"}, "submitted_at": "2026-03-02T12:00:00Z"})


def test_controls_are_decoded_as_encoded() -> None:
    controls = Controls(True, "heat", "root", {"GPU-1": Drain("hot", "root", NOW)})
    assert decode_controls(msgspec.json.decode(msgspec.json.encode(encode(controls)))) == controls
    window = Window("r1", NOW, NOW + timedelta(hours=1), gpus=("GPU-1",), tenant="bob", priority=0)
    controls = Controls(
        reservations=(window,),
        claimed={window.key: NOW},
        standing=StandingRule(None),
        tenants=(TenantSettings("bob", 0.5, 0, None, 3),),
    )
    assert decode_controls(msgspec.json.decode(msgspec.json.encode(encode(controls)))) == controls


def test_omitted_defaults_are_as_listed() -> None:
    """A default that changes would change what stored jobs say: raise the schema and write a migration."""
    spec = JobSpec(
        image=None, command=(), name="", tenant="", priority=50, nice=0, time_limit=None, retries=0,
        gpus=GpuRequest(minimum=0, maximum=0, devices=(), everything=False, memory=None, model=None),
        backoff=timedelta(seconds=5), after=(), after_any=(), begin_at=None, preemptible=False,
        options=ContainerOptions(env=(), volumes=(), mounts=(), ulimits=(), labels=(), ipc=None, runtime=None),
    )  # fmt: skip
    attempt = Attempt(1, gpus=(), exit_code=None, cause=None, log_path=None, charged=True, notes=())
    expected = Job(
        3, spec, NOW, priority=50, held=False, hold_reason=None, cancel_requested=False, requeue_requested=False,
        attempts=(attempt,), array=ArrayRef(3, 0, limit=None), avoid_gpus=(), submitted_by="",
        stopping=Stopping(Cause(CauseCode.CANCELLED, ""), NOW, killed_at=None),
    )  # fmt: skip
    document = {
        "spec": {},
        "submitted_at": "2026-03-02T12:00:00Z",
        "attempts": [{"number": 1}],
        "array": {"id": 3, "index": 0},
        "stopping": {"cause": {"code": "Cancelled", "text": ""}, "at": "2026-03-02T12:00:00Z"},
    }
    assert decode_job(3, document) == expected


@cases("changes", [{"name": "\udcff"}, {"options": ContainerOptions(cpus=float("nan"))}])
def test_values_without_a_json_form_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot be stored"):
        encode_line(JournalEntry({"jobs": {"1": encode_job(job(**changes))}}))


def test_elements_of_an_array_share_their_spec() -> None:
    """Documents share specs too: else 100,000 elements would each hold the same environment."""
    jobs = [job(n, gpus=1, array=ArrayRef(1, n)) for n in range(1, 4)]
    other = job(4, gpus=2, array=ArrayRef(1, 4))
    raw = json.loads(json.dumps({str(each.id): encode_job(each) for each in (*jobs, other, job(5))}))
    shared = JobCache()
    found = [shared.decode(key, document) for key, document in raw.items()]
    assert found == [*jobs, other, job(5)]
    assert found[0].spec is found[1].spec is found[2].spec
    assert raw["1"]["spec"] is raw["2"]["spec"]
    assert raw["4"]["spec"] is not raw["1"]["spec"]
    assert [encode_job(each) for each in found] == list(raw.values())
    with pytest.raises(StoreFormatError):
        shared.decode("6", ["no document"])
