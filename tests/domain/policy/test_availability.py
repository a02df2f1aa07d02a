"""A GPU is free only if all sources say so; each obstacle suffices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.conditions import conditions
from gputui.domain.container import ForeignContainer, RuntimeStatus
from gputui.domain.gpu import (
    Drain,
    GpuProcess,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    ProbeCode,
    ProbeReading,
    ProbeStatus,
    faulty_gpus,
)
from gputui.domain.policy.availability import UNASKED, Evidence, gpu_views, resolve_devices, why_unseen
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Controls, Unreadable
from tests.cases import cases
from tests.factories import GIB, NOW, gpu, running, sample, snapshot, uuid

SETTINGS = SchedulerSettings()


def evidence(gpus: int = 1, **changes: Any) -> Evidence:
    reading = ProbeReading(
        status=ProbeStatus(ProbeCode.OK, ""),
        gpus=tuple(gpu(i) for i in range(gpus)),
        samples={uuid(i): sample(i, **changes.pop(f"sample{i}", {})) for i in range(gpus)},
        taken_at=NOW,
    )
    return Evidence(**{"reading": changes.pop("reading", reading), "store_id": "store", **changes})


def only(found: Evidence) -> GpuView:
    [view] = gpu_views(found, SETTINGS, NOW)
    return view


def with_sample(**changes: Any) -> Evidence:
    return evidence(sample0=changes)


def stranger(**changes: Any) -> GpuProcess:
    fields: dict[str, Any] = {"pid": 4711, "memory": 10 * GIB, "user": "bob", "command": "python"}
    return GpuProcess(**{**fields, **changes})


def test_only_a_fresh_reading_frees_a_gpu() -> None:
    # an idle healthy GPU with a fresh reading is free
    view = only(evidence())
    assert (view.state, view.why, view.holders) == (GpuState.FREE, "", ())
    # a stale reading does not free a GPU
    late = NOW + SETTINGS.stale_after + timedelta(seconds=1)
    [view] = gpu_views(evidence(), SETTINGS, late)
    assert (view.state, view.stale) == (GpuState.UNKNOWN, True)
    assert "6s old" in view.why
    # a reading newer than the end of the last job frees it
    assert only(evidence(freed_at={uuid(0): NOW - timedelta(milliseconds=1)})).state is GpuState.FREE
    # a process list from before the end of the last job does not free it
    old = {"processes_at": NOW - timedelta(seconds=2)}
    assert only(evidence(sample0=old, freed_at={uuid(0): NOW - timedelta(seconds=1)})).state is GpuState.UNKNOWN


NOT_FREE = {
    "held by a job that cannot be read": (
        evidence(unreadable=(Unreadable("job", "7", "newer", (uuid(0),)),)),
        GpuState.UNKNOWN,
        "job 7, which cannot be read, may hold it",
    ),
    "allocated": (evidence(jobs=(running(7, on=[uuid(0)]),)), GpuState.ALLOCATED, "job 7"),
    "lost": (with_sample(health=Health(HealthCode.LOST, "fell off the bus")), GpuState.DRAINED, "fell off the bus"),
    "fatal Xid": (with_sample(health=Health(HealthCode.XID, "Xid 79")), GpuState.DRAINED, "Xid 79"),
    "drained": (
        evidence(controls=Controls(drains={uuid(0): Drain("fan", "root", NOW)})),
        GpuState.DRAINED,
        "drained by root: fan",
    ),
    "no reading": (
        evidence(reading=ProbeReading(ProbeStatus(ProbeCode.OK, ""), (gpu(0),))),
        GpuState.UNKNOWN,
        "not read yet",
    ),
    "probe down": (
        evidence(reading=replace(evidence().reading, status=ProbeStatus(ProbeCode.WEDGED, "the driver hangs"))),
        GpuState.UNKNOWN,
        "the driver hangs",
    ),
    "processes unreadable": (with_sample(processes=None), GpuState.UNKNOWN, "process list"),
    "memory unreadable": (with_sample(memory_used=None), GpuState.UNKNOWN, "memory cannot be read"),
    "memory in use": (with_sample(memory_used=2 * GIB), GpuState.FOREIGN, "2G of its memory"),
    "foreign process": (with_sample(processes=(stranger(),)), GpuState.FOREIGN, "process 4711 (python) of bob"),
    "invisible process": (
        with_sample(processes=(GpuProcess(99, visible=False),)),
        GpuState.FOREIGN,
        "process 99 (unknown) of unknown",
    ),
    "foreign container": (
        evidence(foreign=(ForeignContainer("c" * 64, "vllm", "bob", ("0",)),)),
        GpuState.FOREIGN,
        "container vllm",
    ),
    "containers unknown": (evidence(foreign=None), GpuState.UNKNOWN, "Docker does not answer"),
    "containers of another engine than the queue's": (
        evidence(foreign=None, unseen=why_unseen([RuntimeStatus("docker", False, "another", short="another engine")])),
        GpuState.UNKNOWN,
        "not this queue's engine",
    ),
    "containers not asked for yet": (
        evidence(foreign=None, unseen=UNASKED),
        GpuState.UNKNOWN,
        "asking for other containers",
    ),
    "graphics process with much memory": (
        with_sample(
            processes=(stranger(pid=7, memory=0, compute=False), stranger(compute=False)), memory_used=10 * GIB
        ),
        GpuState.FOREIGN,
        "process 4711 (python) of bob",
    ),
    "no list of processes": (
        with_sample(processes=None, lists_processes=False),
        GpuState.UNKNOWN,
        "scheduler.need_process_lists",
    ),
    "MIG mode without instances": (
        evidence(reading=replace(evidence().reading, gpus=(gpu(0, mig_enabled=True),))),
        GpuState.DRAINED,
        "in MIG mode without instances",
    ),
    "just given back": (evidence(freed_at={uuid(0): NOW}), GpuState.UNKNOWN, "since its last job ended"),
}


@cases("case", NOT_FREE)
def test_each_obstacle_makes_a_gpu_not_free(case: str) -> None:
    found, state, words = NOT_FREE[case]
    view = only(found)
    assert view.state is state
    assert words in view.why


@cases(
    "command",
    ["Xorg", "Xorg :0 -auth /run/user/120/gdm/Xauthority", "nvidia-cuda-mps-server", "nvidia-cuda-mps-control -d"],
)
def test_programs_of_the_desktop_and_of_mps_leave_a_gpu_free(command: str) -> None:
    process = stranger(command=command, memory=3 * GIB)
    assert only(with_sample(processes=(process,), memory_used=3 * GIB)).state is GpuState.FREE
    assert only(with_sample(processes=(process,), memory_used=5 * GIB)).why.startswith("2G of its memory")
    other = replace(process, command=f"python {command}")
    assert only(with_sample(processes=(other,), memory_used=3 * GIB)).state is GpuState.FOREIGN


@cases("entry", ["/usr/lib/xorg/Xorg", "python watch.py"])
def test_ignored_programs_may_be_paths_and_whole_commands(entry: str) -> None:
    settings = SchedulerSettings(ignore_processes=(entry,))
    for command, state in (
        ("Xorg :0", GpuState.FREE if "Xorg" in entry else GpuState.FOREIGN),
        ("python watch.py", GpuState.FREE if "python" in entry else GpuState.FOREIGN),
        ("python train.py", GpuState.FOREIGN),
    ):
        [view] = gpu_views(with_sample(processes=(stranger(command=command, memory=0),)), settings, NOW)
        assert view.state is state


def test_a_gpu_without_memory_of_its_own_is_judged_by_its_processes() -> None:
    unified = replace(evidence().reading, gpus=(gpu(0, unified=True),), samples={uuid(0): sample(memory_used=None)})
    assert only(evidence(reading=unified)).state is GpuState.FREE
    used = replace(unified, samples={uuid(0): sample(memory_used=None, processes=(stranger(memory=None),))})
    assert only(evidence(reading=used)).state is GpuState.FOREIGN


@cases("memory", [20 * GIB, GIB // 4])
def test_a_job_that_uses_a_gpu_which_it_does_not_hold_is_named_there(memory: int) -> None:
    trainer = running(7, on=[uuid(1)])
    process = stranger(container_id="c7", command="python train.py", memory=memory)
    used = {"processes": (process,), "memory_used": memory, "utilization": 0.9}
    views = gpu_views(evidence(gpus=3, sample0=used, sample1=used, jobs=(trainer,)), SETTINGS, NOW)
    assert [view.state for view in views] == [GpuState.FOREIGN, GpuState.ALLOCATED, GpuState.FREE]
    assert views[0].why == "in use by job 7 train, which does not hold it (pid 4711)"
    [holder] = views[0].holders
    assert (holder.kind, holder.name, holder.pid, holder.job_id) == ("process", "job 7 train", 4711, 7)
    assert [view.trespassers for view in views] == [(7,), (), ()]
    assert faulty_gpus(views) == {7: "GPU 0 used without being held"}
    [condition] = [each for each in conditions(snapshot((trainer,), views), NOW) if each.gpu == "0"]
    assert condition.severity == "warning"
    assert condition.text == "GPU 0 is used by job 7 train (pid 4711) of bob; it takes no job"


def test_jobs_beside_others_on_a_gpu() -> None:
    # a job beside another one that holds the GPU is named too
    process = stranger(container_id="c7")
    jobs = (running(7, on=[uuid(1)]), running(8, on=[uuid(0)]))
    view = gpu_views(evidence(gpus=2, sample0={"processes": (process,)}, jobs=jobs), SETTINGS, NOW)[0]
    assert (view.state, view.job_ids, view.trespassers) == (GpuState.ALLOCATED, (8,), (7,))
    assert [holder.name for holder in view.holders] == ["train", "job 7 train"]
    # a job on one instance of a board trespasses on no other: drivers list a job's processes for the whole board, and
    # for instances that share its memory.
    parent, parts = gpu(0, mig_enabled=True), [gpu(each, mig_parent=uuid(0)) for each in (1, 2)]
    used: dict[str, Any] = {"processes": (stranger(container_id="c7"),)}
    reading = replace(evidence().reading, gpus=(parent, *parts), samples={uuid(n): sample(n, **used) for n in range(3)})
    views = gpu_views(evidence(reading=reading, jobs=(running(7, on=[uuid(1)]),)), SETTINGS, NOW)
    assert [view.trespassers for view in views] == [(), (), ()]


def test_a_gpu_cut_into_instances_is_not_free_but_its_instances_are() -> None:
    parent = gpu(0, mig_enabled=True)
    slice_ = gpu(0, uuid="MIG-1", mig_parent=uuid(0), mig_profile="1g.10gb")
    reading = replace(
        evidence().reading,
        gpus=(parent, slice_),
        samples={uuid(0): sample(0), "MIG-1": replace(sample(0), uuid="MIG-1")},
    )
    assert [view.state for view in gpu_views(evidence(reading=reading), SETTINGS, NOW)] == [
        GpuState.DRAINED,
        GpuState.FREE,
    ]


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(stranger(container_id="c7"), id="container"),
        pytest.param(stranger(attempt="store:7:1"), id="tag"),
        pytest.param(stranger(session=1234), id="session"),
    ],
)
def test_a_process_of_the_job_itself_is_not_foreign(process: GpuProcess) -> None:
    found = evidence(jobs=(running(7, on=[uuid(0)]),), sessions={1234: 7}, sample0={"processes": (process,)})
    assert [holder.kind for holder in only(found).holders] == ["job"]


@cases("tag", ["other:7:1", "store:7:2", "store:8:1"])
def test_a_process_of_another_store_job_or_attempt_is_a_stranger(tag: str) -> None:
    found = evidence(jobs=(running(7, on=[uuid(0)]),), sample0={"processes": (stranger(attempt=tag),)})
    assert [holder.kind for holder in only(found).holders] == ["job", "process"]


@cases(
    ("user", "kinds"),
    [("alice", ["job"]), ("root", ["job"]), (None, ["job"]), ("bob", ["job", "process"])],
)
def test_the_variable_of_a_job_proves_nothing_in_a_process_of_another_user(user: str | None, kinds: list[str]) -> None:
    job = running(7, on=[uuid(0)], submitted_by="alice", submitted_uid=1001)
    found = evidence(jobs=(job,), sample0={"processes": (stranger(attempt="store:7:1", user=user),)})
    assert [holder.kind for holder in only(found).holders] == kinds


def test_what_is_shown_of_others_on_a_gpu() -> None:
    # processes that draw or are known to be harmless do not make it busy
    harmless = (stranger(compute=False), stranger(command="Xorg"))
    assert only(with_sample(processes=harmless)).state is GpuState.FREE
    # the foreign container is named on its row
    found = evidence(foreign=(ForeignContainer("c" * 64, "vllm", "bob", (uuid(0),)),))
    [holder] = only(found).holders
    assert (holder.kind, holder.name, holder.user) == ("container", "vllm", "bob")
    # a GPU held by a job is shown even when the driver lists nothing
    gone = ProbeReading(ProbeStatus(ProbeCode.NO_LIBRARY, "no driver"))
    view = only(evidence(reading=gone, jobs=(running(7, on=[uuid(3)]),)))
    assert (view.state, view.job_id, view.gpu.uuid) == (GpuState.ALLOCATED, 7, uuid(3))


GPUS = tuple(gpu(i) for i in range(4))


@cases(
    ("devices", "meant"),
    [
        (("all",), {0, 1, 2, 3}),
        (("1",), {1}),
        (("0", "3"), {0, 3}),
        ((uuid(2),), {2}),
        ((uuid(2)[:12],), {2}),
        (("minor:3",), {3}),
        (("1:0",), {1}),
        (("9", "none", ""), set()),
    ],
)
def test_devices_are_resolved_as_containers_name_them(devices: tuple[str, ...], meant: set[int]) -> None:
    assert resolve_devices(devices, GPUS) == {uuid(i) for i in meant}


def test_a_whole_gpu_means_its_instances_and_an_instance_its_gpu() -> None:
    slices = (gpu(0, mig_enabled=True), gpu(0, uuid="MIG-aaaa", mig_parent=uuid(0)), gpu(1))
    assert resolve_devices(["0"], slices) == {uuid(0), "MIG-aaaa"}
    assert resolve_devices(["MIG-aaaa"], slices) >= {uuid(0), "MIG-aaaa"}
    assert uuid(1) not in resolve_devices(["MIG-aaaa"], slices)
