"""A job that asks for GPUs that the server does not have is refused unless the user insists."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.bootstrap.backend import LocalBackend
from gputui.domain.gpu import Gpu
from gputui.domain.job_spec import GpuRequest
from gputui.domain.policy.placement import shortage
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import GIB, gpu, uuid

EIGHT = tuple(gpu(index) for index in range(8))


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    def known_gpus(backend: LocalBackend) -> tuple[Gpu, ...]:
        return EIGHT

    monkeypatch.setattr(LocalBackend, "known_gpus", known_gpus)


@cases(
    ("request_", "words"),
    [
        (GpuRequest(9, 9), "asks for 9 GPUs, this server has 8"),
        (GpuRequest(9, 12), "asks for 9 GPUs, this server has 8"),
        (GpuRequest(1, 1, model="H200"), "asks for 1 GPU of model H200, none of 8 here is suitable"),
        (GpuRequest(2, 2, memory=200 * GIB), "asks for 2 GPUs with 200G, none of 8 here is suitable"),
        (GpuRequest(1, 1, devices=("9",)), "asks for 1 GPU among 9, none of 8 here is suitable"),
        (GpuRequest(2, 2, devices=("0", "9")), "asks for 2 GPUs among 0, 9, 1 of 8 here is suitable"),
        (GpuRequest(8, 8), ""),
        (GpuRequest(2, 12), ""),
        (GpuRequest(1, 1, devices=(uuid(3),)), ""),
        (GpuRequest(), ""),
    ],
)
def test_a_shortage_is_reported_with_numbers(request_: GpuRequest, words: str) -> None:
    assert shortage(request_, EIGHT) == words
    assert shortage(request_, ()) == ""


def test_a_gpu_cut_into_instances_is_not_available() -> None:
    cut = (*EIGHT[:7], replace(EIGHT[7], mig_enabled=True))
    assert shortage(GpuRequest(8, 8), cut) == "asks for 8 GPUs, this server has 7"


@pytest.mark.usefixtures("eight")
def test_submit_edit_and_cron_refuse_missing_gpus_unless_anyway_is_given(run: Run, store: KeptStore) -> None:
    for line in (
        ("submit", "--gpus", "9", "busybox"),
        ("submit", "--host", "--gpus", "9", "--", "true"),
        ("cron", "add", "0 3 * * *", "--", "--gpus", "9", "busybox"),
    ):
        refused = run(*line)
        assert (refused.code, refused.out) == (2, "")
        assert "--gpus: job" in refused.err
        assert "asks for 9 GPUs, this server has 8" in refused.err
        assert "--anyway" in refused.err
    assert not store.jobs()
    assert not store.recurring()
    assert run("submit", "--anyway", "--gpus", "9", "busybox").out == "1\n"
    assert run("submit", "--gpus", "8", "busybox").out == "2\n"
    assert run("edit", "2", "--gpus", "9").code == 2
    assert store.get(2).spec.gpus.minimum == 8
    assert run("edit", "2", "--gpus", "9", "--anyway").code == 0
    assert store.get(2).spec.gpus.minimum == 9
    assert run("cron", "add", "0 3 * * *", "--", "--anyway", "--gpus", "9", "busybox").code == 0


def test_without_a_scheduler_requests_for_gpus_are_not_checked(run: Run, store: KeptStore) -> None:
    assert run("submit", "--gpus", "9", "busybox").out == "1\n"
