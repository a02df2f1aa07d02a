"""Commands do with a cluster what they do with the queue of this machine."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from gputui.domain.cluster import Capability, ClusterFault, element_id
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cli.test_completions import completed
from tests.cluster.commands import MakeCluster, Run
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec

NOT_EDITED = "of a job of Fake only time limit, priority and hold can be changed (cancel it and submit it again)"
SINGLE = "Slurm drains nodes, not single GPUs"


def state(cluster: FakeCluster, job_id: int) -> JobState:
    return cluster.job(job_id).state


def test_submit_prints_the_engines_id(run: Run, cluster: FakeCluster) -> None:
    result = run("submit", "--gpus", "2", "--time-limit", "1h", "busybox", "true")
    assert (result.code, result.out, result.err) == (0, "1\n", "job 1: time limit 1h\n")
    assert state(cluster, 1) is JobState.RUNNING


def test_an_array_has_one_id_and_elements_in_slurms_notation(run: Run, cluster: FakeCluster) -> None:
    assert run("submit", "busybox").out == "1\n"
    result = run("submit", "--gpus", "1", "--array", "0-9%2", "--json", "busybox")
    assert result.json == {"id": 2, "array": {"count": 10, "first": 0, "last": 9, "limit": 2}}
    assert [each["array"]["indices"] for each in run("queue", "--json").json[1:]] == ["0", "1", "2-9"]
    assert run("cancel", "2_[2-3]").err == "cancelled 2 jobs: 2_2 2_3\n"
    assert state(cluster, element_id(2, 3)) is JobState.CANCELLED
    assert run("show", "2_5").out.startswith("job                   2_5 ")
    assert run("cancel", "2").code == 0
    assert {job.state for job in cluster.snapshot().jobs if job.array} == {JobState.CANCELLED}


def test_a_file_is_submitted_as_a_whole(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('[[job]]\nimage = "busybox"\n[[job]]\nimage = "busybox"\narray = "0-1"\n[[job]]\nimage = "a"\n')
    assert run("submit", "-f", str(file)).out == "1\n2\n3\n"


def test_a_sweep_is_an_array(run: Run, cluster: FakeCluster) -> None:
    assert run("submit", "--sweep", "lr=1,2", "--gpus", "1", "--name", "t", "busybox", "{lr}").out == "1\n"
    assert [job.name for job in cluster.snapshot().jobs] == ["t lr=1", "t lr=2"]


def test_dependencies_begin_times_and_holds_reach_the_engine(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")
    run("submit", "--array", "0-1", "busybox")
    for option in (["--after", "1"], ["--after", "2_1"], ["--begin", "+1h"], ["--hold"]):
        assert run("submit", *option, "busybox").code == 0
    by_id = {each["id"]: each for each in run("queue", "--json").json}
    codes = [by_id[job_id]["reason"]["code"] for job_id in (3, 4, 5, 6)]
    assert codes == ["Dependency", "Dependency", "BeginTime", "JobHeldUser"]
    assert cluster.job(4).spec.after == (element_id(2, 1),)


def test_a_dry_run_asks_the_engine_and_submits_nothing(run: Run, cluster: FakeCluster) -> None:
    assert run("submit", "--dry-run", "--gpus", "1", "busybox").out == "job busybox: would start now\n"
    for _ in range(3):
        run("submit", "--gpus", "2", "busybox")
    assert "in 1h" in run("submit", "--dry-run", "--gpus", "2", "busybox").out
    assert len(cluster.snapshot().jobs) == 3


def test_what_the_engine_decides_for_a_job_is_told_at_its_submission(run: Run, cluster: FakeCluster) -> None:
    cluster.default_limit = "1h00m"
    told = "time limit 1h00m, the default of partition gpu\n"
    assert run("submit", "--dry-run", "busybox").err == f"gputui: job busybox: {told}"
    assert run("submit", "busybox").err == f"gputui: job 1: {told}"
    for options in (["--quiet"], ["--json"], ["--time-limit", "2h", "--quiet"]):
        assert run("submit", *options, "busybox").err == ""


def test_an_engines_own_count_of_waits_is_not_foretold(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--hold", "--time-limit", "1h", "busybox")
    assert run("edit", "1", "--time-limit", "2h").err == "edited job 1: time-limit 2h (was 1h)\n"


@cases(
    ("options", "words"),
    [
        (["--idle-timeout", "1h"], "--idle-timeout: Fake does not watch for idle jobs"),
        (["--preemptible"], "--preemptible: Fake decides"),
    ],
)
def test_options_of_our_own_scheduler_are_refused(
    run: Run, cluster: FakeCluster, options: list[str], words: str
) -> None:
    result = run("submit", *options, "busybox")
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert not cluster.snapshot().jobs


def test_options_that_the_engine_lacks_are_refused(run: Run, use: MakeCluster, clock: FakeClock) -> None:
    cluster = use(FakeCluster(clock, lacking={Capability.ARRAYS: "Fake has no arrays"}))
    result = run("submit", "--array", "0-3", "busybox")
    assert (result.code, result.err) == (1, "gputui: error: Fake has no arrays\n")
    assert not cluster.snapshot().jobs


def test_refusals_in_the_engines_words(run: Run, cluster: FakeCluster) -> None:
    # a refusal of the engine is told in its words
    result = run("submit", "--gpus", "9", "busybox")
    assert (result.code, result.err) == (1, "gputui: error: Requested node configuration is not available\n")
    # help of a refused command is shown
    assert run("pause", "--help").code == 0
    # an engine that does not answer is one sentence
    cluster.answers = False
    result = run("queue")
    assert (result.code, result.out, result.err) == (1, "", "gputui: error: lab: the cluster does not answer\n")


def test_the_queue_names_the_nodes(run: Run, cluster: FakeCluster) -> None:
    for _ in range(4):
        run("submit", "--gpus", "2", "--name", "train", "busybox")
    cluster.submit_as("bob", Submission(spec(gpus=1, name="other", tenant="bob")))
    lines = run("queue").out.splitlines()
    assert lines[0].split() == ["ID", "ST", "PRI", "NAME", "TENANT", "NODE", "GPUS", "TIME", "REASON"]
    assert lines[1].split()[:7] == ["1", "R", "50", "train", "alice", "gpu1", "2:0,1"]
    assert "needs 2 GPUs" in lines[4]
    assert lines[5].split()[0] == "5"
    assert [each["id"] for each in run("queue", "-f", "node:gpu2", "--json").json] == [2]
    assert [each["id"] for each in run("queue", "-f", "tenant:bob", "--json").json] == [5]
    assert run("queue", "--json").json[0]["attempts"][0]["node"] == "gpu1"


def test_show_tells_the_node_and_knows_forgotten_jobs(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--gpus", "1", "busybox")
    assert "node" in run("show", "1").out
    cluster.end(1, 3)
    cluster.forget(1)
    result = run("show", "1", "--json").json
    assert (result["state"], result["exit_code"]) == ("FAILED", 3)
    assert run("show", "2").code == 3


def test_explain_tells_the_engines_reason(run: Run, cluster: FakeCluster) -> None:
    for _ in range(3):
        run("submit", "--gpus", "2", "busybox")
    run("submit", "--gpus", "1", "--array", "0-1", "busybox")
    lines = run("explain", "4_1").out.splitlines()
    assert lines[0] == "job 4_1 busybox: number 1 of 1 waiting"
    assert lines[1] == "why       needs 1 GPUs"
    assert lines[2].endswith("in 1h00m")
    assert run("explain", "4", "--json").json["reason"] == {"code": "Resources", "text": "needs 1 GPUs"}
    assert "it does not wait" in run("explain", "1").err


def test_verbs_about_jobs(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--gpus", "2", "busybox")
    run("submit", "--hold", "busybox")
    assert run("release", "2").err == "released job 2\n"
    run("submit", "--begin", "+1h", "busybox")
    assert run("hold", "3").err.startswith("held job 3")
    assert run("priority", "3", "+10").err == "priority is now 60: job 3\n"
    assert run("priority", "3", "20").err == "priority is now 20: job 3\n"
    assert run("priority", "3", "top").err == "put at the head of the queue: job 3\n"
    assert run("signal", "1", "USR1").err == "sending SIGUSR1 to job 1\n"
    assert cluster.signals(1) == [10]
    assert run("suspend", "1").err == "suspending job 1, whose time limit continues\n"
    assert run("unsuspend", "1").err == "continuing job 1\n"
    assert run("requeue", "2").code == 0
    assert cluster.job(2).next_attempt == 3
    assert run("cancel", "1").err == "cancelled job 1\n"
    assert run("cancel", "1").err == "job 1 has ended already: it is CANCELLED\n"


def test_an_unknown_job_is_refused_before_any_is_changed(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--gpus", "2", "busybox")
    result = run("cancel", "1", "7")
    assert (result.code, result.err) == (3, "gputui: error: there is no job 7; nothing was changed\n")
    assert state(cluster, 1) is JobState.RUNNING


@cases(
    ("arguments", "capability"),
    [
        (["hold", "1"], Capability.HOLD),
        (["release", "1"], Capability.HOLD),
        (["requeue", "1"], Capability.REQUEUE),
        (["priority", "1", "+5"], Capability.RAISE_PRIORITY),
        (["priority", "1", "5"], Capability.LOWER_PRIORITY),
        (["priority", "1", "top"], Capability.TOP),
        (["signal", "1", "USR1"], Capability.SIGNAL),
        (["suspend", "1"], Capability.SUSPEND),
        (["unsuspend", "1"], Capability.SUSPEND),
        (["edit", "1", "--time-limit", "5h"], Capability.EXTEND),
        (["edit", "2", "--gpus", "5"], Capability.EDIT),
        (["drain", "gpu1"], Capability.DRAIN_NODE),
        (["resume", "gpu1"], Capability.DRAIN_NODE),
        (["submit", "--dry-run", "busybox"], Capability.TEST_ONLY),
        (["cancel", "--dry-run", "1"], Capability.WHAT_IF),
        (["hold", "--dry-run", "2"], Capability.WHAT_IF),
        (["requeue", "--dry-run", "1"], Capability.WHAT_IF),
        (["priority", "1", "+5", "--dry-run"], Capability.WHAT_IF),
        (["drain", "gpu1", "--dry-run"], Capability.WHAT_IF),
        (["edit", "1", "--time-limit", "5h", "--dry-run"], Capability.WHAT_IF),
        (["logs", "-f", "1"], Capability.LIVE_LOG),
        (["exec", "1", "ls"], Capability.INSIDE),
        (["run", "-t", "busybox"], Capability.STREAMS),
    ],
)
def test_a_missing_capability_is_refused_with_its_sentence(
    run: Run, use: MakeCluster, clock: FakeClock, arguments: list[str], capability: Capability
) -> None:
    cluster = use(FakeCluster(clock, lacking={capability: "Fake cannot do that"}))
    cluster.submit([Submission(spec(gpus=1)), Submission(spec(gpus=1), held=True)], "k")
    result = run(*arguments)
    assert (result.code, result.out, result.err) == (1, "", "gputui: error: Fake cannot do that\n")
    assert state(cluster, 1) is JobState.RUNNING


@cases(
    ("arguments", "words"),
    [
        (["pause", "later"], "scontrol update PartitionName"),
        (["unpause"], "scontrol update PartitionName"),
        (["reserve", "list"], "scontrol create reservation"),
        (["tenant", "list"], "sacctmgr"),
        (["cron", "list"], "scrontab"),
        (["install"], "the engine schedules"),
        (["ps"], "log in to the job's node"),
        (["state", "verify"], "engine's own files"),
    ],
)
def test_commands_that_make_no_sense_say_what_to_use_instead(
    run: Run, cluster: FakeCluster, arguments: list[str], words: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (1, "")
    assert f"gputui {arguments[0]} is for the queue of one machine, not for Slurm" in result.err
    assert words in result.err


def test_the_store_of_this_machine_is_not_touched(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    state_directory = tmp_path / "state"
    assert run("--state", str(state_directory), "submit", "busybox").code == 0
    assert run("--state", str(state_directory), "queue").code == 0
    assert not state_directory.exists()
    assert cluster.closed


def test_nodes_are_drained_and_resumed(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--gpus", "2", "busybox")
    assert run("drain", "gpu1", "--reason", "fans").err == (
        "drained node gpu1: no new jobs start there; job 1 continues\n"
    )
    assert run("drain", "gpu2", "gpu3").err.startswith("drained nodes gpu2 gpu3: ")
    run("submit", "--gpus", "1", "busybox")
    assert state(cluster, 2) is JobState.PENDING
    assert [view["state"] for view in run("gpus", "--json").json] == ["ALLOCATED"] * 2 + ["DRAINED"] * 4
    assert run("resume", "gpu2").err == "resumed node gpu2: jobs start there again\n"
    assert state(cluster, 2) is JobState.RUNNING


def test_a_single_gpu_is_not_drained(run: Run, use: MakeCluster, clock: FakeClock) -> None:
    use(FakeCluster(clock, lacking={Capability.DRAIN_GPU: SINGLE}))
    result = run("drain", "gpu1:0")
    assert (result.code, result.err) == (1, f"gputui: error: {SINGLE}\n")
    assert "there is no node 0 (gputui gpus lists them)" in run("drain", "0").err


def test_the_gpus_are_listed_by_node(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--gpus", "1", "--name", "train", "busybox")
    lines = run("gpus").out.splitlines()
    assert lines[0].split()[:4] == ["NODE", "GPU", "STATE", "MODEL"]
    assert lines[1].split()[:3] == ["gpu1", "0", "ALLOCATED"]
    assert "job 1 train (alice)" in lines[1]
    assert [each["node"] for each in run("gpus", "--json").json] == ["gpu1", "gpu1", "gpu2", "gpu2", "gpu3", "gpu3"]


def test_the_time_limit_of_a_running_job_and_the_priority_of_a_waiting_one_are_edited(
    run: Run, cluster: FakeCluster
) -> None:
    run("submit", "--time-limit", "1h", "busybox")
    told = run("edit", "1", "--time-limit", "+2h").err
    assert told.startswith("edited job 1: time-limit 3h (was 1h); it ends by ")
    run("submit", "--hold", "--time-limit", "1h", "busybox")
    assert run("edit", "2", "--priority", "70").code == 0
    assert cluster.job(2).priority == 70
    result = run("edit", "2", "--gpus", "2")
    assert (result.code, result.err) == (1, f"gputui: error: {NOT_EDITED}\n")
    assert "each job has one" in run("edit", "2", "--unset", "time-limit").err


def test_the_output_of_running_and_ended_jobs(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")
    cluster.write(1, "one", "two", "three")
    assert run("logs", "-n", "2", "1").out == "two\nthree\n"
    cluster.end(1)
    assert run("logs", "-f", "1").out == "one\ntwo\nthree\n"
    assert "has no output of its own" in run("logs", "--attempt", "2", "1").err
    run("submit", "--hold", "busybox")
    assert "has not started yet" in run("logs", "2").err


def test_output_is_followed_until_the_job_ends(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")
    followed = cluster.followed

    def work() -> None:
        followed.wait()
        cluster.write(1, "late")
        cluster.end(1)

    worker = Thread(target=work)
    worker.start()
    assert run("logs", "-f", "1").out == "late\n"
    worker.join()


def test_a_command_in_a_job_returns_its_exit_code(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")
    result = run("exec", "1", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.code, result.out, result.err) == (7, "out\n", "err\n")


def test_a_job_that_no_command_can_run_in(run: Run, cluster: FakeCluster) -> None:
    run("submit", "--hold", "busybox")
    run("submit", "busybox")
    run("suspend", "2")
    cluster.submit_as("bob", Submission(spec()))
    sentences = [run("exec", str(job_id), "true").err for job_id in (1, 2, 3, 4)]
    assert [each.removeprefix("gputui: error: ").strip() for each in sentences] == [
        "job 1 is PENDING: a shell and its processes are only available while it is RUNNING",
        "job 2 is suspended: no command can run in it (gputui unsuspend 2)",
        "job 3 is a job of bob",
        "there is no job 4",
    ]


def test_wait_returns_the_exit_code_of_the_job(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")
    cluster.end(1, 3)
    assert run("wait", "1").code == 3
    run("submit", "busybox")
    result = run("wait", "--timeout", "1s", "2")
    assert (result.code, result.err) == (124, "gputui: 1 job of 1 has not ended yet\n")


def test_wait_sees_a_job_end(run: Run, cluster: FakeCluster) -> None:
    run("submit", "busybox")

    def work() -> None:
        cluster.asked_twice.wait()
        cluster.end(1)

    worker = Thread(target=work)
    worker.start()
    result = run("wait", "1")
    worker.join()
    assert (result.code, result.out) == (0, "Job 1 busybox (alice) completed in 0s\n")


def test_history_and_report_count_jobs_that_the_engine_has_forgotten(
    run: Run, cluster: FakeCluster, clock: FakeClock
) -> None:
    for _ in range(3):
        run("submit", "--gpus", "2", "busybox")
    clock.advance(3600)
    cluster.end(1)
    cluster.end(2, 3)
    cluster.forget(1)
    assert sorted(each["id"] for each in run("history", "--json").json) == [1, 2]
    assert [each["id"] for each in run("history", "state:failed", "--json").json] == [2]
    told = run("report", "--since", "-1d", "--format", "json").json
    assert told["total"]["gpu_hours"] == 6.0


def test_doctor_tells_what_the_cluster_has_and_what_is_in_the_way(run: Run, cluster: FakeCluster) -> None:
    lines = run("doctor").out.splitlines()[1:]
    assert lines[0] == "ok    cluster     Fake answers: cluster lab, 3 nodes"
    assert lines[1] == "ok    gpus        6 GPUs on 3 nodes"
    assert lines[2] == "ok    rights      this user is an operator"
    cluster.found = (ClusterFault("epilog", "no epilog is set", "Containers stay.", "gputui cluster install"),)
    assert run("doctor").code == 0
    assert run("doctor", "--json").json[1]["level"] == "warn"
    cluster.found = (ClusterFault("epilog", "no epilog is set", "They harm others.", "mend it", is_grave=True),)
    result = run("doctor")
    assert (result.code, "GPUs" in result.out) == (1, True)
    cluster.found = (ClusterFault("munge", "munge is down", "Trust.", "systemctl start munge", stops_jobs=True),)
    result = run("doctor")
    assert (result.code, result.out.splitlines()[1]) == (1, "fail  munge       munge is down")
    assert "GPUs" not in result.out


def test_doctor_names_settings_without_effect(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "idle.toml"
    path.write_text('[scheduler]\nidle_gpus_end = "1h"\n[report]\nweekly = "Mon 08:00"\n')
    monkeypatch.setenv("GPUTUI_CONFIG", str(path))
    assert [line for line in run("doctor").out.splitlines() if line.startswith("warn  settings")] == [
        "warn  settings    scheduler.idle_gpus_end has no effect: cluster.probe is off",
        "warn  settings    report.weekly has no effect: [hooks] has no receivers",
    ]


def test_doctor_without_gpus_and_without_an_answer(run: Run, use: MakeCluster, clock: FakeClock) -> None:
    use(FakeCluster(clock, {"cpu1": 0}))
    result = run("doctor")
    assert result.code == 1
    assert "no node has GPUs" in result.out
    away = use(FakeCluster(clock))
    away.answers = False
    result = run("doctor")
    assert result.code == 1
    assert result.out.endswith("\nfail  cluster     lab: the cluster does not answer\n")


def test_a_shell_completes_jobs_and_nodes_of_the_cluster(cluster: FakeCluster) -> None:
    cluster.submit([Submission(spec(gpus=1))], "one")
    cluster.submit([Submission(spec(gpus=1), array=(0, 1))], "array")
    assert completed("gputui show", 2) == ["1", "2"]
    assert completed("gputui logs 2_", 2) == ["2_0", "2_1"]
    assert completed("gputui drain g", 2) == ["gpu1", "gpu2", "gpu3"]
    cluster.answers = False
    assert completed("gputui show", 2) == []
