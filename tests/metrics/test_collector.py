"""Samples of a snapshot: unknown values are omitted, figures agree with the queue, and names are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector

from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.event import JobChanges
from gputui.domain.gpu import (
    DiskUse,
    Drain,
    Gpu,
    GpuSample,
    GpuState,
    Health,
    HealthCode,
    Holder,
    HostSample,
    ProbeCode,
    ProbeStatus,
)
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.kept_data import BackupRecord
from gputui.domain.policy.cluster_state import fair_share_factor
from gputui.domain.policy.plan import plan
from gputui.domain.policy.queue_order import tenant_usage
from gputui.domain.settings import HookSettings, MetricsSettings, PolicySettings, Settings, TenantSettings
from gputui.domain.snapshot import Controls, Node, Notice, Snapshot, Usage
from gputui.domain.state import JobState
from gputui.metrics import families
from gputui.metrics.collector import SnapshotCollector
from gputui.metrics.exporter import Exporter, MetricsRecorder
from gputui.metrics.families import FAMILIES, GPU_LABELS, Kind, TenantLabels
from tests.cases import cases
from tests.factories import GIB, NOW, FakeClock, array, gpu, job, running, sample, snapshot, uuid, view
from tests.metrics.scraped import Scrape, scrape_of

DEFAULTS = Settings()
UP = (RuntimeStatus("docker", True, "Docker"), RuntimeStatus("process", True, "host"))


class Monitored:
    """Collector and counters of a term, without a port."""

    def __init__(
        self,
        jobs: Iterable[Job] = (),
        settings: Settings = DEFAULTS,
        tenants: int = 50,
        now: Callable[[], datetime] = lambda: NOW,
    ) -> None:
        self.registry = CollectorRegistry()
        labels = TenantLabels(tenants, (tenant.name for tenant in settings.policy.tenants))
        self.settings = settings
        self.collector = SnapshotCollector(settings, labels, now, "store")
        self.registry.register(self.collector)
        self.recorder = MetricsRecorder(self.registry, labels)
        self._jobs = JobChanges(jobs)
        self.collector.begin(self._jobs.jobs.values())

    def see(self, shown: Snapshot) -> Scrape:
        """Publish a snapshot with its plan, and scrape."""
        decided = plan(shown, self.settings, NOW)
        shown = replace(shown, order=decided.order, reasons=decided.reasons, fragmentation=decided.fragmentation)
        update = self._jobs.update(shown.jobs)
        self.collector.update(shown, update, self._jobs.jobs)
        self.recorder.published(shown, update.changes, self._jobs.jobs)
        return scrape_of(self.registry)


def scraped(shown: Snapshot, **settings: Any) -> Scrape:
    return Monitored(settings=Settings(**settings)).see(shown)


def on_node(*views: Any, jobs: tuple[Job, ...] = (), **changes: Any) -> Snapshot:
    fields = {"probe": ProbeStatus(ProbeCode.OK, ""), "driver_version": "570.86", **changes}
    return snapshot(jobs, views, nodes=(Node("gpu1", tuple(views), **fields),), leads_here=True)


def test_readings_are_in_base_units_under_labels_in_snake_case() -> None:
    read = sample(0, utilization=0.5, memory_used=3 * GIB, sm_clock=345, ecc_corrected=7, throttle=("HwSlowdown",))
    found = scraped(on_node(view(0, sample=read)))
    labels = {"gpu": "0", "UUID": uuid(0), "model": "NVIDIA H100 80GB HBM3", "hostname": "gpu1"}
    assert found.value("gputui_gpu_utilization_ratio", **labels) == 0.5
    assert found.value("gputui_gpu_memory_used_bytes", **labels) == 3 * GIB
    assert found.value("gputui_gpu_sm_clock_hertz", **labels) == 345e6
    assert found.value("gputui_gpu_ecc_errors_total", type="corrected", **labels) == 7
    assert found.value("gputui_gpu_throttled", reason="HwSlowdown", **labels) == 1
    assert found.value("gputui_gpu_info", pci_bus_id="00000000:10:00.0", driver_version="570.86", **labels) == 1
    assert found.value("gputui_nvml_up") == 1
    assert found.value("gputui_probe_age_seconds") == 0
    assert set(found.labels("gputui_gpu_power_watts")[0]) == set(GPU_LABELS)


def test_unknown_values_are_omitted_instead_of_zero() -> None:
    nothing = view(0, sample=GpuSample(uuid(0), NOW))
    found = scraped(on_node(nothing, view(1, GpuState.UNKNOWN, sample=None, age=None), probe=ProbeStatus()))
    left_out = [
        family for family in FAMILIES if family.name.startswith("gputui_gpu_") and family.labels[:4] == GPU_LABELS
    ]
    shown = {family.name for family in left_out if found.labels(family.name)}
    assert shown == {"gputui_gpu_info", "gputui_gpu_up", "gputui_gpu_healthy", "gputui_gpu_health", "gputui_gpu_state"}
    assert found.value("gputui_gpu_up", gpu="0") == 1
    assert found.value("gputui_gpu_up", gpu="1") == 0
    assert not found.labels("gputui_nvml_up")
    assert not found.labels("gputui_host_cpu_ratio")
    assert not found.labels("gputui_runtime_up")


@cases("changes", [{"stale": True}, {"health": Health(HealthCode.LOST, "fell off the bus")}])
def test_a_gpu_that_is_lost_or_stale_is_down_and_shows_no_old_readings(changes: dict[str, Any]) -> None:
    found = scraped(on_node(view(0, GpuState.UNKNOWN, **changes)))
    assert found.value("gputui_gpu_up", UUID=uuid(0)) == 0
    assert not found.labels("gputui_gpu_power_watts")


def test_jobs_on_gpus_and_instances_are_labelled() -> None:
    it = running(3, on=[uuid(0)], name="train\n\x1b[31m", tenant="bob")
    held = view(0, GpuState.ALLOCATED, job_id=3, job_ids=(3,))
    found = scraped(replace(on_node(held), jobs=(it,)))
    [labels] = found.labels("gputui_gpu_job_info")
    wanted = {"UUID": uuid(0), "job_id": "3", "tenant": "bob", "container": "gputui-store-3-1", "container_id": "c3"}
    assert wanted.items() <= labels.items()
    assert labels["job_name"].isprintable()
    assert found.value("gputui_gpu_allocation_ratio") == 1
    parent = view(0, GpuState.UNKNOWN, gpu=gpu(0, mig_enabled=True))
    instance = Gpu("MIG-1", 0, "NVIDIA H100", mig_parent=uuid(0), mig_profile="1g.10gb", mig_index=2)
    found = scraped(on_node(parent, view(1, gpu=instance, sample=replace(sample(1), uuid="MIG-1"))))
    assert found.value("gputui_gpus", state="FREE") == 1
    assert found.value("gputui_gpus", state="UNKNOWN") == 0
    [labels] = [each for each in found.labels("gputui_gpu_power_watts") if each["UUID"] == "MIG-1"]
    assert (labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == ("1g.10gb", "2")


def test_jobs_are_counted_by_tenant_and_state_and_elements_one_by_one() -> None:
    jobs = (job(1, gpus=9), job(2, tenant="bob", held=True), array(range(5), first=7, tenant="bob", gpus=9))
    found = scraped(on_node(*map(view, range(4)), jobs=jobs, runtimes=UP))
    assert found.value("gputui_jobs", tenant="alice", state="PENDING") == 1
    assert found.value("gputui_jobs", tenant="bob", state="PENDING") == 6
    assert found.value("gputui_jobs_gated", reason="JobHeldUser") == 1
    assert found.value("gputui_jobs_eligible", tenant="bob") == 5


def test_the_backlog_is_the_demand_of_eligible_jobs() -> None:
    hour = timedelta(hours=1)
    everything = GpuRequest(1, 1, everything=True)
    jobs = (
        job(1, gpus=2, time_limit=hour, age=30),
        job(2, gpus=2),
        job(3, gpus=1, time_limit=hour, begin_at=NOW + hour),
        array(range(3), first=4, gpus=1, time_limit=hour, tenant="bob"),
        job(9, tenant="bob", time_limit=hour).evolve(
            spec=replace(job(9).spec, tenant="bob", time_limit=hour, gpus=everything)
        ),
    )
    monitored = Monitored(jobs[:1], Settings(policy=PolicySettings(max_time=2 * hour)))
    taken = [view(index, GpuState.FOREIGN) for index in range(4)]
    found = monitored.see(on_node(*taken, jobs=jobs, runtimes=UP))
    assert found.value("gputui_backlog_gpu_seconds", tenant="alice") == 2 * 3600 + 2 * 7200
    assert found.value("gputui_backlog_gpu_seconds", tenant="bob") == 3 * 3600 + 4 * 3600
    assert found.value("gputui_jobs_oldest_eligible_wait_seconds") == 30
    found = monitored.see(snapshot((), 4))
    assert found.value("gputui_backlog_gpu_seconds", tenant="alice") == 0
    assert found.value("gputui_jobs", tenant="alice", state="PENDING") == 0


def test_use_and_fair_share_agree_with_the_plan() -> None:
    started = NOW - timedelta(hours=10)
    done = running(1, on=[uuid(0), uuid(1)]).with_attempt(started_at=started, ended_at=NOW - timedelta(hours=9))
    jobs = (done.evolve(state=JobState.COMPLETED, ended_at=NOW), running(2, on=[uuid(2)], tenant="bob"))
    shown = snapshot(jobs, 4, usage=Usage(NOW - timedelta(days=7), {"carol": 100.0}))
    settings = Settings(policy=PolicySettings(tenants=(TenantSettings("bob", 2.0, 3, 4, 5, 60),)))
    monitored = Monitored((), settings)
    monitored.see(snapshot((jobs[0], job(7))))  # others before: what they used is taken away again
    found = monitored.see(shown)
    for use in tenant_usage(shown, settings, NOW):
        name = use.tenant.name
        assert found.value("gputui_tenant_usage_gpu_seconds", tenant=name) == pytest.approx(use.gpu_seconds), name
        assert found.value("gputui_tenant_fair_share_ratio", tenant=name) == pytest.approx(use.fair_share), name
        assert found.value("gputui_tenant_gpus", tenant=name) in {use.gpus, None}
    caps = ("weight", "gpus_limit", "running_jobs_limit", "pending_jobs_limit", "priority_limit")
    assert [found.value(f"gputui_tenant_{cap}", tenant="bob") for cap in caps] == [2, 3, 4, 5, 60]
    assert found.value("gputui_tenant_gpus_limit", tenant="alice") is None
    assert fair_share_factor(0) == 1


def test_tenants_beyond_the_limit_are_other_and_series_bounded() -> None:
    jobs = tuple(job(number, tenant=f"t{number}", gpus=1) for number in range(1, 1001))
    found = Monitored(tenants=3).see(snapshot(jobs))
    states = {labels["tenant"]: found.value("gputui_jobs", **labels) for labels in found.labels("gputui_jobs")}
    assert states == {"t1": 1, "t2": 1, "t3": 1, "other": 997}
    assert sum(filter(None, states.values())) == 1000
    assert found.count < 400
    entries = [array(range(50), first=1 + 50 * number, tenant=f"t{number}", gpus=1) for number in range(2000)]
    monitored = Monitored()
    small = monitored.see(snapshot(entries[:100])).count
    found = monitored.see(snapshot(entries))
    assert found.value("gputui_jobs", tenant="other", state="PENDING") == 50 * 1950
    assert found.value("gputui_jobs_submitted_total", tenant="other") == 50 * 1950
    assert found.count == small < 2000


def test_notices_pause_runtimes_and_the_host_are_shown() -> None:
    disk = DiskUse("/data", ("state", "docker"), 1000, 250)
    host = HostSample(sampled_at=NOW, cpu=0.25, cores=64, load=3.0, memory_total=512 * GIB, disks=(disk,))
    up = (RuntimeStatus("docker", False, "down"), RuntimeStatus("process", True, "host"))
    shown = replace(
        on_node(
            host=host,
            runtimes=(*up, RuntimeStatus("new", False, "", asked=False)),
            probe=ProbeStatus(ProbeCode.WEDGED, "hangs"),
        ),
        notices=(Notice("error", "disk full", halts=True), Notice("warning", "slow")),
    )
    found = scraped(shown)
    assert found.value("gputui_runtime_up", runtime="docker") == 0
    assert found.value("gputui_runtime_up", runtime="process") == 1
    assert found.value("gputui_runtime_up", runtime="new") is None
    assert found.value("gputui_nvml_up") == 0
    assert found.value("gputui_disk_free_bytes", role="docker", mount="/data") == 250
    assert found.value("gputui_host_cpu_ratio") == 0.25
    assert found.value("gputui_scheduler_halted") == 1
    assert found.value("gputui_notices", severity="error") == 3, "the disk, the engine, and the driver"
    assert found.value("gputui_notices", severity="warning") == 1
    assert found.value("gputui_notices", severity="information") == 0


LOST = Health(HealthCode.LOST, "lost: the driver cannot reach it")
SICK = Health(HealthCode.XID, "Xid 48: double-bit ECC error")
JUPYTER = Holder("container", "jupyter-carol", user="carol", image="jupyter")
FAN = Drain("fan noise", "alice", NOW)
HOST = HostSample(sampled_at=NOW, cpu=0.25, cores=64, load=3.0)
PROBLEMS: dict[str, tuple[str, Snapshot]] = {
    "lost GPU": ("error", on_node(view(0, GpuState.UNKNOWN, health=LOST, sample=None))),
    "sick GPU": ("error", on_node(view(0, GpuState.UNKNOWN, health=SICK))),
    "GPU that is not read": ("warning", on_node(view(0, stale=True))),
    "GPU shared with a stranger": (
        "warning",
        on_node(view(0, GpuState.ALLOCATED, job_id=1, holders=(JUPYTER,)), jobs=(running(1, on=[uuid(0)]),)),
    ),
    "GPU in foreign use": ("information", on_node(view(0, GpuState.FOREIGN, holders=(JUPYTER,)))),
    "drained GPU": ("information", on_node(view(0, GpuState.DRAINED, drain=FAN))),
    "hung driver": ("error", on_node(probe=ProbeStatus(ProbeCode.WEDGED, "hangs"))),
    "engine down": ("error", on_node(runtimes=(RuntimeStatus("docker", False, "down"),))),
    "full disk": ("error", on_node(host=replace(HOST, disks=(DiskUse("/data", ("state",), 1000, 0),)))),
    "disk that is almost full": (
        "warning",
        on_node(host=replace(HOST, disks=(DiskUse("/data", ("docker",), 1000, 20),))),
    ),
    "failed job": (
        "warning",
        on_node(jobs=(running(1, on=[uuid(0)]).evolve(state=JobState.FAILED, ended_at=NOW, exit_code=1),)),
    ),
    "paused queue": ("warning", replace(on_node(), controls=Controls(paused=True))),
}


@cases("name", PROBLEMS)
def test_what_the_console_calls_a_problem_is_counted_as_one(name: str) -> None:
    severity, shown = PROBLEMS[name]
    found = scraped(shown)
    counts = {each: found.value("gputui_notices", severity=each) for each in ("error", "warning", "information")}
    assert counts == {**dict.fromkeys(counts, 0), severity: 1}


def test_a_throttled_gpu_is_a_problem() -> None:
    slowed = on_node(view(0, sample=sample(0, throttle=("HW thermal slowdown",))))
    monitored = Monitored(now=FakeClock().now)
    assert monitored.see(on_node(view(0))).value("gputui_notices", severity="error") == 0
    assert monitored.see(slowed).value("gputui_notices", severity="error") == 1


def test_dcgm_names_have_its_units_and_a_series_for_each_job_on_a_gpu() -> None:
    held = view(0, GpuState.ALLOCATED, job_ids=(3, 4), sample=sample(0, utilization=0.5, memory_used=GIB))
    jobs = (running(3, on=[uuid(0)]), running(4, on=[uuid(0)]))
    shown = replace(on_node(held, view(1)), jobs=jobs)
    assert not scraped(shown).labels("DCGM_FI_DEV_GPU_UTIL")
    found = scraped(shown, metrics=MetricsSettings(dcgm=True))
    assert found.value("DCGM_FI_DEV_GPU_UTIL", hpc_job="3", device="nvidia0") == 50
    assert found.value("DCGM_FI_DEV_FB_USED", hpc_job="4") == 1024
    assert found.value("DCGM_FI_DEV_POWER_USAGE", gpu="1") == 70
    assert "hpc_job" not in next(each for each in found.labels("DCGM_FI_DEV_GPU_TEMP") if each["gpu"] == "1")


def test_counters_count_each_start_end_retry_and_preemption_once() -> None:
    first = running(1, on=[uuid(0)], tenant="bob")
    monitored = Monitored([first])
    failed = first.with_attempt(ended_at=NOW, cause=Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"))
    found = monitored.see(snapshot((failed.evolve(state=JobState.PENDING), job(2, tenant="bob"))))
    assert found.value("gputui_attempts_ended_total", cause="NonZeroExit") == 1
    assert found.value("gputui_job_retries_total", cause="NonZeroExit") == 1
    assert found.value("gputui_jobs_submitted_total", tenant="bob") == 1
    assert found.value("gputui_attempts_started_total", tenant="bob") == 0
    assert found.value("gputui_jobs_ended_total", tenant="bob", state="FAILED") == 0
    assert found.value("gputui_job_run_seconds_sum") == 60
    last = replace(failed, state=JobState.FAILED, ended_at=NOW)
    stopped = running(2, on=[uuid(1)], tenant="bob").with_attempt(
        ended_at=NOW, cause=Cause(CauseCode.PREEMPTED, "made way")
    )
    found = monitored.see(snapshot((last, stopped.evolve(state=JobState.PENDING))))
    assert found.value("gputui_jobs_ended_total", tenant="bob", state="FAILED") == 1
    assert found.value("gputui_job_preemptions_total", tenant="bob") == 1
    assert found.value("gputui_job_retries_total", cause="NonZeroExit") == 1
    assert found.value("gputui_attempts_started_total", tenant="bob") == 1
    assert (
        found.value("gputui_job_wait_seconds_count")
        == found.value("gputui_tenant_wait_seconds_count", tenant="bob")
        == 1
    )
    assert found.value("gputui_attempts_ended_total", cause="Completed") == 0


def test_counters_of_causes_and_known_tenants_begin_at_0_with_the_process(tmp_path: Path) -> None:
    """Or `increase` in Prometheus would leave out the first retries of a cause and the first jobs of a tenant."""
    policy = PolicySettings(tenants=(TenantSettings("alice"),))
    hooks = HookSettings(on_job_end=("true",))
    settings = Settings(policy=policy, metrics=MetricsSettings(listen="0"), hooks=hooks)
    exporter = Exporter(settings, tmp_path, [job(1, tenant="bob")])
    try:
        found = scrape_of(exporter.registry)
    finally:
        exporter.close()
    assert found.value("gputui_job_retries_total", cause="NonZeroExit") == 0
    assert found.value("gputui_job_retries_total", cause="GpuLost") == 0
    for result in ("ok", "failed", "dropped"):
        assert found.value("gputui_hook_deliveries_total", hook="on_job_end", result=result) == 0
    for tenant in ("alice", "bob"):
        assert found.value("gputui_jobs_submitted_total", tenant=tenant) == 0
        assert found.value("gputui_tenant_wait_seconds_count", tenant=tenant) == 0


def test_counters_of_calls_begin_at_0_before_the_first_call() -> None:
    """Or `increase` in Prometheus would leave out the calls before the first scrape that shows them."""
    found = Monitored().see(on_node(runtimes=UP))
    for runtime in ("docker", "process"):
        assert found.value("gputui_runtime_calls_total", runtime=runtime, call="create", result="ok") == 0


def test_counters_of_results_begin_at_0_with_the_first_call_and_the_first_delivery() -> None:
    """Or `increase` in Prometheus would not show the first error."""
    monitored = Monitored()
    monitored.recorder.called("docker", "containers", "ok", 0.1)
    monitored.recorder.delivered("mail", "ok")
    found = scrape_of(monitored.registry)
    calls = {(call, result): 0.0 for call in ("create", "remove") for result in ("ok", "error", "unavailable")}
    for (call, result), count in (calls | {("containers", "ok"): 1.0}).items():
        assert found.value("gputui_runtime_calls_total", runtime="docker", call=call, result=result) == count
    for result, count in (("ok", 1), ("failed", 0), ("dropped", 0)):
        assert found.value("gputui_hook_deliveries_total", hook="mail", result=result) == count


def test_gpu_time_agrees_with_the_attempts_and_never_falls() -> None:
    it = running(1, on=[uuid(0), uuid(1)])
    monitored = Monitored([it])

    def seconds_at(second: float, job_now: Job) -> float | None:
        held = [view(index, GpuState.ALLOCATED, job_ids=(1,)) for index in range(2)] if job_now.gpus else []
        shown = snapshot([job_now], held, taken_at=NOW + timedelta(seconds=second))
        return monitored.see(shown).value("gputui_gpu_allocated_seconds_total", tenant="alice")

    assert seconds_at(0, it) == 0  # it began before this scheduler did
    assert seconds_at(10, it) == 20
    over = it.with_attempt(ended_at=NOW + timedelta(seconds=9)).evolve(state=JobState.PENDING)
    assert seconds_at(11, over) == 20  # 18 in truth: a counter must not fall
    second = Attempt(2, (uuid(0),), started_at=NOW + timedelta(seconds=12))
    again = over.evolve(state=JobState.RUNNING, attempts=(*over.attempts, second))
    assert seconds_at(13, again) == 20
    assert seconds_at(20, again) == 18 + 8


def test_every_scraped_family_is_in_the_table_with_its_type_and_labels(tmp_path: Path) -> None:
    monitored = Monitored()
    recorder = monitored.recorder
    recorder.took("tick", 0.1)
    recorder.took("plan", 0.1)
    recorder.wrote(0.1)
    recorder.failed("a tick")
    recorder.called("docker", "start", "ok", 0.1)
    recorder.delivered("webhook", "ok")
    table = {family.name.removesuffix("_total"): family for family in FAMILIES}
    held = view(0, GpuState.ALLOCATED, job_ids=(1,))
    found = monitored.see(snapshot([running(1, on=[uuid(0)])], [held], nodes=(Node("gpu1", (held,)),)))
    ProcessCollector(registry=monitored.registry)
    for name, family in found.families.items():
        assert family.type == table[name].kind, name
        labels = set().union(*(each.labels for each in family.samples)) - {"le", "quantile"}
        assert labels <= set(table[name].labels), name
    assert len(table) == len(FAMILIES)
    assert all((family.kind is Kind.COUNTER) == family.name.endswith("_total") for family in FAMILIES)
    assert families.WAIT.unit == "seconds"
    assert families.ECC.unit == ""
    assert families.LAST_TICK.unit == "seconds since 1970"


def test_a_failed_backup_is_seen_with_the_time_of_the_last_good_one() -> None:
    site = Monitored()
    assert site.see(snapshot()).value("gputui_backup_up") is None
    earlier = NOW - timedelta(days=1)
    site.collector.backup = BackupRecord(NOW, "/backup", "queue.json is damaged", earlier)
    found = site.see(snapshot())
    assert found.value("gputui_backup_up") == 0
    assert found.value("gputui_backup_last_success_timestamp_seconds") == earlier.timestamp()
    site.collector.backup = BackupRecord(NOW, "/backup", good_at=NOW)
    assert site.see(snapshot()).value("gputui_backup_up") == 1
