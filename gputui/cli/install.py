"""`gputui install`: systemd units for this installation."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import click

from gputui.bootstrap import upkeep
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.config.options import typed_path
from gputui.domain.errors import GputuiError, InputError
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
        click.echo(listing(wanted), nl=False)
        return 0
    changed = changes(wanted)
    if not changed:
        click.echo(f"the units in {plain(unit_dir)} are up to date")
        return 0
    if not agreed(changed, "install", yes=yes):
        return 1
    if place is not None:
        _make(place)
    if session.options.state != _DEFAULT_STATE:  # systemd starts no service whose ReadWritePaths are missing
        upkeep.make_directory(session.options)
    write(changed, option="--unit-dir")
    _say_what_is_next(session, with_backups=place is not None)
    return 0


def _make(place: Path) -> None:
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise GputuiError(f"cannot be made: {error.strerror}", where=str(place)) from error


def _say_what_is_next(session: Session, *, with_backups: bool) -> None:
    timer = " gputui-backup.timer" if with_backups else ""
    click.echo(f"now: systemctl daemon-reload && systemctl enable --now {SERVICE}{timer}")
    if allows_host_jobs(session.options):
        click.echo(
            "host jobs are on: they are processes of the service, so it is hardly hardened. If nobody needs them, set\n"
            "host_jobs = false under [scheduler] in /etc/gputui/config.toml, and run gputui install again"
        )


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
        found |= {name: _filled(_template(name), values) for name in _BACKUP}
    return found


def scheduler_command(options: Options) -> list[str]:
    """Return the words that run this gputui on this state directory, from anywhere."""
    script = Path(sys.executable).with_name("gputui")
    words = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "gputui"]
    settings = ["--config", str(options.config)] if options.config is not None else []
    runtime = ["--runtime", options.runtime] if options.runtime != "docker" else []
    return [*words, "--state", str(options.state), *settings, *runtime]


def allows_host_jobs(options: Options) -> bool:
    """Return whether the scheduler of these options runs host jobs."""
    return options.runtime == "process" or options.settings.scheduler.host_jobs


def _service(options: Options) -> str:
    """Return the scheduler's unit, without the restrictions that conflict with the settings."""
    settings = options.settings
    lines = _template(SERVICE).splitlines()
    left_out: frozenset[str] = frozenset()
    further: list[str] = []
    changed: dict[str, str] = {}
    if settings.store.group is not None:
        changed |= {"StateDirectoryMode": "2770", "CapabilityBoundingSet": "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER"}
        further.append("SystemCallFilter=@chown")
    if settings.hooks.mail_to:
        left_out |= _FOR_SENDMAIL
    if allows_host_jobs(options):
        left_out |= _FOR_JOBS
        further += ["KillMode=process", "Delegate=yes"]
    if options.state != _DEFAULT_STATE:
        left_out |= {"StateDirectory", "StateDirectoryMode"}
        further.append(f"ReadWritePaths={options.state}")
    kept = [_changed(line, changed) for line in lines if line.partition("=")[0] not in left_out]
    end = kept.index("", kept.index("[Service]"))
    further = [line for line in further if line.partition("=")[0] not in left_out]
    return "\n".join([*kept[:end], *further, *kept[end:], ""])


def _changed(line: str, changed: Mapping[str, str]) -> str:
    key = line.partition("=")[0]
    return f"{key}={changed[key]}" if key in changed else line


def _template(name: str) -> str:
    return (files("gputui") / "systemd" / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template
