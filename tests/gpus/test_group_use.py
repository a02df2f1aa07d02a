"""Use of the machine by the control groups of processes on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gputui.gpus.probe.host import EVERY, GroupUse
from tests.cases import cases

CONTAINER = "c" * 64


class Groups:
    """Reader that notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def __call__(self, name: str, pid: int) -> Mapping[str, object] | None:
        self.asked.append((name, pid))
        return {"cpu": 1.0}


def test_each_group_is_read_every_few_seconds_whatever_its_processes(tmp_path: Path) -> None:
    groups = Groups()
    use = GroupUse(groups, str(tmp_path))
    found = [use.of(pid, CONTAINER, now) for now in (0.0, EVERY / 2, EVERY) for pid in (5, 6)]
    assert found == [({"cpu": 1.0}, age) for age in (0.0, 0.0, EVERY / 2, EVERY / 2, 0.0, 0.0)]
    assert groups.asked == [(CONTAINER, 5)] * 2
    use.forget_unseen()
    use.forget_unseen()
    assert use.of(5, CONTAINER, EVERY + 1) == ({"cpu": 1.0}, 0.0)


@cases(
    ("cgroup", "name"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0\n", "job_123"),
        ("4:memory:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/x\n", "job_7"),
        ("0::/system.slice/slurmd.service\n", None),
        ("0::/user.slice/myjob_12/job_x\n", None),
    ],
)
def test_a_process_without_a_container_belongs_to_its_job_of_slurm(
    tmp_path: Path, cgroup: str, name: str | None
) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_text(cgroup)
    groups = Groups()
    GroupUse(groups, str(tmp_path)).of(5, None, 0.0)
    assert groups.asked == ([(name, 5)] if name else [])
