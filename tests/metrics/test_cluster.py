"""Metrics of a cluster: jobs and GPUs of all its nodes, without what only the queue of one machine has."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections import Counter
from datetime import timedelta
from threading import Event, Thread

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gputui.bootstrap import clusters
from gputui.console import cluster_serving
from gputui.domain.gpu import ProbeCode, ProbeStatus
from gputui.domain.job_spec import Submission
from gputui.metrics.families import FAMILIES
from tests.cluster.commands import Run
from tests.cluster.conftest import alone, clock, cluster, run, use
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, sample, spec
from tests.metrics.scraped import Scrape
from tests.metrics.test_collector import scraped

__all__ = ["alone", "clock", "cluster", "run", "use"]
OF_ONE_MACHINE = (
    "gputui_tenant_fair_share_ratio",
    "gputui_gpus_fragmented",
    "gputui_host_cpu_ratio",
    "gputui_nvml_up",
    "gputui_scheduler_paused",
    "gputui_store_size_bytes",
)


def busy_cluster() -> FakeCluster:
    made = FakeCluster(FakeClock())
    made.submit([Submission(replace(spec(gpus=2), tenant="lab"))] * 4, "key")
    return made


def has_no_twins(found: Scrape) -> bool:
    counts = Counter(
        (each.name, *sorted(each.labels.items())) for family in found.families.values() for each in family.samples
    )
    return set(counts.values()) == {1}


def test_gpus_of_all_nodes_are_counted_once() -> None:
    found = scraped(busy_cluster().snapshot())
    assert has_no_twins(found)
    assert found.value("gputui_gpus", state="ALLOCATED") == 6
    assert found.value("gputui_gpu_allocation_ratio") == 1
    assert found.value("gputui_jobs", tenant="lab", state="RUNNING") == 3
    assert found.value("gputui_jobs", tenant="lab", state="PENDING") == 1
    assert found.value("gputui_runtime_up", runtime="slurm") == 1
    assert {each["hostname"] for each in found.labels("gputui_gpu_state")} == {"gpu1", "gpu2", "gpu3"}
    [job] = [each for each in found.labels("gputui_gpu_job_info") if each["UUID"] == "gpu1:0"]
    assert (job["job_id"], job["tenant"], job["container"]) == ("1", "lab", "")


def test_what_only_one_machine_has_is_left_out() -> None:
    assert {family.name for family in FAMILIES} >= set(OF_ONE_MACHINE)
    found = scraped(busy_cluster().snapshot())
    assert [name for name in OF_ONE_MACHINE if found.labels(name)] == []


def test_a_gpu_that_nobody_reads_is_neither_up_nor_down() -> None:
    snapshot = busy_cluster().snapshot()
    assert not scraped(snapshot).labels("gputui_gpu_up")
    first = snapshot.nodes[0]
    read = [replace(view, sample=replace(sample(0), uuid=view.gpu.uuid), age=None) for view in first.gpus]
    node = replace(first, gpus=tuple(read), probe=ProbeStatus(ProbeCode.OK, ""))
    found = scraped(replace(snapshot, nodes=(node, *snapshot.nodes[1:])))
    assert {each["hostname"] for each in found.labels("gputui_gpu_up")} == {"gpu1"}


def test_a_silent_engine_is_down_and_its_last_figures_are_left_out() -> None:
    snapshot = busy_cluster().snapshot()
    assert snapshot.leader is not None
    silent = replace(snapshot, leader=replace(snapshot.leader, silent_for=timedelta(seconds=5)))
    found = scraped(silent)
    assert found.value("gputui_runtime_up", runtime="slurm") == 0
    assert not found.labels("gputui_jobs")
    assert not found.labels("gputui_gpus")


def test_serve_serves_metrics_until_it_is_stopped(
    run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    is_open = Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        if "http" in sentence:
            is_open.set()

    monkeypatch.setattr(cluster_serving, "say", say)
    monkeypatch.setattr(clusters, "name", lambda store: "lab")
    pages: list[str] = []

    def scrape() -> None:
        try:
            if is_open.wait(60):
                address = re.findall(r"http://\S+", " ".join(said))[0]
                with urllib.request.urlopen(address, timeout=60) as answer:
                    pages.append(answer.read().decode())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    worker = Thread(target=scrape)
    worker.start()
    result = run("serve", "--metrics", "127.0.0.1:0")
    worker.join()
    assert result.code == 0, result.err
    [page] = pages
    families = {family.name for family in text_string_to_metric_families(page)}
    assert {"gputui_gpus", "gputui_runtime_up", "gputui_jobs_submitted"} <= families


def test_serve_without_metrics_has_nothing_to_do(run: Run, cluster: FakeCluster) -> None:
    result = run("serve")
    assert (result.code, result.out) == (1, "")
    assert "the engine schedules" in result.err
    assert "gputui serve --metrics" in result.err
