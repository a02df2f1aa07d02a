"""Commands over Kubernetes, as on any cluster: what they are told, and what they are refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cases import cases
from tests.cli.conftest import alone
from tests.cluster.commands import Run, run
from tests.kubernetes.fake.server import kubeconfig
from tests.kubernetes.harness import KubernetesHarness

__all__ = ["alone", "run"]


@pytest.fixture
def gputui(harness: KubernetesHarness, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that finds the API server by the user's kubeconfig."""
    file = tmp_path / "config"
    file.write_text(kubeconfig(harness.fake.address))
    monkeypatch.setenv("GPUTUI_CLUSTER", "kubernetes:test")
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    return run


def test_jobs_are_submitted_shown_and_cancelled(gputui: Run, harness: KubernetesHarness) -> None:
    done = gputui("submit", "--gpus", "2", "--name", "train", "busybox", "true")
    assert (done.code, done.err) == (0, "")
    job_id = re.findall(r"\b\d{12}\b", done.out)[0]
    assert job_id in gputui("queue").out
    assert "gpu1" in gputui("show", job_id).out
    assert gputui("logs", job_id).out == "ready\n"
    gpus = gputui("gpus")
    assert (gpus.code, "H200" in gpus.out and "train" in gpus.out) == (0, True)
    assert gputui("cancel", job_id).code == 0
    assert "cancelled" in gputui("show", job_id).out
    assert gputui("history").code == 0


def test_help_lists_what_makes_no_sense_there_apart_with_what_to_do_instead(gputui: Run) -> None:
    usual, _, apart = gputui("--help").out.partition("Not with Kubernetes:")
    assert re.search(r"(?m)^  submit ", usual)
    assert not re.search(r"(?m)^  (cron|reserve|install) ", usual)
    assert re.search(r"(?m)^  cron +submit at regular times by a CronJob", apart)


def test_the_first_digits_name_a_job_in_every_command(gputui: Run, harness: KubernetesHarness) -> None:
    job_id = re.findall(r"\b\d{12}\b", gputui("submit", "--gpus", "1", "--name", "train", "busybox", "true").out)[0]
    array = gputui("submit", "--array", "0-2", "--name", "sweep", "busybox", "true").out.split("_")[0].split()[-1]
    short, short_array = job_id[:6], array[:6]
    assert "train" in gputui("show", short).out
    assert gputui("logs", short).out == "ready\n"
    assert "sweep" in gputui("show", f"{short_array}_1").out
    assert gputui("exec", short, "true").code == 0
    assert gputui("show", job_id[:3]).code == 3
    done = gputui("cancel", short, f"{short_array}_1")
    assert (done.code, done.err) == (0, f"stopping 2 jobs: {job_id} {array}_1\n")
    assert "cancelled" in gputui("show", short).out
    assert gputui("cancel", short_array).code == 0
    assert gputui("wait", short, "--timeout", "10s").code != 3


def test_top_has_no_column_of_starts_that_kubernetes_does_not_tell(gputui: Run) -> None:
    gputui("submit", "--gpus", "1", "--name", "train", "busybox", "true")
    shown = gputui("top", "--width", "160").out
    assert "train" in shown
    assert "STARTS" not in shown


def test_gpu_time_is_counted_though_kubernetes_does_not_name_gpus(gputui: Run, harness: KubernetesHarness) -> None:
    job_id = re.findall(r"\b\d{12}\b", gputui("submit", "--gpus", "2", "busybox", "true").out)[0]
    pod = harness.fake.objects.all("pods")[0]
    long_ago = (datetime.now(UTC) - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    harness.fake.objects.change("pods", pod, lambda item: item["status"].update(startTime=long_ago))
    harness.fake.controller.finish(harness.fake.objects.all("pods")[0], 0)
    done = gputui("history", "--columns", "id,gpus,gpu_hours")
    assert done.out.splitlines()[-1].split() == [job_id, "2", "6.00"]
    by_gpu = gputui("report", "--since", "-1d", "--by", "gpu").out
    assert ["unknown", "1", "6.00"] in [line.split()[:3] for line in by_gpu.splitlines()]


def test_a_command_and_a_terminal_in_a_pod(gputui: Run, harness: KubernetesHarness) -> None:
    job_id = re.findall(r"\b\d{12}\b", gputui("submit", "busybox", "true").out)[0]
    done = gputui("exec", job_id, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out, done.err) == (7, "out\n", "err\n")
    assert gputui("attach", "--help").code == 0
    refused = gputui("run", "-i", "busybox")
    assert (refused.code, "give it both, by -it" in refused.err) == (2, True)


def test_a_dry_run_and_a_check_print_the_manifest(
    gputui: Run, harness: KubernetesHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[cluster.kubernetes.pod]\nruntimeClassName = 'nvidia'\n")
    monkeypatch.setenv("GPUTUI_CONFIG", str(file))
    for words in (("submit", "--dry-run", "--gpus", "1", "busybox"), ("cluster", "check", "--image", "busybox")):
        done = gputui(*words)
        assert (done.code, "\n      runtimeClassName: nvidia\n" in done.out) == (0, True)
        assert "image: busybox" in done.out
    assert not harness.fake.objects.all("jobs")


def test_an_array_is_held_and_released_by_its_number(gputui: Run, harness: KubernetesHarness) -> None:
    done = gputui("submit", "--array", "0-3", "--hold", "--name", "sweep", "busybox", "true")
    array = re.findall(r"\b\d{10}\b", done.out)[0]
    assert f"{array}_[0-3]" in gputui("queue").out
    assert gputui("release", f"{array}_2").code == 0
    running = [pod for pod in harness.fake.objects.all("pods") if pod["status"]["phase"] == "Running"]
    assert [pod["metadata"]["labels"]["gputui.index"] for pod in running] == ["2"]
    assert gputui("hold", f"{array}_1").code == 0


@cases(
    ("words", "told"),
    [
        (("priority", "ID", "+5"), "fixes the priority of a job"),
        (("requeue", "ID"), "runs once"),
        (("drain", "gpu1:0", "--reason", "x"), "not single GPUs"),
        (("submit", "--after", "ID", "busybox", "true"), "do not wait for each other"),
        (("edit", "ID", "--time-limit", "1h"), "fixes the time limit"),
    ],
)
def test_what_kubernetes_lacks_is_refused_with_a_reason(gputui: Run, words: tuple[str, ...], told: str) -> None:
    job_id = re.findall(r"\b\d{12}\b", gputui("submit", "busybox", "true").out)[0]
    done = gputui(*(job_id if word == "ID" else word for word in words))
    assert done.code == 1
    assert told in done.err


def test_waiting_jobs_of_this_server_move_to_kubernetes(
    gputui: Run, harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTUI_CLUSTER", "")
    gputui("submit", "--gpus", "1", "--name", "one", "busybox", "true")
    gputui("submit", "--array", "0-2", "--name", "many", "busybox", "true")
    gputui("submit", "--retries", "3", "--name", "stays", "busybox", "true")
    monkeypatch.setenv("GPUTUI_CLUSTER", "kubernetes:test")
    done = gputui("migrate")
    names = sorted(job["metadata"]["annotations"]["gputui.name"] for job in harness.fake.objects.all("jobs"))
    assert names == ["many", "one"], done
    assert re.search(r"\b\d{12}\b", done.out)
    assert re.search(r"\b\d{10}_\[0-2\]", done.out)
    assert "the job runs once" in done.out


def test_doctor_checks_server_and_rights(gputui: Run, harness: KubernetesHarness) -> None:
    done = gputui("doctor")
    assert done.code == 0
    assert "Kubernetes answers: cluster test, 3 nodes" in done.out
    assert "6 GPUs on 3 nodes" in done.out


def test_rbac_prints_what_can_be_applied(gputui: Run) -> None:
    done = gputui("cluster", "rbac", "--group", "lab-users", "--namespace", "lab")
    assert done.out.count("kind: ClusterRole\n") == 2  # the role, and the binding's reference
    assert gputui("cluster", "rbac", "--namespace", "lab").code == 2
    assert gputui("cluster", "rbac", "--user", "ann").code == 2
    assert "namespace: tools" in gputui("cluster", "rbac", "--service-account", "tools:x", "--namespace", "lab").out
