"""Metrics of a cluster: jobs and GPUs of all its nodes, without what only the queue of one machine has."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gputui.config import Options, ProbeSpec
from gputui.console import serving
from gputui.domain.action import DrainGpus, Hold
from gputui.domain.gpu import ProbeCode, ProbeStatus
from gputui.domain.job_spec import Submission
from gputui.domain.settings import MetricsSettings, Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.engine.cluster.poll import ClusterPoll
from gputui.engine.cluster.queue import EngineQueue
from gputui.engine.feed import Feed
from gputui.metrics.exporter import Exporter
from gputui.metrics.families import FAMILIES
from tests.cluster.commands import Run
from tests.cluster.conftest import alone, clock, cluster, run, use
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, sample, spec
from tests.metrics.prometheus import Prometheus
from tests.metrics.scraped import Scrape
from tests.metrics.test_collector import scraped
from tests.metrics.test_provisioning import QUERIES, filled
from tests.metrics.test_serve import PATIENCE

__all__ = ["alone", "clock", "cluster", "run", "use"]
OF_ONE_MACHINE = (
    "gputui_tenant_fair_share_ratio",
    "gputui_gpus_fragmented",
    "gputui_host_cpu_ratio",
    "gputui_nvml_up",
    "gputui_scheduler_paused",
    "gputui_store_size_bytes",
)


PANELS_OF_ONE_MACHINE = (
    "server:",
    "queue: Stranded GPUs",
    "tenant: GPUs held {{tenant}} cap",
    "tenant: Use that fair share counts",
    "tenant: Fair share",
)
"""Beginnings of the titles of panels that show nothing of a cluster."""


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
    [job] = [each for each in found.labels("gputui_gpu_job_info") if (each["hostname"], each["gpu"]) == ("gpu1", "0")]
    assert (job["job_id"], job["tenant"], job["container"]) == ("1", "lab", "")


def test_what_nobody_reads_is_neither_healthy_nor_up_nor_down() -> None:
    cluster = busy_cluster()
    unread = scraped(cluster.snapshot())
    assert {each["UUID"] for each in unread.labels("gputui_gpu_state")} == {""}
    assert [unread.labels(f"gputui_gpu_{name}") for name in ("healthy", "health", "up")] == [[], [], []]
    read = scraped(read_cluster(cluster, cluster.snapshot().taken_at))
    assert len(read.labels("gputui_gpu_healthy")) == len(read.labels("gputui_gpu_state"))
    assert {each["code"] for each in read.labels("gputui_gpu_health")} == {"Ok"}
    snapshot = busy_cluster().snapshot()
    assert not scraped(snapshot).labels("gputui_gpu_up")
    first = snapshot.nodes[0]
    views = [replace(view, sample=replace(sample(0), uuid=view.gpu.uuid), age=None) for view in first.gpus]
    node = replace(first, gpus=tuple(views), probe=ProbeStatus(ProbeCode.OK, ""))
    found = scraped(replace(snapshot, nodes=(node, *snapshot.nodes[1:])))
    assert {each["hostname"] for each in found.labels("gputui_gpu_up")} == {"gpu1"}


def test_what_a_cluster_lacks_and_what_is_silent_is_left_out() -> None:
    assert {family.name for family in FAMILIES} >= set(OF_ONE_MACHINE)
    found = scraped(busy_cluster().snapshot())
    assert [name for name in OF_ONE_MACHINE if found.labels(name)] == []
    snapshot = busy_cluster().snapshot()
    assert snapshot.leader is not None
    silent = replace(snapshot, leader=replace(snapshot.leader, silent_for=timedelta(seconds=5)))
    found = scraped(silent)
    assert found.value("gputui_runtime_up", runtime="slurm") == 0
    assert not found.labels("gputui_jobs")
    assert not found.labels("gputui_gpus")


def read_cluster(made: FakeCluster, at: datetime, load: float = 0.5) -> Snapshot:
    """Return a snapshot of the cluster with readings of all nodes."""
    snapshot = replace(made.snapshot(), taken_at=at)

    reading = sample(at=at, utilization=load, sm_activity=load, ecc_corrected=1)

    def read(node: Node) -> Node:
        views = (replace(view, sample=replace(reading, uuid=view.gpu.uuid), age=timedelta()) for view in node.gpus)
        return replace(node, gpus=tuple(views), probe=ProbeStatus(ProbeCode.OK, ""), driver_version="580.1")

    return replace(snapshot, nodes=tuple(map(read, snapshot.nodes)))


def test_nodes_are_up_or_down_drained_and_read_or_not() -> None:
    made = busy_cluster()
    made.act(DrainGpus(("gpu2",), "fan"))
    made.lose_node("gpu3")
    read = read_cluster(made, FakeClock().now() - timedelta(seconds=5))
    nodes = read.nodes
    lost = replace(nodes[2], probe=ProbeStatus(ProbeCode.UNREACHABLE, "no readings: ssh cannot connect"))
    found = scraped(replace(read, nodes=(nodes[0], made.snapshot().nodes[1], lost)))
    shown = {
        name: {each["hostname"]: found.value(name, hostname=each["hostname"]) for each in found.labels(name)}
        for name in ("gputui_node_up", "gputui_node_drained", "gputui_node_probe_up", "gputui_node_probe_age_seconds")
    }
    assert shown == {
        "gputui_node_up": {"gpu1": 1, "gpu2": 1, "gpu3": 0},
        "gputui_node_drained": {"gpu1": 0, "gpu2": 1, "gpu3": 1},
        "gputui_node_probe_up": {"gpu1": 1, "gpu3": 0},
        "gputui_node_probe_age_seconds": {"gpu1": 5, "gpu3": 5},
    }


def test_serve_serves_metrics_until_it_is_stopped(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path))
    said: list[str] = []
    is_open = Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        if "http" in sentence:
            is_open.set()

    monkeypatch.setattr(serving, "say", say)
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


class Watching:
    """Process over a cluster that serves its metrics when its turn comes."""

    def __init__(self, made: FakeCluster, state: Path, listen: str = "0") -> None:
        settings = Settings(metrics=MetricsSettings(enabled=True, listen=listen))
        self.said: SimpleQueue[str] = SimpleQueue()
        self.feed = Feed()
        ticks = count(0, 10)
        queue = EngineQueue(made, lambda: float(next(ticks)), directory=state / "clusters")
        options = Options(state, probe=ProbeSpec(), settings=settings)
        self._duties = tuple(serving.duties(options, queue, self.said.put))
        self._poll = ClusterPoll(queue, self.feed, FakeClock(), timedelta(seconds=2), None, self._duties)
        self._poll.poll()

    def poll(self) -> None:
        self._poll.poll()

    def next_words(self) -> str:
        return self.said.get(timeout=PATIENCE)

    def end(self) -> None:
        for duty in self._duties:
            duty.close()


def test_one_process_serves_the_metrics_and_another_takes_over_when_it_ends(tmp_path: Path) -> None:
    made = busy_cluster()
    first = Watching(made, tmp_path)
    assert first.next_words().startswith("metrics at http://127.0.0.1:")
    second = Watching(made, tmp_path)
    second.poll()
    assert second.next_words() == "another process of yours serves the metrics; this one takes over when it ends"
    first.end()
    assert second.said.empty()
    second.poll()
    assert second.next_words().startswith("metrics at http://127.0.0.1:")
    second.end()


def test_a_port_that_another_user_has_is_no_problem_of_this_console(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        it = Watching(busy_cluster(), tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        assert "in use" in it.next_words()
        it.poll()
        it.end()
    [notice] = it.feed.latest.notices
    assert notice.severity == "information"
    assert "perhaps by gputui of another user" in notice.text


@pytest.mark.prometheus
@pytest.mark.long  # those of one machine show theirs in the test line
def test_every_panel_for_clusters_shows_data_of_a_cluster(tmp_path: Path) -> None:
    made = busy_cluster()
    said: SimpleQueue[str] = SimpleQueue()
    settings = Settings(metrics=MetricsSettings(listen="0"))
    exporter = Exporter(settings, tmp_path, made.snapshot().jobs, said=said.put)
    port = int(re.findall(r":(\d+)/", said.get(timeout=PATIENCE))[0])
    prometheus = Prometheus(tmp_path, port)
    try:
        wanted = {title: query for title, query in QUERIES.items() if not title.startswith(PANELS_OF_ONE_MACHINE)}
        deadline, number = time.monotonic() + PATIENCE, 0
        made.act(Hold(made.submit([Submission(spec(gpus=1))], "held")))
        while wanted and time.monotonic() < deadline:
            number += 1
            made.submit([Submission(replace(spec(gpus=2), tenant="lab"))], str(number))
            made.end(next(job.id for job in made.snapshot().jobs if job.state is JobState.RUNNING), number % 2)
            exporter.published(read_cluster(made, datetime.now(UTC)))
            wanted = {title: query for title, query in wanted.items() if not prometheus.ask(filled(query))}
        assert not wanted, (list(wanted), prometheus.log)
        nodes = prometheus.ask("count by (hostname) (gputui_gpu_utilization_ratio)")
        assert {each["metric"]["hostname"] for each in nodes} == {"gpu1", "gpu2", "gpu3"}
    finally:
        prometheus.end()
        exporter.close()


def test_serve_without_metrics_has_nothing_to_do(run: Run, cluster: FakeCluster) -> None:
    result = run("serve")
    assert (result.code, result.out) == (1, "")
    assert "the engine schedules" in result.err
    assert "gputui serve --metrics" in result.err
