"""`gputui install`: units for systemd, as hardened as the settings allow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.cli.install import units
from gputui.config import Options
from gputui.domain.errors import InputError
from gputui.domain.settings import AccessSettings, HookSettings, SchedulerSettings, Settings
from tests.cases import cases
from tests.cli.conftest import Run

STATE = Path("/var/lib/gputui")
CONTAINERS = SchedulerSettings(host_jobs=False)


@pytest.fixture(autouse=True)
def _in_a_plain_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gputui seem to be where a unit can name it, unless systemd looks for it."""
    if not request.node.get_closest_marker("systemd"):
        monkeypatch.setattr(sys, "executable", "/opt/gputui/bin/python3")


def service(**settings: object) -> str:
    made = Settings(**{"scheduler": CONTAINERS, **settings})  # type: ignore[arg-type]
    return units(Options(STATE, settings=made))["gputui.service"]


@pytest.mark.systemd
@cases("settings", [{}, {"access": AccessSettings(("*",))}])
def test_systemd_finds_the_service_well_protected(tmp_path: Path, settings: dict[str, object]) -> None:
    made = units(Options(STATE, settings=Settings(scheduler=CONTAINERS, **settings)), tmp_path)  # type: ignore[arg-type]
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    for name in ("gputui.service", "gputui-backup.service"):
        words = ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(tmp_path / name)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
        assert done.returncode == 0, done.stdout[-300:] + done.stderr
    words = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in made)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line and "docker" not in line] == []


def test_settings_relax_protections_that_they_conflict_with() -> None:
    assert "KillMode" not in service()
    assert "StateDirectory=gputui\n" in service()
    with_host_jobs = service(scheduler=SchedulerSettings(host_jobs=True))
    assert "KillMode=process\nDelegate=yes\n\n[Install]" in with_host_jobs
    assert "ProtectHome" not in with_host_jobs
    with_mail = service(hooks=HookSettings(mail_to=("ops@example.org",)))
    assert "NoNewPrivileges" not in with_mail
    assert "ProtectSystem=strict" in with_mail
    elsewhere = units(Options(Path("/srv/queue")), Path("/backup"))
    assert "ReadWritePaths=/srv/queue\n" in elsewhere["gputui.service"]
    assert " --state /srv/queue state backup --keep 14d /backup\n" in elsewhere["gputui-backup.service"]
    with pytest.raises(InputError, match="cannot stand in a unit"):
        units(Options(Path("/srv/my queue")))


@pytest.mark.needs("root")
def test_a_service_of_root_in_a_users_directory_leaves_his_files_to_him(tmp_path: Path) -> None:
    os.chown(tmp_path, 61_234, 61_234)
    of_user = units(Options(tmp_path))["gputui.service"]
    assert f"ReadWritePaths={tmp_path}\n" in of_user
    assert "StateDirectory" not in of_user  # systemd would give all files in it to root
    assert "RestrictSUIDSGID" not in of_user


def test_a_service_finds_its_state_directory(run: Run, tmp_path: Path) -> None:
    """Without it, systemd starts no process: the unit names it in ReadWritePaths."""
    state = tmp_path / "srv" / "queue"
    words = ("--state", str(state), "install", "--unit-dir", str(tmp_path))
    assert (run(*words, "--dry-run").code, state.exists()) == (0, False)
    assert run(*words, "--yes").code == 0
    assert state.stat().st_mode & 0o777 == 0o700


def test_units_are_shown_before_they_are_written(run: Run, tmp_path: Path) -> None:
    place = ["--unit-dir", str(tmp_path), "--backups", str(tmp_path / "backups")]
    unit = tmp_path / "gputui.service"
    shown = run("install", *place, "--dry-run")
    assert (shown.code, unit.exists()) == (0, False)
    assert shown.out.count("\n[Unit]\n") == 3
    assert (run("install", *place).code, unit.exists()) == (2, False)
    done = run("install", *place, "--yes")
    assert done.code == 0
    assert "now: systemctl daemon-reload && systemctl enable --now gputui.service gputui-backup.timer" in done.out
    assert unit.read_text() in shown.out
    assert (tmp_path / "backups").stat().st_mode & 0o777 == 0o700
    assert run("install", *place, "--yes").out == f"the units in {tmp_path} are up to date\n"
    unit.write_text(unit.read_text().replace("RestartSec=5", "RestartSec=9"))
    assert "-RestartSec=9\n+RestartSec=5\n" in run("install", *place, "--yes").out
    assert run("install", "--unit-dir", "/proc/none", "--yes").code == 1


def test_a_user_who_may_not_look_into_the_state_directory_sees_the_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_symlink", refused)
    assert "ReadWritePaths=/srv/queue\n" in units(Options(Path("/srv/queue")))["gputui.service"]
