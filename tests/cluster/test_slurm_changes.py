"""Changes of jobs over Slurm's commands: every job is told of, and none gets twice what it must get once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.journal import Submissions
from gputui.cluster.slurm.changes import JobChanger
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.cluster.slurm.listings import JobRow
from gputui.cluster.slurm.poll import Poll, Polled
from gputui.cluster.slurm.site import SlurmSite
from gputui.domain.action import Cancel, DrainGpus, Edit, EditJobs, Hold, JobAction, Requeue, SetPriority, Signal
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError
from tests.cases import cases
from tests.cluster.test_slurm_recorded import row

BASIC = SlurmSite(cluster="bed", version="22.05.8", priority_type="priority/basic")
WEIGHED = SlurmSite(cluster="bed", version="24.11.5", priority_type="priority/multifactor")


class Recorded(SlurmCommands):
    """Commands that note their words, and refuse jobs and nodes as Slurm does."""

    def __init__(self, refused: set[str]) -> None:
        super().__init__(None, 1.0, {})
        self.refused = refused
        self.calls: list[str] = []
        self.away_after = 1000

    def run(self, *argv: str, stdin: str = "") -> Result:
        del stdin
        if len(self.calls) == self.away_after:
            raise ClusterUnavailableError("Slurm does not answer: Socket timed out")
        self.calls.append(" ".join(argv))
        named = {part for word in argv for part in word.rpartition("=")[2].split(",")}
        lines = [self._complaint(argv, each) for each in sorted(named & self.refused)]
        return Result("", "".join(lines), 1 if lines else 0)

    @staticmethod
    def _complaint(argv: tuple[str, ...], name: str) -> str:
        if argv[0] == "scancel":
            return f"scancel: error: Kill job error on job id {name}: Access/permission denied\n"
        if name.startswith("gpu"):
            return "slurm_update error: Invalid node name specified\n"
        return f"Invalid user id for job {name}\n"


class Site(Poll):
    """A poll that knows only the site."""

    def __init__(self, commands: SlurmCommands, directory: Path, found: SlurmSite) -> None:
        super().__init__(commands, directory, 2.0, Submissions(directory))
        self.found = found

    def latest(self, since: float = 0.0) -> Polled:
        return Polled(since, self.found)

    def site(self) -> SlurmSite:
        return self.found


class Changing:
    """Jobs 7, 8 and 9 of Slurm, some of which it refuses to change."""

    def __init__(self, directory: Path, *refused: str, site: SlurmSite = BASIC) -> None:
        self.commands = Recorded(set(refused))
        poll = Site(self.commands, directory, site)
        self.changer = JobChanger(self.commands, poll, lambda row: False, lambda row: False, False)

    def act(self, action: JobAction, state: str = "RUNNING", reason: str = "None") -> tuple[int, ...]:
        return self.changer.act(action, {each: self.row(each, state, reason) for each in action.ids})

    @staticmethod
    def row(number: int, state: str, reason: str) -> JobRow:
        name = str(number)
        return replace(row(state=state, reason=reason), number=name, array=name, index="N/A")

    @property
    def calls(self) -> list[str]:
        return self.commands.calls


def test_a_refused_job_and_those_that_are_cancelled_all_the_same_are_told(tmp_path: Path) -> None:
    changing = Changing(tmp_path, "7")
    with pytest.raises(ClusterRefusedError) as refused:
        changing.act(Cancel((7, 8)))
    hint = "it is another user's job, or only Slurm's operators may do that"
    words = "job 7: not cancelled: access denied: Access/permission denied"
    assert str(refused.value) == f"{words} ({hint}); cancelled: job 8"
    assert changing.calls == ["scancel 7 8", "scancel 7", "scancel 8"]


def test_a_refusal_alone_names_no_other_job(tmp_path: Path) -> None:
    changing = Changing(tmp_path, "7", "9")
    with pytest.raises(ClusterRefusedError, match=r"^jobs 7, 9: not held: access denied: Invalid user id \(it is"):
        changing.act(Hold((7, 9)), "PENDING")
    with pytest.raises(
        ClusterRefusedError, match=r"^job 7: not given that time limit: access .*; given that time limit: job 8$"
    ):
        changing.act(EditJobs((7, 8), Edit({"time_limit": timedelta(hours=1)})))


@cases("action", [Signal((7, 8, 9), 10), Requeue((7, 8, 9))])
def test_what_a_job_must_get_once_it_gets_once_though_another_is_refused(tmp_path: Path, action: JobAction) -> None:
    changing = Changing(tmp_path, "7")
    with pytest.raises(ClusterRefusedError, match=r"^job 7: not .*: jobs 8, 9$"):
        changing.act(action)
    orders = [call for call in changing.calls if call.startswith(("scancel", "scontrol requeue"))]
    assert [sum(str(number) in call.split() for call in orders) for number in (8, 9)] == [1, 1]


def test_a_held_job_keeps_its_hold_when_slurm_would_start_it_for_another_priority(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    with pytest.raises(ClusterRefusedError, match=r"it is held, and this Slurm would let it start .release it, then"):
        changing.act(SetPriority((7,), 30), "PENDING", "JobHeldUser")
    assert changing.calls == []
    assert Changing(tmp_path).act(SetPriority((7,), 30), "PENDING", "Priority") == (7,)
    assert Changing(tmp_path, site=WEIGHED).act(SetPriority((7,), 30), "PENDING", "JobHeldUser") == (7,)


def test_what_was_done_before_slurm_fell_silent_is_told(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    changing.commands.away_after = 1
    with pytest.raises(ClusterUnavailableError, match=r"does not answer: Socket timed out; signalled: job 7$"):
        changing.act(Signal((7, 8), 10))


def test_nodes_are_drained_one_by_one_and_all_are_told(tmp_path: Path) -> None:
    changing = Changing(tmp_path, "gpu9")
    words = r"^node gpu9: not drained: Invalid node name specified; drained: nodes gpu1, gpu2$"
    with pytest.raises(ClusterRefusedError, match=words):
        changing.changer.update_nodes(DrainGpus(("gpu1", "gpu9", "gpu2"), "fan"))
