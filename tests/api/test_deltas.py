"""Differences between snapshots: what comes out at the other end, and what it costs."""

from __future__ import annotations

import zlib
from datetime import timedelta

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gputui.api.deltas import FieldTracker, SnapshotDecoder, SnapshotUpdate, Tracker
from gputui.api.http import own_json
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import PendingReason, Reason
from tests.factories import NOW, job, running, uuid, view
from tests.tui import sample


class Encoder:
    """Encodes each snapshot as its difference from the one before."""

    def __init__(self) -> None:
        self._tracker, self._fields = Tracker(), FieldTracker()
        self._sent = -1

    def update(self, snapshot: Snapshot) -> SnapshotUpdate:
        tracker = self._tracker
        tracker.take(snapshot)
        self._fields.take(snapshot, tracker.number, snapshot, {})
        jobs, rest = tracker.since(self._sent, lambda _, reason: reason)
        fields, self._sent = self._fields.since(self._sent), tracker.number
        return replace(rest, jobs=tuple(Raw(own_json(each)) for each in jobs), fields=fields)


def sent(encoder: Encoder, snapshot: Snapshot) -> bytes:
    """Return the message about the snapshot."""
    return own_json(encoder.update(snapshot))


def read(data: bytes) -> SnapshotUpdate:
    return msgspec.json.decode(data, type=SnapshotUpdate)


def as_sent(snapshot: Snapshot) -> Snapshot:
    """Return the part of a snapshot that is sent, without who schedules it where."""
    return replace(snapshot, leads_here=False, taken_at=NOW)


def test_a_snapshot_comes_out_as_it_went_in_also_in_parts() -> None:
    before = as_sent(sample.rich_snapshot())
    there = SnapshotDecoder().take(read(sent(Encoder(), before)), NOW)
    assert there == before
    before = as_sent(sample.rich_snapshot())
    whole, decoder = Encoder().update(before), SnapshotDecoder()
    parts = [SnapshotUpdate(jobs=(each,), is_partial=True) for each in whole.jobs]
    assert all(decoder.take(read(own_json(part)), NOW) is EMPTY for part in parts)
    assert decoder.take(read(own_json(replace(whole, jobs=()))), NOW) == before
    encoder, decoder = Encoder(), SnapshotDecoder()
    why = Reason(PendingReason.RESOURCES, "needs 1 GPU")
    first = decoder.take(read(sent(encoder, Snapshot(jobs=(job(1),), reasons={1: why}, expected_starts={1: NOW}))), NOW)
    decoder.take(read(sent(encoder, Snapshot())), NOW)
    assert (first.reasons, first.expected_starts, len(first.jobs)) == ({1: why}, {1: NOW}, 1)


def test_changes_are_followed() -> None:
    encoder, decoder = Encoder(), SnapshotDecoder()
    why = Reason(PendingReason.RESOURCES, "needs 1 GPU")
    waiting = [job(number) for number in (1, 2, 3, 4)]
    snapshots = [
        Snapshot(jobs=tuple(waiting), order=(1, 2, 3, 4), reasons=dict.fromkeys((1, 2, 3, 4), why), taken_at=NOW),
        Snapshot(jobs=tuple(waiting), order=(1, 3, 2, 4), reasons=dict.fromkeys((1, 2, 3, 4), why), taken_at=NOW),
        Snapshot(
            jobs=(running(1, on=(uuid(0),)), *waiting[2:], job(9)),
            order=(3, 4, 9),
            reasons={3: why, 4: Reason(PendingReason.PRIORITY, "behind job 3")},
            expected_starts={3: NOW},
            progress={1: "pulling"},
            notices=(Notice("warning", "the disk is nearly full"),),
            taken_at=NOW,
        ),
        Snapshot(taken_at=NOW),
    ]
    for snapshot in snapshots:
        assert decoder.take(read(sent(encoder, snapshot)), NOW) == snapshot


def test_starts_that_barely_move_are_not_sent_again() -> None:
    encoder = Encoder()
    later = NOW + timedelta(hours=1)
    sent(encoder, Snapshot(taken_at=NOW, expected_starts={1: later, 2: NOW}))
    moved = read(sent(encoder, Snapshot(taken_at=NOW, expected_starts={1: later + timedelta(seconds=30), 2: later})))
    assert moved.starts == ((2, later),)


def test_a_big_queue_costs_little_while_one_job_starts_at_a_time() -> None:
    count = 5000
    jobs = [
        job(number, gpus=1, name=f"train-{number}", time_limit=timedelta(hours=1)) for number in range(1, count + 1)
    ]
    gpus = [view(index) for index in range(8)]
    why = Reason(PendingReason.PRIORITY, "other jobs go first")
    encoder, squeezer = Encoder(), zlib.compressobj()
    costs = []
    for step in range(20):
        jobs[step] = running(step + 1, on=(uuid(step % 8),))
        waiting = tuple(range(step + 2, count + 1))
        snapshot = Snapshot(
            taken_at=NOW + timedelta(seconds=step),
            nodes=(replace(sample.rich_snapshot().nodes[0], gpus=tuple(gpus)),),
            jobs=tuple(jobs),
            order=waiting,
            reasons=dict.fromkeys(waiting, why),
            expected_starts={job_id: NOW + timedelta(minutes=job_id) for job_id in waiting},
        )
        line = sent(encoder, snapshot)
        costs.append((len(line), len(squeezer.compress(line) + squeezer.flush(zlib.Z_SYNC_FLUSH))))
    assert costs[0][1] < 500_000  # once, as ssh compresses it
    assert max(plain for plain, _ in costs[1:]) < 50_000
    assert max(squeezed for _, squeezed in costs[1:]) < 5_000


def test_what_a_newer_gputui_sends_is_left_out() -> None:
    decoder = SnapshotDecoder()
    strange = b'{"id": 7, "spec": {}, "submitted_at": "2026-03-02T12:00:00Z", "state": "HIBERNATING"}'
    found = decoder.take(SnapshotUpdate(jobs=(Raw(strange), Raw(msgspec.json.encode(job(8))))), NOW)
    assert [each.id for each in found.jobs] == [8]
    [lost] = found.unreadable
    assert (lost.kind, lost.key) == ("job", "7")
    assert decoder.take(SnapshotUpdate(gone=(7,)), NOW).unreadable == ()
    decoder = SnapshotDecoder()
    found = decoder.take(
        SnapshotUpdate({"weather": Raw(b'"sunny"'), "fragmentation": Raw(b"2"), "nodes": Raw(b"3")}), NOW
    )
    assert (found.fragmentation, found.nodes, decoder.unread) == (2, (), {"nodes"})
