"""`gputui install --users`: settings, the socket's unit, the way from a shared directory, and back."""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.cli.install import units, with_users, without_group
from gputui.config import Options
from gputui.domain.access import Actor
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import AccessSettings, SchedulerSettings, Settings
from gputui.domain.snapshot import Leader
from gputui.engine.leadership import Leadership
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.cli.conftest import Run
from tests.needs import need
from tests.store.shared_directory import share, with_warrant

ALICE = 64_001


@pytest.fixture(autouse=True)
def _in_a_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    need("root")
    monkeypatch.setattr(sys, "executable", "/opt/gputui/bin/python3")


def made(*users: str, host_jobs: bool = False) -> dict[str, str]:
    settings = Settings(access=AccessSettings(users=users), scheduler=SchedulerSettings(host_jobs=host_jobs))
    return units(Options(Path("/var/lib/gputui"), settings=settings))


def test_a_queue_for_users_has_a_socket() -> None:
    found = made("*")
    assert "\nListenStream=/run/gputui/api.sock\nSocketMode=0666\n" in found["gputui.socket"]
    service = found["gputui.service"]
    assert (
        "\nSystemCallFilter=setgroups setfsgid setfsuid\nSockets=gputui.socket\nKillMode=process\n\n[Install]"
        in service
    )
    assert "\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SETGID CAP_SETUID CAP_SYS_PTRACE\n" in service
    assert "\nStateDirectoryMode=0700\n" in service
    assert "Delegate=yes" in made("*", host_jobs=True)["gputui.service"]
    assert "gputui.socket" not in made()


def test_the_socket_is_closed_to_all_but_a_group_that_stays_as_a_comment() -> None:
    assert "\nSocketMode=0660\nSocketGroup=gpu\n" in made("@gpu")["gputui.socket"]
    assert "\nSocketMode=0666\n" in made("@gpu", "alice")["gputui.socket"]  # each caller's role decides
    before = '[policy]\n# group\n[store]\nlogs_max_age = "7d"\n  group = "gpu"  # ours\n[access]\nusers = ["group"]\n'
    after = without_group(before, "FILE")
    assert after == before.replace("  group = ", "#   group = ")
    assert tomllib.loads(after)["store"] == {"logs_max_age": "7d"}
    with pytest.raises(InputError, match="written in a way"):
        without_group('store = {group = "gpu"}\n', "FILE")


@cases(
    ("before", "after"),
    [
        ("", '[access]\nusers = ["@gpu"]\n'),
        ("[policy]\nbackfill = false\n", '[policy]\nbackfill = false\n\n[access]\nusers = ["@gpu"]\n'),
        ("[access]  # who\nshow_logs = true\n", '[access]  # who\nusers = ["@gpu"]\nshow_logs = true\n'),
        ('[access]\nusers = ["@gpu", "bob"]\n', '[access]\nusers = ["@gpu", "bob"]\n'),
    ],
)
def test_the_settings_file_keeps_what_else_it_says(before: str, after: str) -> None:
    assert with_users(before, "@gpu", "FILE") == after


@cases(
    ("text", "told"),
    [
        ('[access]\nusers = ["alice"]\n', "other users: alice"),
        ("access = {show_logs = true}\n", "written in a way"),
        ("access.show_logs = true\n", "written in a way"),
        ("[access\n", "not TOML"),
    ],
)
def test_a_settings_file_that_says_otherwise_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        with_users(text, "@gpu", "FILE")


def test_users_are_added_once(run: Run, tmp_path: Path) -> None:
    words = ("--state", str(tmp_path / "queue"), "install", "--users", "--unit-dir", str(tmp_path))
    shown = run(*words, "--dry-run")
    assert (shown.code, (tmp_path / "site.toml").exists(), (tmp_path / "queue").exists()) == (0, False, False)
    done = run(*words, "--yes")
    assert done.code == 0
    assert "now: systemctl daemon-reload && systemctl enable --now gputui.socket gputui.service\n" in done.out
    assert (tmp_path / "site.toml").read_text() == '[access]\nusers = ["*"]\n'
    assert (tmp_path / "gputui.socket").exists()
    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == 0o700
    assert run(*words, "--yes").out == f"the units in {tmp_path} are up to date\n"
    assert run(*words[:3], "--unit-dir", str(tmp_path), "--yes").out == f"the units in {tmp_path} are up to date\n"
    assert "there is no group 'gputui-none'" in run(*words[:4], "gputui-none").err


def test_a_gputui_that_users_cannot_run_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(home / "venv" / "bin" / "python3"))
    words = ("--state", str(tmp_path / "queue"), "install", "--users", "--unit-dir", str(tmp_path), "--yes")
    tmp_path.chmod(0o755)
    closed = next(each for each in (*reversed(tmp_path.parents), home) if not each.stat().st_mode & stat.S_IXOTH)
    assert f"users cannot run this gputui, as {closed} is closed to them: install it in /opt/gputui" in run(*words).out


def test_the_units_can_be_removed(run: Run, tmp_path: Path) -> None:
    place = ("--unit-dir", str(tmp_path))
    assert run("--state", str(tmp_path / "queue"), "install", "--users", *place, "--yes").code == 0
    wants = tmp_path / "sockets.target.wants"
    wants.mkdir()
    (wants / "gputui.socket").symlink_to("../gputui.socket")
    refused = run("install", "--remove", *place, "--yes")
    assert (refused.code, "systemctl disable --now gputui.socket" in refused.err) == (1, True)
    (wants / "gputui.socket").unlink()
    assert run("install", "--remove", *place, "--yes").code == 0
    assert [path.name for path in tmp_path.glob("gputui*")] == []
    assert (tmp_path / "queue").is_dir()
    assert run("install", "--remove", *place).out == f"there are no units of gputui in {tmp_path}\n"


def test_what_cannot_be_given_to_users_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("--state", str(tmp_path / "queue"), "install", "--users", "--convert", "--unit-dir", str(tmp_path))
    assert (done.code, "no group shares" in done.err) == (2, True)
    assert "--convert is for --users" in run("install", "--convert").err
    state = tmp_path / "queue"
    state.mkdir()
    os.chown(state, ALICE, -1)
    done = run("--state", str(state), "install", "--users", "--unit-dir", str(tmp_path), "--yes")
    assert (done.code, f"it belongs to {ALICE}, not to root" in done.err) == (1, True)


def test_a_shared_directory_is_taken_over_after_a_backup(run: Run, tmp_path: Path) -> None:
    state, site = tmp_path / "queue", tmp_path / "site.toml"
    site.write_text('[store]\ngroup = "users"\n')
    with closing(TinyJobStore(state)) as store:
        spec = JobSpec(image="busybox")
        at = datetime.now(UTC)
        proven = with_warrant(spec, state, store.store_id, ALICE)
        jobs = [Job(0, proven, at, submitted_by="x"), Job(0, spec, at, submitted_by="root")]
        store.submit(jobs, actor=Actor(0, "root"))
    share(state)
    words = ("--state", str(state), "install", "--users", "--unit-dir", str(tmp_path))
    refused = run(*words, "--yes")
    assert (refused.code, "--convert takes it over" in refused.err) == (1, True)
    leads = Leadership(state)
    assert leads.acquire(Leader(os.getpid(), "here", "root", "serve", datetime.now(UTC)))
    assert "stop it, then convert" in run(*words, "--convert", "--yes").err
    leads.release()
    assert state.stat().st_mode & 0o7777 == 0o2770
    done = run(*words, "--convert", "--yes")
    assert done.code == 0, done.err
    assert "1 job of proven submitters" in done.out
    assert "to be submitted again: 2\n" in done.out
    assert site.read_text() == '[store]\n# group = "users"\n\n[access]\nusers = ["*"]\n'
    assert state.stat().st_mode & 0o7777 == 0o700
    [backup] = tmp_path.glob("queue-before-users-*.tar.gz")
    assert backup.stat().st_mode & 0o777 == 0o600
    with closing(TinyJobStore(state)) as store:
        assert [(job.submitted_uid, job.held) for job in store.jobs().values()] == [(ALICE, False), (None, True)]
    assert run(*words, "--yes").out == f"the units in {tmp_path} are up to date\n"
