"""Output of the probes of nodes, which may be anything."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from gputui.domain.gpu import ProbeCode, ProbeStatus
from gputui.gpus.node_probes import NodeOutput
from gputui.gpus.readings import MOST_GPUS, ProbeFault
from gputui.gpus.untrusted import MOST_GARBLED, MOST_OF_A_LINE, MOST_PROCESSES, MOST_WITHIN, WINDOW
from tests.cases import cases
from tests.factories import GIB, NOW
from tests.gpus.standin import uuid


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def facts(count: int = 2, **more: Any) -> bytes:
    gpus = [{"index": index, "uuid": uuid(index), "minor": index, **more} for index in range(count)]
    return line("facts", driver="570.1", gpus=gpus)


def sweep(count: int = 2, **more: Any) -> bytes:
    return line("sweep", samples=[{"uuid": uuid(index), "utilization": 0.5, **more} for index in range(count)])


def taken(*data: bytes, output: NodeOutput | None = None) -> NodeOutput:
    output = output or NodeOutput(NOW)
    for each in data:
        output.take(each, NOW, 0.0)
    return output


def failed(*data: bytes) -> ProbeStatus:
    """Return the status after a fault of such output."""
    output = NodeOutput(NOW)
    with pytest.raises(ProbeFault) as caught:
        taken(*data, output=output)
    output.fail(caught.value, NOW)
    return output.status


def fault_of(*data: bytes) -> str:
    status = failed(*data)
    assert status.code is ProbeCode.UNREACHABLE
    return status.text


def test_sweeps_failures_and_other_lines() -> None:
    # a sweep after the facts is a reading
    output = NodeOutput(NOW)
    assert output.reading.status.code is ProbeCode.STARTING
    assert not output.take(b"Welcome to gpu1\n" + facts(model="NVIDIA H200"), NOW, 0.0)
    data = sweep(memory_used=GIB)
    assert not output.take(data[:20], NOW, 0.0)
    assert output.take(data[20:], NOW + timedelta(seconds=1), 1.0)
    reading = output.reading
    assert reading.status.code is ProbeCode.OK
    assert [gpu.model for gpu in reading.gpus] == ["NVIDIA H200"] * 2
    assert reading.samples[uuid(1)].memory_used == GIB
    assert reading.samples[uuid(1)].sampled_at == NOW + timedelta(seconds=1)
    # a failure of the driver is told
    status = failed(line("failed", code="NoLibrary", text=""))
    assert re.match(r"no readings: .*libnvidia-ml\.so\.1 was not found", status.text)
    assert status.code is ProbeCode.NO_LIBRARY
    # what no probe of a node asks for is no fault of this machine
    assert fault_of(line("failed", code="Restart", text="")) == "no readings: it asks to be started again"
    # what a login shell writes is passed over but not for ever
    assert taken(b"motd\n" * (MOST_GARBLED - 1), b"x" * 1_000_000 + b"\r\n", facts(), sweep()).lines.has_begun
    assert fault_of(b"\x1b[31mhello\x07\n" * (MOST_GARBLED + 1)) == "no readings: it sends 'hello\u2407'"
    assert "it sends" in fault_of(facts(), sweep(), b"{}\n")
    # lines that are too long or too many end the probe
    part = b"x" * (MOST_OF_A_LINE // 2)
    assert fault_of(facts(), sweep(), part, part, part) == "no readings: it sends too long a line"
    assert taken(part, part, part, b"\n", facts(), sweep()).lines.has_begun
    padded = sweep()[:-2] + b" " * 500_000 + b"}\n"
    assert fault_of(facts(), *[padded] * (MOST_WITHIN // len(padded) + 1)) == "no readings: it sends too much"
    output = taken(facts())
    for number in range(2 * MOST_WITHIN // len(padded)):
        assert output.take(padded, NOW, number * WINDOW)


@cases("data", [b"[" * 100_000, b'{"kind":' * 1000, b"\xff\xfe", b"null", b'{"kind":"sweep","samples":3}'])
def test_lines_that_are_no_messages_do_no_harm(data: bytes) -> None:
    assert "it sends" in fault_of(facts(), sweep(), data + b"\n")


@cases("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_end_the_probe(value: str) -> None:
    data = sweep().replace(b"0.5", value.encode())
    assert "it sends" in fault_of(facts(), sweep(), data)


@cases(
    ("ahead", "told", "began"),
    [
        (0.0, "2026-03-02T11:00:00Z", NOW - timedelta(hours=1)),
        (3600.0, "2026-03-02T12:00:00Z", NOW - timedelta(hours=1)),
        (-3600.4, "2026-03-02T10:00:00Z", NOW - timedelta(hours=1)),
        (2.0, "2026-03-02T11:00:02Z", NOW - timedelta(minutes=59, seconds=58)),
        (-9e99, "2026-03-02T11:00:00Z", NOW - timedelta(hours=1)),
        (-1.7e9, "9999-12-31T00:00:00Z", None),
        (0.0, "2026-03-02T11:00:00", None),
    ],
)
def test_processes_begin_by_the_clock_of_this_machine(ahead: float, told: str, began: datetime | None) -> None:
    processes = [{"pid": 7, "started_at": told}]
    data = sweep(processes=processes).replace(
        b'"kind"', b'"lists": true, "clock": %f, "kind"' % (NOW.timestamp() + ahead)
    )
    [process] = taken(facts(), data).reading.samples[uuid(0)].processes or ()
    assert process.started_at == began


def test_what_a_probe_may_not_say() -> None:
    # figures that cannot be true are not read
    wrong: dict[str, Any] = {
        "utilization": 7,
        "memory_used": -5,
        "memory_total": 2**60,
        "power": -1,
        "temperature": 1e9,
    }
    slow = {"power_limit": 1e300, "fan": -1, "ecc_uncorrected": -3}
    output = taken(facts(memory_total=2**62, minor=-1, power_limit=-4), sweep(**wrong, sm_activity=5, slow=slow))
    sample, gpu = output.reading.samples[uuid(0)], output.reading.gpus[0]
    assert (gpu.memory_total, gpu.minor, gpu.power_limit) == (None, None, None)
    figures = (sample.utilization, sample.memory_used, sample.memory_total, sample.power, sample.temperature)
    assert figures == (None, None, None, None, None)
    assert (sample.sm_activity, sample.power_limit, sample.fan, sample.ecc_uncorrected) == (None, None, None, None)
    # texts have no control characters and an end
    evil = "\x1b]0;owned\x07" + "x" * 300
    processes = [{"pid": 10**9, "user": evil, "command": evil, "container_id": evil, "memory": -1}]
    output = taken(facts(model=evil, pci_bus_id=evil, drivers_uuid=evil), sweep(processes=processes * 600))
    gpu, sample = output.reading.gpus[0], output.reading.samples[uuid(0)]
    assert sample.processes is not None
    assert len(sample.processes) == MOST_PROCESSES
    process = sample.processes[0]
    texts = [gpu.model, gpu.pci_bus_id, process.user, process.command]
    assert all(text and text.isprintable() and len(text) <= 200 for text in texts)
    assert (process.pid, process.container_id, process.memory, gpu.drivers_uuid) == (0, None, None, None)
    # GPUs that no driver lists end the probe
    assert "lists a GPU" in fault_of(line("facts", gpus=[{"index": 0, "uuid": "GPU-\x1b[2J"}]))
    assert "lists a GPU" in fault_of(line("facts", gpus=[{"index": -3, "uuid": uuid(0)}]))
    assert "lists a GPU twice" in fault_of(line("facts", gpus=[{"index": index, "uuid": uuid(0)} for index in (0, 1)]))
    assert f"lists {MOST_GPUS + 1} GPUs" in fault_of(facts(MOST_GPUS + 1))

    # GPUs that change all the time are not kept
    def other(number: int) -> bytes:
        return line("facts", gpus=[{"index": index, "uuid": uuid(number * 64 + index)} for index in range(64)])

    output = taken(other(1), other(2))
    with pytest.raises(ProbeFault, match="change all the time"):
        output.take(other(3), NOW, 0.0)
    assert not output.reading.gpus
    # readings and faults of unknown GPUs are left out
    xids = [[uuid(9), 79], [uuid(0), 79], [uuid(1), -4], [None, 10**12]]
    data = line("sweep", samples=[{"uuid": uuid(9)}, {"uuid": uuid(0)}], xids=xids)
    output = taken(facts(), data)
    assert list(output.reading.samples) == [uuid(0)]
    assert output.reading.samples[uuid(0)].xid == 79
    assert not output.reading.notes
