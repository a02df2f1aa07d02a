"""Slurm's recorded outputs as snapshots: 22.05 as a cluster printed them, later ones by their documentation."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.journal import Submissions
from gputui.cluster.slurm import commands, listings, site
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.listings import JobRow, ended_job, ended_jobs, parse_accounts, reason_of
from gputui.cluster.slurm.picture import Pictures, job_of
from gputui.cluster.slurm.poll import Polled, parted
from gputui.domain.cluster import array_of, element_id, is_element
from gputui.domain.errors import CauseCode, ClusterRefusedError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason
from tests.cases import cases

RECORDED = Path(__file__).parent / "recorded"
AT = 1795479172
MARK = "MARK"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}-22.05.txt").read_bytes().decode(errors="replace")


def polled() -> Polled:
    rows = listings.parse_jobs(recorded("squeue"), MARK)
    answers = parted(recorded("scontrol"), MARK)
    found = [listings.parse_detail(text, row) for row, text in zip(rows, answers[1:], strict=False)]
    told = {detail.run_key: detail for detail in found if detail is not None}
    known = site.parse("root\n0\n/root\n" + recorded("config"))
    return Polled(AT, known, AT, tuple(rows), tuple(listings.parse_nodes(answers[0])), told)


def snapshot_of(found: Polled, tmp_path: Path) -> Snapshot:
    return Pictures(Submissions(tmp_path)).snapshot(found)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return snapshot_of(polled(), tmp_path)


def job(snapshot: Snapshot, job_id: int) -> Job:
    found = snapshot.entry(job_id)
    assert found is not None
    return found


def test_records_of_jobs(snapshot: Snapshot) -> None:
    # every record is read
    shown = ["25", "30", "31", "32", "33", "34", "36", "37", "38", "35_[0,2,4,6,8,10%2]"]
    assert [each.shown_id for each in snapshot.jobs if not is_element(each.id)] == [*shown[1:-1]]
    assert [each.shown_id for each in snapshot.jobs if is_element(each.id)] == ["23_0", "23_5", shown[-1]]
    # a hostile name and comment change no other value: name and comment of job 33 hold separators, line ends, bytes
    # that are no UTF-8, and false records.
    hostile = job(snapshot, 33)
    assert hostile.state is JobState.RUNNING
    assert hostile.name == "evil|na me JobId=99 JobName=x UserId=root(0) JobState=FAILED ExitCode=9:9"
    assert hostile.spec.comment.startswith("hm | � ExitCode=7:7")
    assert hostile.gpus == ("gpu1:0", "gpu1:1")
    assert snapshot.entry(99) is None
    assert polled().details["33@1795479169"].output == "/home/root/33.out"
    # times limits and users
    running = job(snapshot, 33)
    assert running.submitted_at == datetime(2026, 11, 24, 0, 12, 48, tzinfo=UTC)
    assert running.started_at == datetime(2026, 11, 24, 0, 12, 49, tzinfo=UTC)
    assert (running.ended_at, running.spec.time_limit) == (None, timedelta(hours=1))
    assert (running.submitted_by, running.spec.tenant) == ("root", "root")
    assert job(snapshot, 38).submitted_by == "alice"
    # ends have exit code signal and cause
    failed, killed, refused = (job(snapshot, number) for number in (31, 32, 30))
    assert (failed.state, failed.exit_code, failed.end_words) == (JobState.FAILED, 3, "exit code 3")
    assert (killed.exit_code, killed.end_words) == (137, "ended by SIGKILL")
    assert (refused.exit_code, refused.end_words) == (None, "Slurm could not start it (BadConstraints)")
    assert refused.attempts == ()
    # GPUs that jobs ask for
    asked = {number: job(snapshot, number).spec.gpus.minimum for number in (31, 33, 34, 36, 37)}
    assert asked == {31: 1, 33: 2, 34: 2, 36: 1, 37: 2}  # 34: one on each of two nodes; 37: by --gpus
    # waiting jobs have order reason and start
    entry = snapshot.jobs[-1]
    assert snapshot.order == (34, entry.id, 37, 38, 36)
    told = {number: (reason.code, reason.text) for number, reason in snapshot.reasons.items()}
    assert told == {
        34: (PendingReason.RESOURCES, "waits for resources (Resources)"),
        entry.id: (PendingReason.PRIORITY, "jobs before it wait too (Priority)"),
        37: (
            PendingReason.DEPENDENCY,
            "waits for ever: a job that it depends on failed: afterok:26(failed) (DependencyNeverSatisfied)",
        ),
        38: (PendingReason.PRIORITY, "jobs before it wait too (Priority)"),
        36: (PendingReason.JOB_HELD_USER, "held by its user (JobHeldUser)"),
    }
    assert set(snapshot.expected_starts) == {34, entry.id, 38}
    assert job(snapshot, 37).spec.after == (26,)


def test_holds_arrays_and_nodes(snapshot: Snapshot) -> None:
    # holds and nice values
    held = job(snapshot, 36)
    assert (held.held, held.held_by, held.hold_reason, held.priority) == (True, "root", None, 40)
    assert job(snapshot, 38).priority == 50
    # an array that waits is one entry
    entry = snapshot.jobs[-1]
    assert [array_of(each) for each in entry.ids] == [35] * 6
    assert list(entry.indices) == [0, 2, 4, 6, 8, 10]
    assert entry.array is not None
    assert (entry.array.id, entry.array.limit, entry.count) == (35, 2, 6)
    # nodes and GPUs
    views = {view.gpu.uuid: view for view in snapshot.gpus}
    assert {name: (view.state, view.job_id) for name, view in views.items()} == {
        "gpu1:0": (GpuState.ALLOCATED, 33),
        "gpu1:1": (GpuState.ALLOCATED, 33),
        "gpu2:0": (GpuState.FREE, None),
        "gpu2:1": (GpuState.FREE, None),
        "gpu3:0": (GpuState.DRAINED, None),
        "gpu3:1": (GpuState.DRAINED, None),
    }
    assert views["gpu3:0"].why == "node gpu3 is drained: fan | noise"
    assert views["gpu1:0"].gpu.model == "H200"
    drain = views["gpu3:1"].drain
    assert drain is not None
    assert (drain.reason, drain.by, drain.at) == ("fan | noise", "root", datetime(2026, 11, 24, 0, 12, 49, tzinfo=UTC))
    # the controller leads
    assert snapshot.leader is not None
    assert (snapshot.leader.host, snapshot.leader.kind) == ("head", "slurm")


def test_an_unchanged_job_is_the_same_object_in_the_next_snapshot(tmp_path: Path) -> None:
    pictures, found = Pictures(Submissions(tmp_path)), polled()
    first = pictures.snapshot(found)
    changed = replace(found.rows[-1], state="COMPLETING")
    second = pictures.snapshot(replace(found, rows=(*found.rows[:-1], changed)))
    same = [one is other for one, other in zip(first.jobs, second.jobs, strict=True)]
    assert same.count(False) == 1


def row(**changes: str) -> JobRow:
    return replace(polled().rows[-1], name="train", comment="(null)", **changes)


@cases(
    ("word", "state", "code"),
    [
        ("COMPLETING", JobState.COMPLETING, None),
        ("CONFIGURING", JobState.CONFIGURING, None),
        ("SUSPENDED", JobState.RUNNING, None),
        ("STAGE_OUT", JobState.COMPLETING, None),
        ("REQUEUED", JobState.PENDING, None),
        ("SPECIAL_EXIT", JobState.PENDING, None),
        ("PREEMPTED", JobState.CANCELLED, CauseCode.PREEMPTED),
        ("NODE_FAIL", JobState.FAILED, CauseCode.CONTAINER_LOST),
        ("BOOT_FAIL", JobState.FAILED, CauseCode.RUNTIME_UNAVAILABLE),
        ("DEADLINE", JobState.TIMEOUT, CauseCode.TIME_LIMIT),
        ("TIMEOUT", JobState.TIMEOUT, CauseCode.TIME_LIMIT),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY, CauseCode.OUT_OF_MEMORY),
        ("CANCELLED by 1000", JobState.CANCELLED, CauseCode.CANCELLED),
        ("COMPLETED", JobState.COMPLETED, None),
        ("HIBERNATING", JobState.RUNNING, None),
    ],
)
def test_states_and_their_causes(word: str, state: JobState, code: CauseCode | None) -> None:
    assert listings.state_of(word) is state
    cause = listings.cause_of(word, 0, 0, nodes=("gpu3",))
    assert (cause.code if cause else None) is code
    assert cause is None or word.split(" ")[0] in cause.text


@cases(
    ("word", "text"),
    [
        ("AssocGrpGRES", "over a limit of its account: GPUs or other devices (AssocGrpGRES)"),
        ("QOSMaxJobsPerUserLimit", "over a limit of its QOS: running jobs (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRESMinutes", "over a limit of its account: time on GPUs, CPUs and the like (AssocGrpGRESMinutes)"),
        ("QOSMaxWallDurationPerJobLimit", "over a limit of its QOS: run time (QOSMaxWallDurationPerJobLimit)"),
        ("AssociationJobLimit", "over a limit of its account: running jobs (AssociationJobLimit)"),
        ("QOSNotAllowed", "its partition does not take its QOS (QOSNotAllowed)"),
    ],
)
def test_limits_of_accounts_and_qos(word: str, text: str) -> None:
    reason = reason_of(word, "", None, datetime.now(UTC))
    assert (reason.code, reason.text) == (PendingReason.QUOTA_EXCEEDED, text)


def test_what_slurm_words_as_a_signal_and_is_none() -> None:
    unwritable = listings.cause_of("FAILED", 0, 53, nodes=("gpu3",))
    assert unwritable is not None
    assert unwritable.text == "could not be started on node gpu3: its output cannot be written there"
    unfit = listings.cause_of("CANCELLED", 0, 0, reason="DependencyNeverSatisfied")
    assert unfit is not None
    assert unfit.text == "cancelled by Slurm: a job that it depends on failed (DependencyNeverSatisfied)"
    asked = (("FAILED", 53), ("OUT_OF_MEMORY", 125), ("FAILED", 9))
    assert [listings.exit_code_of(word, 0, signal) for word, signal in asked] == [None, None, 137]


def test_a_held_or_suspended_state_shows(tmp_path: Path) -> None:
    held = replace(row(state="REQUEUE_HOLD", number="7", array="7"), reason="job_requeued_in_held_state", nodes="")
    stopped = row(state="SUSPENDED", number="8", array="8")
    found = snapshot_of(replace(polled(), rows=(held, stopped)), tmp_path)
    assert [(each.held, each.suspended) for each in found.jobs] == [(True, False), (False, True)]


def test_elements_that_wait_for_different_reasons_are_apart() -> None:
    merged = row(state="PENDING", index="0-4%2", reason="JobHeldUser,Priority", array="9", number="9")
    assert listings.is_mixed(merged)
    elements = [
        replace(
            merged, index=str(index), number=str(9 + index), reason="JobHeldUser" if index in {1, 3} else "Priority"
        )
        for index in range(5)
    ]
    assert [(each.index, each.reason) for each in listings.regrouped(elements, 2)] == [
        ("0-4:2%2", "Priority"),
        ("1,3%2", "JobHeldUser"),
    ]


@cases(
    "output",
    [
        (
            "scontrol: show nodes\nA\nB\nscontrol: show hostnames m1\nm1\nscontrol: show job 7\nC\n"
            "scontrol: show hostnames m1\nm1\nscontrol: \n"
        ),  # with readline
        "scontrol: A\nB\nscontrol: m1\nscontrol: C\nscontrol: m1\nscontrol: ",  # without it
        "A\nB\nm1\nC\nm1\n",
    ],
)
def test_answers_are_parted_with_and_without_prompts(output: str) -> None:
    assert parted(output, "m1")[:2] == ["A\nB", "C"]


NEWER_NODE = (
    "NodeName=dgx01 Arch=x86_64 CoresPerSocket=56  CPUAlloc=64 CPUEfctv=112 CPUTot=112 CPULoad=31.04 "
    "AvailableFeatures=h100 ActiveFeatures=h100 Gres=gpu:h100:8(S:0-1),gpu:1g.10gb:2 GresDrain=N/A "
    "GresUsed=gpu:h100:3(IDX:0,2-3),gpu:1g.10gb:0(IDX:N/A) NodeAddr=dgx01 NodeHostName=dgx01 Version=24.11.5 "
    "OS=Linux 6.8.0-60-generic #63-Ubuntu SMP PREEMPT_DYNAMIC RealMemory=2000000 AllocMem=65536 FreeMem=1 Sockets=2 "
    "Boards=1 {state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu BootTime=1747000000 "
    "SlurmdStartTime=1747000100 LastBusyTime=1747000200 ResumeAfterTime=None CfgTRES=cpu=112,gres/gpu=8 "
    "AllocTRES=cpu=64,gres/gpu=3,gres/gpu:h100=3 CurrentWatts=0 AveWatts=0 Extra=rack 7 InstanceId=i-1 {reason}\n"
)


def test_nodes_of_later_versions() -> None:
    [node] = listings.parse_nodes(NEWER_NODE.format(state="State=MIXED+DYNAMIC_NORM", reason=""))
    assert node.gpus == ("h100",) * 8 + ("1g.10gb",) * 2
    assert (node.used, node.used_count, node.states) == ((0, 2, 3), 3, ("MIXED", "DYNAMIC_NORM"))


@cases(
    ("state", "why"),
    [
        ("State=DOWN*+DRAIN", "node dgx01 is down: Not responding"),
        ("State=DOWN+NOT_RESPONDING", "node dgx01 is down: Not responding"),
        ("State=IDLE*", "node dgx01 is down: Not responding"),
        ("State=IDLE+CLOUD+POWERED_DOWN", "node dgx01 is powered down: Not responding"),
    ],
)
def test_gpus_of_a_node_that_is_not_there_are_unknown(state: str, why: str, tmp_path: Path) -> None:
    nodes = listings.parse_nodes(NEWER_NODE.format(state=state, reason="Reason=Not responding [slurm@1747000300]"))
    found = snapshot_of(replace(polled(), nodes=tuple(nodes), rows=()), tmp_path)
    assert {(view.state, view.why) for view in found.gpus} == {(GpuState.UNKNOWN, why)}


NEWER_JOB = (
    "JobId=33 JobName=train UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=5487 Nice=0 Account=vision "
    "QOS=normal JobState=COMPLETING Reason=None Dependency=(null) Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 "
    "ExitCode=0:15 DerivedExitCode=0:0 RunTime=00:01:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1747000000 "
    "EligibleTime=1747000000 AccrueTime=1747000000 StartTime=1747000010 EndTime=1747000070 Deadline=N/A "
    "SuspendTime=None SecsPreSuspend=0 LastSchedEval=1747000010 Scheduler=Main Partition=gpu AllocNode:Sid=login1:77 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=dgx[01-02] BatchHost=dgx01 StepMgrEnabled=Yes NumNodes=2 NumCPUs=8 "
    "NumTasks=2 CPUs/Task=4 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=8,mem=64G,node=2,billing=8,gres/gpu=4 "
    "AllocTRES=cpu=8,mem=64G,node=2,billing=8,gres/gpu=4,gres/gpu:h100=4 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:h100:4   Nodes=dgx01 CPU_IDs=0-3 Mem=32768 GRES=gpu:h100:3(IDX:0,6-7)   Nodes=dgx02 "
    "CPU_IDs=0-3 Mem=32768 GRES=gpu:h100:1(IDX:4) MinCPUsNode=4 MinMemoryNode=32G MinTmpDiskNode=0 Features=(null) "
    "DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null) "
    "Command=/home/ann/run.sh WorkDir=/home/ann/my work StdErr=/home/ann/my work/a.out StdIn=/dev/null "
    "StdOut=/home/ann/my work/a.out TresPerJob=gres/gpu:h100:4 TresPerTask=cpu=4"
)


@cases("more", ["", "SLUID=sDS5M87DJE7N00 ", "HetJobIdSet=33-34 "])
def test_details_of_later_versions(more: str) -> None:
    found = listings.parse_detail(NEWER_JOB.replace("UserId=", f"{more}UserId=", 1), row(state="COMPLETING"))
    assert found is not None
    assert found.gpus == (("dgx01", 0), ("dgx01", 6), ("dgx01", 7), ("dgx02", 4))
    assert (found.nodes, found.requested, found.restarts) == (("dgx01", "dgx02"), 4, 2)
    assert (found.exit_code, found.signal, found.output) == (0, 15, "/home/ann/my work/a.out")


SHARING = {
    "26.05": ("gpu:h200:2(IDX:0-1),shard:h200:6(4/4,0/4,2/4),mps:0", {0: 1.0, 2: 0.5}),
    "models": ("gpu:a100:0(IDX:N/A),gpu:h200:0(IDX:N/A),mps:a100:0(0/100),mps:h200:50(50/100)", {1: 0.5}),
    "22.05": ("gpu:h200:0(IDX:N/A),shard:h200:2(IDX:0,2),mps:a100:0(IDX:N/A)", {0: 1.0, 2: 1.0}),
    "other": ("gpu:h200:2(S:0-1),craynetwork:4", {}),
}


@cases(("text", "found"), SHARING.values())
def test_gpus_shared_by_shards_and_mps(text: str, found: dict[int, float]) -> None:
    assert commands.shared_gpus(text) == found


def test_shared_gpus_and_gpus_for_each_task() -> None:
    # a shared GPU is allocated and its jobs have their parts of it
    [node] = listings.parse_nodes(
        "NodeName=dgx01 Gres=gpu:h100:4,shard:16 GresUsed=gpu:h100:1(IDX:3),shard:3(3/4,0/4) State=MIXED"
    )
    assert (node.used, node.used_count) == ((3, 0), 2)
    text = NEWER_JOB.replace("GRES=gpu:h100:3(IDX:0,6-7)", "GRES=shard:3(3/4,0/4)").replace(
        "GRES=gpu:h100:1(IDX:4)", "GRES="
    )
    found = listings.parse_detail(text, row(state="COMPLETING"))
    assert found is not None
    assert (found.gpus, found.share) == ((("dgx01", 0),), 0.75)
    # GPUs for each task
    told = "TresPerJob=gres/gpu:h100:4 TresPerTask=cpu=4"
    text = NEWER_JOB.replace(",gres/gpu:h100=4", "").replace(",gres/gpu=4", "").replace(told, "TresPerTask=gres/gpu=3")
    found = listings.parse_detail(text, row(state="COMPLETING"))
    assert found is not None
    assert found.requested == 6


def test_accounts() -> None:
    fields = [
        *(
            "401",
            "400_3",
            "CANCELLED by 1000",
            "0:15",
            "1747000000",
            "1747000010",
            "1747000070",
            "ann",
            "vision",
            "gpu",
        ),
        *("dgx01", "1", "billing=8,cpu=8,gres/gpu=2,node=1", "billing=8,cpu=8,gres/gpu:h100=8,gres/gpu=8,node=1"),
        *("1-00:00:00", "gputui:k", "a|b\nc"),
    ]
    output = "".join(f"{field}{MARK}" for field in fields) + "\n"
    [ended, again] = list(parse_accounts(output * 2, MARK))
    assert ended == again
    assert (ended.row.job_id, ended.row.name, ended.row.state) == (element_id(400, 3), "a|b\nc", "CANCELLED")
    assert (ended.detail.requested, ended.detail.signal, ended.detail.nodes) == (8, 15, ("dgx01",))
    attempt = job_of(ended.row, ended.detail, None).attempts[0]
    assert (attempt.gpus, attempt.gpu_count, attempt.exit_code) == ((), 8, 143)  # accounts do not name GPUs


SACCT = """#!/bin/sh
for word; do
  case $word in
    --json) echo '{"jobs": [{"job_id": 401, "exit_code": {"status": ["ERROR"], "return_code": %s}}]}'; exit;;
    --delimiter=*) mark=${word#*=};;
  esac
done
for field in 401 400_3 FAILED 9:0 1747000000 1747000010 1747000070 ann lab gpu dgx01 1 - - 1:00:00 - train; do
  printf '%%s' "$field$mark"
done
"""


REFUSING = """#!/bin/sh
echo x >>{calls}
[ "$(wc -l <{calls})" -gt 2 ] || {{ echo 'sacct: error: Too wide of a date range in query' >&2; exit 1; }}
"""


def test_a_limit_on_the_range_of_queries(tmp_path: Path) -> None:
    (tmp_path / "sacct").write_text(REFUSING.format(calls=tmp_path / "calls"))
    (tmp_path / "sacct").chmod(0o755)
    commands = SlurmCommands(None, 60, {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    with pytest.raises(ClusterRefusedError) as refused:
        list(ended_jobs(commands, datetime(2026, 1, 1, tzinfo=UTC)))
    assert "--since" in (refused.value.hint or "")
    assert list(ended_jobs(commands, None)) == []
    assert (tmp_path / "calls").read_text().split() == ["x"] * 3


@cases("code", ["137", '{"set": true, "infinite": false, "number": 137}'])
def test_accounts_of_one_job_have_its_whole_exit_code(tmp_path: Path, code: str) -> None:
    (tmp_path / "sacct").write_text(SACCT % code)
    (tmp_path / "sacct").chmod(0o755)
    commands = SlurmCommands(None, 60, {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    for asked in (element_id(400, 3), 400):
        found = ended_job(commands, asked)
        assert found is not None
        assert (found.row.job_id, found.detail.exit_code) == (element_id(400, 3), 137)
    assert ended_job(commands, 7) is None


@cases(
    ("text", "found"),
    [
        ("gpu[1-3,07],login", ("gpu1", "gpu2", "gpu3", "gpu07", "login")),
        ("rack[1-2]n[08-10]", ("rack1n08", "rack1n09", "rack1n10", "rack2n08", "rack2n09", "rack2n10")),
        ("(null)", ()),
    ],
)
def test_lists_of_hosts(text: str, found: tuple[str, ...]) -> None:
    assert commands.hosts(text) == found


@cases(
    ("text", "span"),
    [
        ("5:00", timedelta(minutes=5)),
        ("1:00:00", timedelta(hours=1)),
        ("2-03:04:05", timedelta(days=2, hours=3, minutes=4, seconds=5)),
        ("30", timedelta(minutes=30)),
        ("UNLIMITED", None),
        ("INVALID", None),
    ],
)
def test_durations(text: str, span: timedelta | None) -> None:
    assert commands.span(text) == span


@cases(
    ("text", "count"),
    [
        ("gres:gpu:2", 2),
        ("gres/gpu:h200:2", 2),
        ("gpu", 1),
        ("gpu:a100:4(S:0-1),gpu:h200:2(IDX:4,6),tmp:3", 6),
        ("cpu=8,gres/gpu=4,gres/gpu:h100=4", 4),
        ("N/A", 0),
        ("gres:gpumem:80", 0),
    ],
)
def test_numbers_of_gpus(text: str, count: int) -> None:
    assert commands.gpu_count(text) == count


def test_only_an_administrators_hold_is_told_as_such() -> None:
    rows = [JobRow("7", "7", "N/A", "PENDING", word) for word in ("JobHeldAdmin", "JobHeldUser")]
    assert [job_of(row, None, None).hold_reason for row in rows] == ["held by an administrator", None]
