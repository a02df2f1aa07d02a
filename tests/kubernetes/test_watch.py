"""Lists and watches: once each, from where the list was, and anew where that is forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.cluster.kubernetes.api_server import connect
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.domain.action import Cancel
from gputui.domain.errors import ClusterUnavailableError, NotFoundError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from tests.factories import spec
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.fake.server import kubeconfig
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until


def lists(harness: KubernetesHarness) -> int:
    return harness.fake.requests.count("GET /apis/batch/v1/jobs")


def watches(harness: KubernetesHarness) -> int:
    return harness.fake.requests.count("GET /apis/batch/v1/jobs watch")


def watched(harness: KubernetesHarness) -> None:
    """Wait until the adapter watches jobs."""
    until(harness.kube.snapshot, lambda _: watches(harness), "jobs are watched")


def test_a_single_look_lists_once_and_watches_nothing(harness: KubernetesHarness) -> None:
    harness.kube.snapshot()
    assert (lists(harness), watches(harness)) == (1, 0)


def test_changes_of_others_come_by_the_watch(harness: KubernetesHarness) -> None:
    watched(harness)
    [job_id] = harness.open(user="bob").submit([Submission(spec(1))], "k1")
    before = lists(harness)
    until(harness.kube.snapshot, lambda snapshot: snapshot.job(job_id) is not None, "the job is seen")
    harness.fake.controller.finish(harness.pod(harness.kube.job(job_id)), 0)
    until(lambda: harness.kube.job(job_id).state, lambda state: state is JobState.COMPLETED, "its end is seen")
    assert (lists(harness), watches(harness)) == (before, 1)


def test_a_job_that_the_watch_has_not_told_yet_is_looked_for_before_it_is_unknown(harness: KubernetesHarness) -> None:
    watched(harness)
    before = lists(harness)
    with pytest.raises(NotFoundError):
        harness.kube.job(123_456_789_012)
    assert lists(harness) == before + 1
    [job_id] = harness.open(user="bob").submit([Submission(spec(1))], "k1")
    assert harness.kube.job(job_id).id == job_id


@pytest.mark.parametrize("tells_gone_in_watch", [False, True])
def test_a_forgotten_version_is_listed_again(harness: KubernetesHarness, tells_gone_in_watch: bool) -> None:
    watched(harness)
    harness.fake.tells_gone_in_watch = tells_gone_in_watch
    before = lists(harness)
    with harness.fake.objects.lock:  # nothing reaches the watches before the history is forgotten
        harness.fake.add_node("gpu4")
        harness.fake.objects.compact()
    until(harness.kube.snapshot, lambda snapshot: len(snapshot.nodes) == 4, "the new node is seen")
    until(lambda: lists(harness), lambda found: found > before, "jobs are listed again")


def test_a_lost_connection_is_made_again(harness: KubernetesHarness) -> None:
    watched(harness)
    harness.fake.breaks = True

    def is_silent() -> bool:
        try:
            harness.kube.snapshot()
        except ClusterUnavailableError:
            return True
        return False

    until(is_silent, lambda silent: silent, "the silence is noticed")
    harness.fake.add_node("gpu4")
    harness.fake.breaks = False
    until(is_silent, lambda silent: not silent, "it answers again")
    assert len(harness.kube.snapshot().nodes) == 4


@pytest.mark.parametrize("forgets_pages", [False, True])
def test_many_jobs_come_page_by_page_or_at_once(harness: KubernetesHarness, forgets_pages: bool) -> None:
    harness.fake.forgets_pages = forgets_pages
    template = {"spec": {"containers": [{"name": "x", "image": "y"}]}}
    for number in range(600):
        item = {"metadata": {"name": f"j{number}", "namespace": "lab", "labels": {}}, "spec": {"template": template}}
        harness.fake.objects.create("jobs", item | {"status": {}})
    assert len(harness.kube.snapshot().jobs) == 600
    assert lists(harness) == 3


def test_jobs_that_did_not_change_are_the_same_objects(harness: KubernetesHarness) -> None:
    first, second = harness.kube.submit([Submission(spec(1))] * 2, "k1")
    before = harness.kube.snapshot()
    assert harness.kube.act(Cancel((second,)))
    after = harness.kube.snapshot()
    assert after.job(first) is before.job(first)


def test_a_login_that_runs_out_is_made_anew_while_the_watch_goes_on(harness: KubernetesHarness, tmp_path: Path) -> None:
    token, file = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text(ADMIN)
    value = json.loads(kubeconfig(harness.fake.address))
    value["users"][0]["user"] = {"tokenFile": "token"}
    file.write_text(json.dumps(value))
    kube = KubernetesCluster(
        lambda: connect(None, {"KUBECONFIG": str(file)}, 30.0), Settings(), tmp_path / "s", user="ann"
    )
    until(kube.snapshot, lambda _: watches(harness), "jobs are watched")
    harness.fake.access.rename_token(ADMIN, "later")
    token.write_text("later")
    harness.fake.objects.compact()  # so that the watches are begun anew
    harness.fake.add_node("gpu4")
    until(kube.snapshot, lambda snapshot: len(snapshot.nodes) == 4, "the new node is seen")
    assert kube.submit([Submission(spec())], "k1")
    kube.close()
