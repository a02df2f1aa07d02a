"""Members of a group share a state directory with root's scheduler, and try what they can; with real users."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.action import Cancel, Requeue
from gputui.domain.job_spec import Interactive
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from tests import leftovers
from tests.e2e.members import COMMAND, Site, members
from tests.e2e.site import COMMANDS

pytestmark = [
    pytest.mark.needs("root"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("members"),  # one scheduler and two accounts for all
]

CLAIM = """
import sys
from msgspec.structs import replace
from pathlib import Path
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
state, group, job_id, warrant = sys.argv[1:]
store = TinyJobStore(Path(state), StoreSettings(group=group))
with store.transaction() as transaction:
    job = transaction.get(int(job_id))
    transaction.put(replace(job, spec=replace(job.spec, warrant=warrant)))
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two members of a new group, and root, who schedules."""
    with members("alice", "mallory") as site, site.served(TOPSECRET="hush"):
        yield site


def test_a_host_job_runs_as_its_submitter_who_can_read_its_log(site: Site) -> None:
    go = site.directory / "go"
    one = site.submit("alice", f"id -u; id -g; id -G; env; echo ready; while [ ! -e {go} ]; do sleep 0.05; done")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    site.until(lambda: "ready\n" in site.run("alice", COMMAND, "logs", str(one)).stdout, "alice reads its log")
    lines = site.gputui("alice", "logs", str(one)).splitlines()
    alice = site.users["alice"]
    assert lines[:2] == [str(alice.pw_uid), str(alice.pw_gid)]
    assert set(map(int, lines[2].split())) == set(os.getgrouplist(alice.pw_name, alice.pw_gid))
    env = dict(line.split("=", 1) for line in lines[3 : lines.index("ready")])
    assert (env["HOME"], env["USER"], env["SHELL"]) == (alice.pw_dir, alice.pw_name, "/bin/sh")
    assert not {"TOPSECRET", "GPUTUI_STATE", "PYTHONPATH"} & (env.keys() - {"PYTHONPATH"})
    go.touch()
    assert site.ended(one).state is JobState.COMPLETED
    site.until((site.state / f"logs/{one}/1.log").exists, "its log is kept")
    assert "ready" in site.gputui("alice", "logs", str(one))


def test_only_its_submitter_and_root_enter_a_job(site: Site) -> None:
    go = site.directory / "gone"
    go.unlink(missing_ok=True)
    script = f"id -u; while [ ! -e {go} ]; do sleep 0.05; done; exit 5"
    one = site.queued("alice", script, interactive=Interactive(stdin=True))
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    alice = site.users["alice"]
    inside = site.run("alice", COMMAND, "exec", str(one), "sh", "-c", "id -u; echo $GPUTUI_JOB_ID; exit 4")
    assert (inside.returncode, inside.stdout.split()) == (4, [str(alice.pw_uid), str(one)]), inside.stderr
    by_root = COMMANDS.run(["exec", str(one), "id", "-u"], site.environ(), b"", timeout=30)
    assert by_root[:2] == (0, f"{alice.pw_uid}\n".encode()), "root enters it as its submitter"
    refused = site.run("mallory", COMMAND, "attach", str(one))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"job {one} is a job of {alice.pw_name}" in refused.stderr
    # mallory writes her own warrant into the record of alice's job: the record of its start decides
    spec = site.job(site.queued("mallory", "true")).spec
    done = site.run("mallory", CLAIM, str(site.state), site.group, str(one), spec.warrant)
    assert done.returncode == 0, done.stderr
    assert f"job {one} is a job of {alice.pw_name}" in site.run("mallory", COMMAND, "exec", str(one), "id").stderr
    go.touch()
    attached = site.run("alice", COMMAND, "attach", str(one))
    assert (attached.returncode, attached.stdout) == (5, f"{alice.pw_uid}\n"), attached.stderr
    verbs = [(entry.verb, entry.user) for entry in site.store.audit_log(f"job {one}")]
    assert {("exec", alice.pw_name), ("exec", "root")} <= set(verbs)
    assert not [user for _, user in verbs if user == site.users["mallory"].pw_name]


def test_a_socket_planted_by_a_member_is_not_used(site: Site) -> None:
    one = site.queued("alice", "sleep 600")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    kept = site.state / "api.kept"
    (site.state / "api.sock").rename(kept)
    user = site.users["mallory"]
    with socket.socket(socket.AF_UNIX) as planted:
        os.seteuid(user.pw_uid)
        try:
            planted.bind(str(site.directory / "mallory" / "api.sock"))
            planted.listen()
        finally:
            os.seteuid(0)
        (site.directory / "mallory" / "api.sock").chmod(0o666)
        (site.directory / "mallory" / "api.sock").rename(site.state / "api.sock")
        refused = site.run("alice", COMMAND, "exec", str(one), "id")
    kept.rename(site.state / "api.sock")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"somebody else listens there: uid {user.pw_uid}" in refused.stderr
    site.actions("alice").act(Cancel((one,)))


def test_a_forged_job_of_a_member_runs_as_no_other_user(site: Site) -> None:
    out = site.directory / "alice" / "forged"
    one = site.submit("alice", "true")
    assert site.ended(one).state is JobState.COMPLETED
    alice = site.users["alice"].pw_uid
    name = site.job(one).spec.warrant.partition("/")[2]
    warrants = (f"{alice}/{name}", f"{alice}/{'0' * 24}", f"0/{name}", "", f"{alice}/../0/{name}")
    forged = site.forge("mallory", f"id > {out}", site.users["alice"].pw_name, *warrants)
    assert len(forged) == len(warrants)
    assert all(site.is_refused(each) for each in forged)
    assert not out.exists()


def test_a_member_cannot_make_a_warrant_for_another(site: Site) -> None:
    """Forgeries: a directory in root's name, one that is moved there, and a link to another user's file."""
    mallory, out = site.users["mallory"].pw_uid, site.directory / "mallory" / "stolen"
    mine = site.submit("mallory", f"id -u > {out}")
    assert site.ended(mine).state is JobState.COMPLETED
    assert out.read_text() == f"{mallory}\n"
    out.unlink()
    name = site.job(mine).spec.warrant.partition("/")[2]
    code = "import os, sys; os.chdir(sys.argv[1]); os.rename(sys.argv[2], '0')"
    site.run("mallory", code, str(site.state / "warrants"), str(mallory))
    [forged] = site.forge("mallory", f"id -u > {out}", "root", f"0/{name}")
    assert site.is_refused(forged)
    assert not out.exists()
    shutil.rmtree(site.state / "warrants" / "0")


def test_root_submits_no_host_job_here(site: Site) -> None:
    done = site.run("root", COMMAND, "submit", "--host", "--", "true")
    assert (done.returncode, "root" in done.stderr) == (2, True)


def test_root_writes_no_log_through_a_link_that_a_member_planted(site: Site) -> None:
    victim = site.directory / "victim"
    victim.mkdir(mode=0o700)
    go = site.directory / "plant"
    one = site.submit("mallory", f"while [ ! -e {go} ]; do sleep 0.05; done; echo pwned")
    site.until(lambda: site.job(one).state is JobState.RUNNING, "it runs")
    code = (
        "import os, sys; os.makedirs(os.path.dirname(sys.argv[2]), exist_ok=True); os.symlink(sys.argv[1], sys.argv[2])"
    )
    done = site.run("mallory", code, str(victim), str(site.state / f"logs/{one}"))
    assert done.returncode == 0, done.stderr
    go.touch()
    assert site.ended(one).state is JobState.COMPLETED
    log = site.state / "gputui.log"
    site.until(lambda: "its log cannot be saved" in log.read_text(), "the refusal is told")
    assert list(victim.iterdir()) == []
    (site.state / f"logs/{one}").unlink()


def test_a_member_may_schedule_after_root(site: Site) -> None:
    """The directory that root's scheduler made takes attempts of others, who run jobs as themselves only."""
    code = """
import os, sys
from msgspec.structs import replace
from gputui.bootstrap import clock
from gputui.domain.container import Launch, RunAs
from gputui.domain.errors import RuntimeFault
from gputui.domain.job import JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.process.runtime import ProcessRuntime
from pathlib import Path
runtime = ProcessRuntime("other0000000", Path(sys.argv[1]), RuntimeSettings(), clock())
launch = Launch("other0000000", 7, 1, JobSpec(command=("true",)), (), run_as=RunAs(os.getuid(), is_strict=True))
print(runtime.create(launch).id, runtime.check().up)
try:
    runtime.create(replace(launch, job_id=8, run_as=RunAs(int(sys.argv[2]), is_strict=True)))
except RuntimeFault as fault:
    print(fault.cause.code, fault.cause.text)
runtime.remove("gputui-other0000000-7-1")
"""
    done = site.run("alice", code, str(site.state), str(site.users["mallory"].pw_uid))
    assert done.returncode == 0, done.stderr
    made, refused = done.stdout.splitlines()
    assert made == "gputui-other0000000-7-1 True"
    assert refused.startswith("BadSpec it is a job of ")


def test_elements_retries_and_requeued_jobs_run_as_their_submitter(site: Site) -> None:
    out = site.directory / "alice" / "again"
    script = f"id -u >> {out}; test $(wc -l < {out}) -ge 4"
    first = site.queued("alice", script, (0, 1), retries=3, backoff=timedelta(milliseconds=10))
    assert {site.ended(each).state for each in (first, first + 1)} == {JobState.COMPLETED}
    lines = len(out.read_text().split())
    assert lines >= 4
    site.actions("mallory").act(Requeue((first,)))
    site.until(lambda: len(out.read_text().split()) > lines and site.job(first).state.is_terminal, "it ran again")
    assert set(out.read_text().split()) == {str(site.users["alice"].pw_uid)}


@pytest.fixture
def place(site: Site) -> Iterator[Site]:
    """Create another state directory of the same users, without a scheduler."""
    directory = Path(tempfile.mkdtemp(prefix="gputui-members-"))
    directory.chmod(0o755)
    (directory / "config.toml").write_text((site.directory / "config.toml").read_text())
    store = TinyJobStore(directory / "state", StoreSettings(group=site.group))
    yield Site(directory, site.group, site.users, store)
    leftovers.end(directory / "state")
    store.close()
    shutil.rmtree(directory)


def test_a_member_leads_after_root(place: Site) -> None:
    """The member runs her own jobs, leaves those of others waiting, and neither loses nor repeats root's work."""
    go = place.directory / "go"
    script = f"echo begun; while [ -e {place.state} ] && [ ! -e {go} ]; do sleep 0.05; done"
    with place.served():
        hers, his = (place.queued(name, script) for name in ("alice", "mallory"))
        place.until(lambda: all(place.job(each).state is JobState.RUNNING for each in (hers, his)), "both run")
    late = place.queued("mallory", "true")
    with place.served("alice"):
        done = place.run("mallory", COMMAND, "submit", "--host", "--", "true")
        assert (done.returncode, "runs as root can run jobs as other users" in done.stderr) == (2, True), done.stderr
        assert place.ended(place.queued("alice", "true")).state is JobState.COMPLETED
        assert (place.job(late).state, place.job(late).attempts) == (JobState.PENDING, ())
        told = place.run("mallory", COMMAND, "explain", str(late))
        assert "only a scheduler that runs as root" in " ".join(told.stdout.split()), told
        place.actions("mallory").act(Cancel((his,)))
        log = place.state / "gputui.log"
        place.until(lambda: "whose processes" in log.read_text(), "it is told that it cannot be ended")
        assert place.job(his).state is JobState.COMPLETING
        assert place.job(hers).state is JobState.RUNNING
        go.touch()
        assert place.ended(hers).state is JobState.COMPLETED
        assert place.ended(his).state is JobState.CANCELLED
        place.until(lambda: log.read_text().count("can begin or remove it") == 2, "both are left to root")
        assert log.read_text().count("whose processes") == 1
        assert "Traceback" not in log.read_text()
    logs = [(place.state / f"logs/{each}/1.log").read_text() for each in (hers, his)]
    assert logs == ["begun\n", "begun\n"]
    assert not (place.state / f"logs/{hers}/2.log").exists()
    with place.served():
        assert place.ended(late).state is JobState.COMPLETED
        place.until(lambda: not list((place.state / "attempts").glob("gputui-*")), "root removes them")
