"""Two servers behind a real sshd: one snapshot, actions to the right one, connections cut and restored."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from pathlib import Path

import pytest

from gputui.domain.action import Cancel, DrainGpus, Hold, ReserveGpus, ResumeGpus, SetPriority, Unreserve
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import own_id, server_of, shown_id
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.ports.backend import LogRequest
from gputui.request.draft import asked
from gputui.request.submitter import Submitter
from tests.factories import NOW
from tests.servers.conftest import PATIENCE, Site
from tests.waiting import until

pytestmark = [pytest.mark.ssh, pytest.mark.xdist_group("servers")]  # two schedulers and an sshd for all


def job_of(snapshot: Snapshot, shown: str) -> Job | None:
    return next((job for job in snapshot.jobs if job.shown_id == shown), None)


def is_running(snapshot: Snapshot, shown: str) -> bool:
    job = job_of(snapshot, shown)
    return job is not None and job.state is JobState.RUNNING


def all_up(snapshot: Snapshot) -> bool:
    return len(snapshot.gpus) == 4 and not any(server.problem for server in snapshot.servers)


def test_gpus_and_jobs_of_both_are_in_one_snapshot(site: Site) -> None:
    ones = site.gpus[0].submit("--gpus", "1", "--name", "one", "--", "sleep", "600")
    twos = site.gpus[1].submit("--gpus", "2", "--name", "two", "--", "sleep", "600")
    waits = site.gpus[1].submit("--gpus", "1", "--name", "waits", "--", "true")
    seen = site.until(
        lambda s: all_up(s) and is_running(s, f"gpu1:{ones}") and is_running(s, f"gpu2:{twos}") and s.order,
        "both jobs run",
    )
    assert [node.name for node in seen.nodes] == ["gpu1", "gpu2"]
    assert len({view.gpu.uuid for view in seen.gpus}) == 4
    holders = {shown_id(view.job_id) for view in seen.gpus if view.job_id is not None}
    assert holders == {f"gpu1:{ones}", f"gpu2:{twos}"}
    [waiting] = seen.order
    assert (server_of(waiting), own_id(waiting)) == ("gpu2", waits)
    assert "needs 1 GPU" in seen.reasons[waiting].text


def test_actions_go_to_the_server_of_their_job(site: Site) -> None:
    first = site.gpus[0].submit("--hold", "--", "true")
    second = site.gpus[1].submit("--hold", "--", "true")
    names = [f"gpu1:{first}", f"gpu2:{second}"]
    seen = site.until(lambda s: all(job_of(s, name) for name in names), "both are seen")
    ids = [job.id for name in names if (job := job_of(seen, name))]
    actions = site.there
    done = actions.act(SetPriority(tuple(ids), 10, relative=True))
    assert list(done.ids) == ids
    assert '"priority":60' in site.gpus[0].run("show", "--json", str(first)).replace(": ", ":")
    assert '"priority":60' in site.gpus[1].run("show", "--json", str(second)).replace(": ", ":")
    assert [why for _, why in actions.undo(done.changes)] == ["", ""]
    assert '"priority":50' in site.gpus[1].run("show", "--json", str(second)).replace(": ", ":")
    assert list(actions.act(Cancel(tuple(ids[1:]))).ids) == ids[1:]
    site.until(lambda s: (job := job_of(s, names[1])) and job.state is JobState.CANCELLED, "it is cancelled")
    assert not site.gpus[0].run("show", "--json", str(first)).count("CANCELLED")


def test_jobs_are_submitted_to_the_chosen_server(site: Site) -> None:
    site.until(all_up, "both answer")
    submission = asked({"command": "sleep 1", "gpus": "0"}, Submitter("root", NOW, Path("/"), {}))
    with pytest.raises(InputError, match="which server"):
        site.there.act(SubmitJobs((submission,)))
    [made] = site.there.act(SubmitJobs((submission,)), server="gpu2").ids
    assert server_of(made) == "gpu2"
    assert site.gpus[1].run("show", "--json", str(own_id(made)))


def test_errors_name_the_server(site: Site) -> None:
    site.gpus[1].submit("--hold", "--", "true")
    seen = site.until(lambda s: any(server_of(job.id) == "gpu2" for job in s.jobs), "a job of gpu2")
    job = next(job for job in seen.jobs if server_of(job.id) == "gpu2")
    with pytest.raises(NotFoundError, match="gpu2: there is no job 9999"):
        site.there.act(Cancel((job.id - own_id(job.id) + 9999,)))


def test_output_is_read_and_followed(site: Site) -> None:
    number = site.gpus[1].submit("--", "sh", "-c", "for i in $(seq 3000); do echo line $i; done; sleep 600")
    seen = site.until(lambda s: is_running(s, f"gpu2:{number}"), "it runs")
    job = job_of(seen, f"gpu2:{number}")
    assert job is not None
    stream = site.there.log(job.id, LogRequest(tail=1000, follow=True))
    lines = []
    for line in stream:
        lines.append(line)
        if b"line 3000" in line:
            break
    assert b"line 2999" in lines[-2]
    stream.close()


def test_job_data_and_history_come_from_the_server(site: Site) -> None:
    number = site.gpus[0].submit("--", "sleep", "600")
    seen = site.until(lambda s: is_running(s, f"gpu1:{number}"), "it runs")
    job = job_of(seen, f"gpu1:{number}")
    assert job is not None
    until(lambda: any("sleep" in row.command for row in site.there.processes(job.id)), seconds=PATIENCE)
    assert isinstance(site.there.measured(job.id), dict)
    assert list(islice(site.there.history(), 3)) == []
    shell = site.there.shell(job.id)
    assert shell.arguments[:2] == ("ssh", "-t")


def test_a_cut_connection_is_restored(site: Site) -> None:
    for server in site.gpus:
        server.submit("--hold", "--", "true")
    site.until(lambda s: all_up(s) and len(s.jobs) > 1, "all answer")
    site.sshd.stop()
    seen = site.until(lambda s: all(server.problem for server in s.servers), "both are silent")
    assert len(seen.gpus) == 4
    assert len(seen.jobs) > 1
    assert all(view.stale and view.state is not GpuState.FREE for view in seen.gpus)
    job = next(job for job in seen.jobs if not job.state.is_terminal)
    with pytest.raises(GputuiError, match=f"{server_of(job.id)}: it does not answer"):
        site.there.act(Hold((job.id,)))
    first = seen.gpus[0].age
    assert first is not None
    site.until(lambda s: (age := s.gpus[0].age) is not None and age > first, "it grows older")
    site.sshd.start()
    seen = site.until(all_up, "both are back")
    assert not any(view.stale for view in seen.gpus)


@pytest.mark.long
def test_a_frozen_connection_is_noticed(site: Site) -> None:
    site.until(all_up, "all answer")
    site.sshd.freeze()
    site.until(lambda s: all(server.problem for server in s.servers), "both are silent")
    site.sshd.cut()
    site.until(all_up, "both are back")


def test_gpus_are_reserved_and_drained_on_their_server(site: Site) -> None:
    actions = site.there
    [there] = [node for node in site.until(all_up).nodes if node.name == "gpu2"]
    window = Window("upgrade", NOW + timedelta(days=9000), NOW + timedelta(days=9001), count=1)
    actions.act(ReserveGpus(window, tuple(view.gpu for view in site.snapshot.gpus)), server="gpu2")
    site.until(lambda s: [each.window.name for each in s.windows] == ["gpu2:upgrade"])
    actions.act(Unreserve("gpu2:upgrade"))
    site.until(lambda s: not s.windows)
    uuid = there.gpus[0].gpu.uuid
    actions.act(DrainGpus((uuid,), "hot"))
    site.until(lambda s: s.controls.drains.keys() == {uuid})
    assert ['"hot"' in gpus.run("gpus", "--json") for gpus in site.gpus] == [False, True]
    actions.act(ResumeGpus((uuid,)))
    site.until(lambda s: not s.controls.drains)
