"""`gputui resume` names GPUs that a resume cannot restore."""

from __future__ import annotations

import pytest

from gputui import bootstrap
from gputui.domain.gpu import GpuState, Health, HealthCode
from tests.cli.conftest import KeptStore, Run, picture
from tests.factories import snapshot, uuid, view


def test_resume_warns_of_a_sick_gpu_but_not_of_one_stopped_by_an_xid(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick = [
        view(0, GpuState.DRAINED, health=Health(HealthCode.NEEDS_RESET, "the driver asks for a GPU reset")),
        view(1, GpuState.DRAINED, health=Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus")),
        view(2),
    ]
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=sick)))
    result = run("resume", "0", "1", "2")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines() == [
        "resumed GPUs 0 1 2: jobs start there again",
        "GPU 0 is resumed, but no job starts there yet: the driver asks for a GPU reset",
    ]
    assert set(store.controls().resumed) == {uuid(0), uuid(1), uuid(2)}
