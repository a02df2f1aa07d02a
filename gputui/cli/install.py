"""`gputui install`: systemd units for this installation."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import click

from gputui.bootstrap import upkeep
from gputui.cli import terminal
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.config.options import typed_path
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.text import plain

UNITS = "/etc/systemd/system"


@click.command("install")
@click.option("--dry-run", is_flag=True, help="Print the units, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--backups", metavar="DIR", help="Add a daily backup into DIR, which keeps the last two weeks.")
@click.option("--unit-dir", default=UNITS, metavar="DIR", help=f"Directory of the units; {UNITS} by default.")
@pass_session
def command(session: Session, dry_run: bool, yes: bool, backups: str | None, unit_dir: str) -> int:
    """Write systemd units that run the scheduler as a service.

    The units are for this gputui and this state directory, and as hardened as the settings allow: host jobs, a shared
    queue and mail need fewer restrictions. Prints the changes, asks, and prints the commands that start the service.
    """
    place = typed_path(backups, "--backups") if backups else None
    wanted = {Path(unit_dir) / name: content for name, content in units(session.options, place).items()}
    if dry_run:
        terminal.echo(listing(wanted), nl=False)
        return 0
    changed = changes(wanted)
    if changed and not agreed(changed, "install", yes=yes):
        return 1
    if place is not None:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise GputuiError(f"cannot be made: {error.strerror}", where=str(place)) from error
    if not _is_made_by_systemd(session.options):  # systemd starts no service whose ReadWritePaths are missing
        upkeep.make_directory(session.options)
    if not changed:
        terminal.echo(f"the units in {plain(unit_dir)} are up to date")
        return 0
    write(changed, option="--unit-dir")
    timer = " gputui-backup.timer" if (place is not None) else ""
    terminal.echo(f"now: systemctl daemon-reload && systemctl enable --now {SERVICE}{timer}")
    if allows_host_jobs(session.options):
        terminal.echo(
            "host jobs are on: they are processes of the service, so it is hardly hardened. If nobody needs them, set\n"
            "host_jobs = false under [scheduler] in /etc/gputui/config.toml, and run gputui install again"
        )
    return 0


SERVICE = "gputui.service"
_BACKUP = ("gputui-backup.service", "gputui-backup.timer")
_PLAIN = re.compile(r"[\w/.,:@+=-]+", re.ASCII)
_DEFAULT_STATE = Path("/var/lib/gputui")
_FOR_JOBS = frozenset(
    {"ProtectControlGroups", "ProtectHome", "ProtectSystem", "PrivateTmp", "RestrictNamespaces", "RestrictSUIDSGID"}
    | {"SystemCallFilter", "NoNewPrivileges", "CapabilityBoundingSet"}
)
"""Lines that would apply to host jobs too, which are processes of the service."""
_FOR_SENDMAIL = frozenset({"NoNewPrivileges", "CapabilityBoundingSet", "SystemCallFilter"})
"""Lines that prevent setuid programs from working."""
_MAIL_PLACES = "-/var/spool -/var/mail -/var/log"
"""Directories in which sendmail puts messages and its log; a dash: it may be missing."""
_OF_OTHERS = "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID"
"""Capabilities without which root can neither read files of others, nor give new ones to a group and set setgid."""
_PRIVATE = ("/tmp/", "/var/tmp/")
"""Beginnings of paths that PrivateTmp hides."""
_TEMPORARY = "ReadWritePaths=/tmp /var/tmp"
"""Line in place of PrivateTmp."""


def units(options: Options, backups: Path | None = None) -> dict[str, str]:
    """Return the content of the units by name; with a directory for backups those of the daily backup too."""
    words = scheduler_command(options)
    for word in (*words, *((str(backups),) if backups is not None else ())):
        if not _PLAIN.fullmatch(word):
            hint = "systemd would read other characters its own way: use a path of letters, digits and /._-"
            raise InputError(f"{word!r} cannot stand in a unit", where="install", hint=hint)
    values = {"COMMAND": " ".join(words), "STATE": str(options.state)}
    found = {SERVICE: _filled(_service(options), values)}
    if backups is not None:
        values["BACKUPS"] = str(backups)
        service, timer = _BACKUP
        found |= {service: _filled(_backup(options, backups), values), timer: _filled(_template(timer), values)}
    return found


def scheduler_command(options: Options) -> list[str]:
    """Return the words that run this gputui on this state directory, from anywhere."""
    script = Path(sys.executable).with_name("gputui")
    words = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "gputui"]
    settings = ["--config", str(options.config)] if options.config is not None else []
    runtime = ["--runtime", options.runtime] if options.runtime != "docker" else []
    return [*words, "--state", str(options.state), *settings, *runtime]


def allows_host_jobs(options: Options) -> bool:
    return RUNTIMES[options.runtime] or options.settings.scheduler.host_jobs


def _service(options: Options) -> str:
    """Return the scheduler's unit, without the restrictions that conflict with the settings."""
    settings = options.settings
    left_out: set[str] = set()
    paths = [] if _is_made_by_systemd(options) else [str(options.state)]
    logs, mapping = options.state / "logs", options.settings.metrics.hpc_job_mapping_dir
    with suppress(PermissionError):  # a preview by a user who may not look into it
        if logs.is_symlink() and logs.lstat().st_uid == 0:  # on another disk
            paths.append(f"-{logs.resolve()}")
    if mapping is not None:
        paths.append(f"-{mapping}")
    if options.settings.hooks.mail_to:
        paths.append(_MAIL_PLACES)
    further = [f"ReadWritePaths={path}" for path in paths]
    changed: dict[str, str] = {}
    if _has_other_users(options):
        # to open members' mounts below the engine's root directory, which /proc shows, takes CAP_SYS_PTRACE
        more = " CAP_SYS_PTRACE" if settings.store.group is not None else ""
        changed["CapabilityBoundingSet"] = _OF_OTHERS + more
        left_out.add("RestrictSUIDSGID")
        further.append("SystemCallFilter=@chown")
    if settings.hooks.mail_to:
        left_out |= _FOR_SENDMAIL
    if allows_host_jobs(options):
        left_out |= _FOR_JOBS
        further += ["KillMode=process", "Delegate=yes"]
    if not _is_made_by_systemd(options):
        left_out |= {"StateDirectory", "StateDirectoryMode"}
    if _is_temporary(str(options.state), (settings.runtime.docker_host or "").removeprefix("unix://")):
        left_out.add("PrivateTmp")
        further.append(_TEMPORARY)
    return _relaxed(SERVICE, left_out, changed, further)


def _backup(options: Options, backups: Path) -> str:
    """Return the unit of the backup, which takes the writers' lock and records its result in the state directory."""
    left_out: set[str] = set()
    changed: dict[str, str] = {}
    if _has_other_users(options):
        changed["CapabilityBoundingSet"] = f"{_OF_OTHERS} CAP_DAC_READ_SEARCH"
        left_out.add("RestrictSUIDSGID")
    is_temporary = _is_temporary(str(options.state), str(backups))
    if is_temporary:
        left_out.add("PrivateTmp")
    return _relaxed(_BACKUP[0], left_out, changed, [_TEMPORARY] if is_temporary else [])


def _has_other_users(options: Options) -> bool:
    """Return whether the state directory belongs to another user than root, or to a group."""
    try:
        return options.settings.store.group is not None or options.state.stat().st_uid != 0
    except FileNotFoundError:
        return options.state != _DEFAULT_STATE and os.geteuid() != 0  # who makes it; systemd makes the default one
    except OSError:
        return False


def _is_made_by_systemd(options: Options) -> bool:
    """Return whether the unit may leave the state directory to systemd, which gives all files in it to root."""
    return options.state == _DEFAULT_STATE and not _has_other_users(options)


def _is_temporary(*paths: str) -> bool:
    return any(path.startswith(_PRIVATE) for path in paths)


def _relaxed(name: str, left_out: Collection[str], changed: Mapping[str, str], further: Iterable[str]) -> str:
    """Return a unit without some lines of its template, with others changed, and with further ones."""
    lines = _template(name).splitlines()
    kept = [_changed(line, changed) for line in lines if line.partition("=")[0] not in left_out]
    start = kept.index("[Service]")
    end = start + [*kept[start:], ""].index("")
    added = [line for line in further if line.partition("=")[0] not in left_out]
    return "\n".join([*kept[:end], *added, *kept[end:], ""])


def _changed(line: str, changed: Mapping[str, str]) -> str:
    key = line.partition("=")[0]
    return f"{key}={changed[key]}" if key in changed else line


def _template(name: str) -> str:
    return (files("gputui") / "systemd" / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template
