"""Words of Slurm for jobs that wait, as reasons of ours with Slurm's word beside them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gputui.cluster.slurm.listings import is_held, reason_of
from gputui.domain.state import PendingReason
from tests.cases import cases

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


@cases(
    ("word", "code", "text"),
    [
        ("Resources", "RESOURCES", "waits for resources (Resources)"),
        ("None", "PRIORITY", "Slurm has not looked at it yet (None)"),
        ("JobHeldAdmin", "JOB_HELD_USER", "held by an administrator (JobHeldAdmin)"),
        ("QOSMaxGRESPerUser", "QUOTA_EXCEEDED", "over a limit of its QOS: GPUs or other devices (QOSMaxGRESPerUser)"),
        ("AssocGrpGRESMinutes", "QUOTA_EXCEEDED", "time on GPUs, CPUs and the like (AssocGrpGRESMinutes)"),
        ("AssocGrpCpuLimit", "QUOTA_EXCEEDED", "over a limit of its account: CPUs (AssocGrpCpuLimit)"),
        ("MaxMemPerLimit", "QUOTA_EXCEEDED", "over a limit of its account: memory (MaxMemPerLimit)"),
        ("QOSUsageThreshold", "QUOTA_EXCEEDED", "over a limit of its QOS: use so far (QOSUsageThreshold)"),
        ("GrpUnheardOf", "QUOTA_EXCEEDED", "over a limit of its account (GrpUnheardOf)"),
        ("QOSNotAllowed", "QUOTA_EXCEEDED", "its partition does not take its QOS (QOSNotAllowed)"),
        ("AccountNotAllowed", "QUOTA_EXCEEDED", "its partition does not take its account (AccountNotAllowed)"),
        ("ReservationIsFull", "RESERVATION", "a reservation stands in its way (ReservationIsFull)"),
        ("JobHeldNobodyKnows", "JOB_HELD_USER", "held (JobHeldNobodyKnows)"),
        ("NodeOnFire", "NODE_UNKNOWN", "nodes that it needs are not there (NodeOnFire)"),
        ("LinkDown", "NODE_UNKNOWN", "nodes that it needs are not there (LinkDown)"),
        ("Whatever", "RESOURCES", "waits (Whatever)"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu[1-2]", "NODE_UNKNOWN", "reserved: gpu[1-2] (ReqNodeNotAvail)"),
        ("ReqNodeNotAvail", "NODE_UNKNOWN", "down, drained or reserved (ReqNodeNotAvail)"),
    ],
)
def test_each_word_has_a_reason_and_stays_beside_it(word: str, code: str, text: str) -> None:
    found = reason_of(word, "", None, NOW)
    assert found.code is PendingReason[code]
    assert found.text.endswith(text)


def test_holds_and_dependencies() -> None:
    # dependencies and begin times are told
    assert reason_of("Dependency", "afterok:7", None, NOW).text == "waits for other jobs: afterok:7 (Dependency)"
    later = NOW + timedelta(hours=3)
    found = reason_of("BeginTime", "", later, NOW)
    assert (found.code, found.times) == (PendingReason.BEGIN_TIME, (later,))
    assert found.text.startswith("begins at ")
    assert reason_of("BeginTime", "", None, NOW).text == "waits for its begin time (BeginTime)"
    # holds are told apart
    assert [is_held("PENDING", word) for word in ("JobHeldUser", "launch_failed_requeued_held", "Resources", "?")] == [
        True,
        True,
        False,
        False,
    ]
