"""`gputui install`: systemd units for this installation, and with `--users` a queue for all accounts."""

from __future__ import annotations

import grp
import os
import re
import stat
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from gputui import bootstrap, config
from gputui.bootstrap import upkeep
from gputui.cli import terminal
from gputui.cli.offered_files import agreed, agrees, changes, listing, write
from gputui.cli.session import Session, pass_session
from gputui.config import ROOT_STATE, SERVICE_SOCKET, Options, typed_path
from gputui.domain.access import EVERYBODY
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.text import plain, plural, user_name

_OPTION = "--users"
_ACCESS = re.compile(r"^\[access\][^\S\n]*(#.*)?$", re.MULTILINE)
_STORE = re.compile(r"^\[store\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)
_GROUP = re.compile(r"^([^\S\n]*group[^\S\n]*=)", re.MULTILINE)


class UsersPlan(Struct, frozen=True):
    """Change of settings and files by which the queue gets users."""

    options: Options
    """Options with the settings as they will be."""
    file: Path
    """Settings file."""
    content: str
    """Content of that file as it will be."""
    converts: bool = False
    """True if the state directory is one that a group shared, and is taken over."""


def plan(found: Options, group: str, *, converts: bool) -> UsersPlan:
    """Return how the queue gets users: all accounts (`group` is `*`) or the members of a group; raises GputuiError."""
    name = EVERYBODY if group == EVERYBODY else f"@{group.removeprefix('@')}"
    if name != EVERYBODY:
        try:
            grp.getgrnam(name[1:])
        except KeyError:
            hint = f"make it: groupadd {name[1:]}, and add users: usermod --append --groups {name[1:]} USER"
            raise InputError(f"there is no group {name[1:]!r}", where=_OPTION, hint=hint) from None
    path = found.site or found.config or config.SITE_CONFIG
    text = ""
    with suppress(FileNotFoundError):
        text = path.read_text(encoding="utf-8")
    content = with_users(text, name, str(path))
    is_shared = found.settings.store.group is not None
    with suppress(PermissionError):  # a preview by a user who may not look into it
        is_shared = is_shared or upkeep.is_shared(found)
    if is_shared and not converts:
        what = "a group shares this state directory, so its members could go on doing everything to all jobs"
        hint = f"gputui install {_OPTION} --convert takes it over, after a backup"
        raise GputuiError(what, where=str(found.state), hint=hint)
    if converts and not is_shared:
        raise InputError("no group shares this state directory: leave it out", where="--convert")
    with suppress(FileNotFoundError, PermissionError):
        # the service of root would serve the queue of the account that has the directory
        if (uid := found.state.stat().st_uid) != 0:
            hint = f"sudo chown root {found.state}, or name another one by --state"
            hint = hint if os.geteuid() == 0 else f"sudo gputui install {_OPTION}, whose queue is root's"
            raise GputuiError(f"it belongs to {user_name(uid)}, not to root", where=str(found.state), hint=hint)
    if is_shared:
        content = without_group(content, str(path))
    from gputui.engine.leadership import current_leader

    if is_shared and (leader := current_leader(found.state)) is not None:
        what = f"{leader.kind} of {leader.user}, pid {leader.pid}, schedules there"
        raise GputuiError(what, where=str(found.state), hint="stop it, then convert; jobs run on")
    access, store = found.settings.access, found.settings.store
    users = access.users or (name,)
    settings = replace(found.settings, access=replace(access, users=users), store=replace(store, group=None))
    return UsersPlan(replace(found, settings=settings), path, content, is_shared and found.state.exists())


def take_over(found: Options, backups: Path | None) -> None:
    """Take over the state directory, which a group shares by its present settings, and say what came of it."""
    now = bootstrap.clock().now()
    name = f"{found.state.name}-before-users-{now:%Y%m%dT%H%M%SZ}.tar.gz"
    backup = (backups or found.state.parent) / name
    done = upkeep.convert(found, backup, now)
    terminal.echo(f"wrote {plain(str(backup))}, the queue as it was")
    terminal.echo(f"{plain(str(found.state))} belongs to {user_name(os.geteuid())} alone now")
    terminal.echo(f"{plural(done.proven, 'job')} of proven submitters stay as they are")
    if done.held:
        ids = " ".join(map(str, done.held))
        terminal.echo(f"held, because nothing proves who submitted them; to be submitted again: {ids}")
    if done.paused:
        ids = " ".join(map(str, done.paused))
        terminal.echo(f"recurring jobs that were paused for the same reason: {ids}")
    for left in done.left:
        terminal.echo(f"left as it was: {plain(left)}")


def with_users(text: str, name: str, where: str) -> str:
    access = _parsed(text, where).get("access", {})
    if known := access.get("users"):
        if name not in (EVERYBODY, *known):
            hint = f"set access.users there, and leave out the group: gputui install {_OPTION}"
            raise InputError(f"the settings name other users: {', '.join(map(str, known))}", where=where, hint=hint)
        return text
    line = f'users = ["{name}"]'
    if not access:
        before = text.rstrip("\n") + "\n\n" if text.strip() else ""
        return f"{before}[access]\n{line}\n"
    changed = _ACCESS.sub(lambda header: f"{header[0]}\n{line}", text, count=1)
    return _checked(text, changed, where, ("access", "users"), [name])


def without_group(text: str, where: str) -> str:
    """Return a settings file without `store.group`, which stays there as a comment."""
    if "group" not in _parsed(text, where).get("store", {}):
        return text
    changed = _STORE.sub(lambda table: _GROUP.sub(r"# \1", table[0], count=1), text, count=1)
    return _checked(text, changed, where, ("store", "group"), None)


def _checked(before: str, after: str, where: str, key: tuple[str, str], value: object) -> str:
    """Return the changed file if it differs in this key alone; raises InputError for one that is written otherwise."""
    wanted = _parsed(before, where)
    table = wanted.setdefault(key[0], {})
    if value is None:
        table.pop(key[1], None)
    else:
        table[key[1]] = value
    try:
        is_as_wanted = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        is_as_wanted = False
    if not is_as_wanted:
        what = f"set {key[0]}.{key[1]} = {value} there by hand" if value else f"remove {key[0]}.{key[1]} there by hand"
        raise InputError("it is written in a way that gputui does not change", where=where, hint=what)
    return after


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", where=where) from error


UNITS = "/etc/systemd/system"


@click.command("install")
@click.option("--dry-run", is_flag=True, help="Print the files, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--backups", metavar="DIR", help="Add a daily backup into DIR, which keeps the last two weeks.")
@click.option(
    "--users",
    is_flag=False,
    flag_value=EVERYBODY,
    metavar="[GROUP]",
    help="Let all accounts of the machine use the queue, or the members of a group, each with their own rights.",
)
@click.option("--convert", is_flag=True, help="With --users: take over a state directory that a group shared.")
@click.option("--remove", is_flag=True, help="Remove the units. The queue stays.")
@click.option("--unit-dir", default=UNITS, metavar="DIR", help=f"Directory of the units; {UNITS} by default.")
@pass_session
def command(
    session: Session,
    dry_run: bool,
    yes: bool,
    backups: str | None,
    users: str | None,
    convert: bool,
    remove: bool,
    unit_dir: str,
) -> int:
    """Write systemd units that run the scheduler as a service.

    The units are for this gputui and this state directory, and as hardened as the settings allow: host jobs and mail
    need fewer restrictions. Prints the changes, asks, and prints the commands that start the service.

    With --users it also sets `access.users` in the settings file, and adds the socket at which users' commands ask.
    They need neither the state directory nor the docker group.
    """
    if convert and users is None:
        raise click.UsageError("--convert is for --users")
    if remove:
        return _remove(Path(unit_dir), dry_run=dry_run, yes=yes)
    place = typed_path(backups, "--backups") if backups else None
    planned = plan(session.options, users, converts=convert) if users is not None else None
    options = planned.options if planned else session.options
    wanted = {Path(unit_dir) / name: content for name, content in units(options, place).items()}
    if planned:
        wanted = {planned.file: planned.content, **wanted}
    if dry_run:
        terminal.echo(listing(wanted), nl=False)
        return 0
    changed = changes(wanted)
    if changed and not agreed(changed, "install", yes=yes):
        return 1
    if place is not None:
        _make(place, 0o700)
    if planned and planned.file in changed:
        _make(planned.file.parent, 0o755)
        write({planned.file: changed.pop(planned.file)}, option="--config")
    if planned and planned.converts:
        take_over(session.options, place)
    if not _is_made_by_systemd(options):  # systemd starts no service whose ReadWritePaths are missing
        upkeep.make_directory(options)
    if not changed:
        terminal.echo(f"the units in {plain(unit_dir)} are up to date")
        return 0
    is_new = not (Path(unit_dir) / SERVICE).exists()
    write(changed, option="--unit-dir")
    _say_what_is_next(options, is_new=is_new, has_backups=place is not None)
    return 0


def _make(directory: Path, mode: int) -> None:
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise GputuiError(f"cannot be made: {error.strerror}", where=str(directory)) from error


def _say_what_is_next(options: Options, *, is_new: bool, has_backups: bool) -> None:
    names = [SOCKET_UNIT, SERVICE] if options.settings.access.users else [SERVICE]
    names += ["gputui-backup.timer"] if has_backups else []
    # systemd listens for no service that runs already
    stop = "" if is_new or not options.settings.access.users else f"systemctl stop {SERVICE} && "
    terminal.echo(f"now: systemctl daemon-reload && {stop}systemctl enable --now {' '.join(names)}")
    if options.settings.access.users:
        program = Path(sys.executable)
        ways = (*reversed(program.parents), *reversed(program.resolve().parents))
        closed = next((each for each in ways if each.exists() and not each.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            terminal.echo(
                f"users cannot run this gputui, as {closed} is closed to them: install it in /opt/gputui, and again"
            )
    if allows_host_jobs(options):
        terminal.echo(
            "host jobs are on: they are processes of the service, so it is hardly hardened. If nobody needs them, set\n"
            "host_jobs = false under [scheduler] in /etc/gputui/config.toml, and run gputui install again"
        )


def _remove(directory: Path, *, dry_run: bool, yes: bool) -> int:
    paths = [path for name in ALL_UNITS if (path := directory / name).exists()]
    if not paths:
        terminal.echo(f"there are no units of gputui in {plain(str(directory))}")
        return 0
    if enabled := sorted({link.name for name in ALL_UNITS for link in directory.glob(f"*.wants/{name}")}):
        hint = f"systemctl disable --now {' '.join(enabled)}"
        raise GputuiError("systemd still starts them", where=str(directory), hint=hint)
    for path in paths:
        terminal.echo(f"remove {plain(str(path))}")
    if dry_run:
        return 0
    if not yes and not agrees("install", "Remove them?"):
        terminal.echo("nothing was changed", err=True)
        return 1
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise GputuiError(f"cannot be removed: {error.strerror}", where=str(path), hint="run it as root") from error
    terminal.echo("now: systemctl daemon-reload; queue and settings are still there")
    return 0


SERVICE = "gputui.service"
SOCKET_UNIT = "gputui.socket"
_BACKUP = ("gputui-backup.service", "gputui-backup.timer")
ALL_UNITS = (SOCKET_UNIT, SERVICE, *_BACKUP)
_PLAIN = re.compile(r"[\w/.,:@+=-]+", re.ASCII)
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
_OF_MOUNTS = "CAP_DAC_READ_SEARCH CAP_SETGID CAP_SETUID CAP_SYS_PTRACE"
"""Capabilities without which root can neither open users' directories with their rights, nor in the engine's tree."""
_AS_USERS = "SystemCallFilter=setgroups setfsgid setfsuid"
"""Line that lets a thread open files with a user's rights."""
_PRIVATE = ("/tmp/", "/var/tmp/")  # noqa: S108 - compared, not used
"""Beginnings of paths that PrivateTmp hides."""
_TEMPORARY = "ReadWritePaths=/tmp /var/tmp"
"""Line in place of PrivateTmp."""


def units(options: Options, backups: Path | None = None) -> dict[str, str]:
    script = Path(sys.executable).with_name("gputui")
    words = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "gputui"]
    words += ["--state", str(options.state)]
    words += ["--config", str(options.config)] if options.config is not None else []
    words += ["--runtime", options.runtime] if options.runtime != "docker" else []
    for word in (*words, *((str(backups),) if backups is not None else ())):
        if not _PLAIN.fullmatch(word):
            hint = "systemd would read other characters its own way: use a path of letters, digits and /._-"
            raise InputError(f"{word!r} cannot stand in a unit", where="install", hint=hint)
    values = {"COMMAND": " ".join(words), "STATE": str(options.state)}
    found = {SERVICE: _filled(_service(options), values)}
    if options.settings.access.users:
        # only a group may open the socket if all users are that group's members
        access = options.settings.access
        place = access.socket or SERVICE_SOCKET
        if not _PLAIN.fullmatch(place) or not place.startswith("/"):
            raise InputError(
                f"{place!r} cannot stand in a unit", where="access.socket", hint="name it by an absolute path"
            )
        text = _filled(_template(SOCKET_UNIT), {"SOCKET": place})
        if len(access.users) == 1 and access.users[0].startswith("@"):
            group = access.users[0][1:]
            text = text.replace("SocketMode=0666\n", f"SocketMode=0660\nSocketGroup={group}\n")
        found[SOCKET_UNIT] = text
    if backups is not None:
        values["BACKUPS"] = str(backups)
        service, timer = _BACKUP
        found |= {service: _filled(_backup(options, backups), values), timer: _filled(_template(timer), values)}
    return found


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
        changed["CapabilityBoundingSet"] = _OF_OTHERS
        left_out.add("RestrictSUIDSGID")
        further.append("SystemCallFilter=@chown")
    elif options.settings.access.users:
        changed["CapabilityBoundingSet"] = _OF_MOUNTS
        further.append(_AS_USERS)
    if settings.hooks.mail_to:
        left_out |= _FOR_SENDMAIL
    if options.settings.access.users:
        further.append(f"Sockets={SOCKET_UNIT}")
    if allows_host_jobs(options) or options.settings.access.users:
        further.append("KillMode=process")  # host jobs, and connections to jobs, outlive a restart
    if allows_host_jobs(options):
        left_out |= _FOR_JOBS
        further.append("Delegate=yes")
    if not _is_made_by_systemd(options):
        left_out |= {"StateDirectory", "StateDirectoryMode"}
    socket = (settings.runtime.docker_host or "").removeprefix("unix://")
    if str(options.state).startswith(_PRIVATE) or socket.startswith(_PRIVATE):
        left_out.add("PrivateTmp")
        further.append(_TEMPORARY)
    return _relaxed(SERVICE, left_out, changed, further)


def _backup(options: Options, backups: Path) -> str:
    left_out: set[str] = set()
    changed: dict[str, str] = {}
    if _has_other_users(options):
        changed["CapabilityBoundingSet"] = f"{_OF_OTHERS} CAP_DAC_READ_SEARCH"
        left_out.add("RestrictSUIDSGID")
    is_temporary = str(options.state).startswith(_PRIVATE) or str(backups).startswith(_PRIVATE)
    if is_temporary:
        left_out.add("PrivateTmp")
    return _relaxed(_BACKUP[0], left_out, changed, [_TEMPORARY] if is_temporary else [])


def _has_other_users(options: Options) -> bool:
    try:
        return options.state.stat().st_uid != 0
    except FileNotFoundError:
        return options.state != ROOT_STATE and os.geteuid() != 0  # who makes it; systemd makes the default one
    except OSError:
        return False


def _is_made_by_systemd(options: Options) -> bool:
    """Return whether the unit may leave the state directory to systemd, which gives all files in it to root."""
    return options.state == ROOT_STATE and not _has_other_users(options)


def _relaxed(name: str, left_out: Collection[str], changed: Mapping[str, str], further: Iterable[str]) -> str:
    keyed = [(line.partition("=")[0], line) for line in _template(name).splitlines()]
    kept = [f"{key}={changed[key]}" if key in changed else line for key, line in keyed if key not in left_out]
    start = kept.index("[Service]")
    end = start + [*kept[start:], ""].index("")
    added = [line for line in further if line.partition("=")[0] not in left_out]
    return "\n".join([*kept[:end], *added, *kept[end:], ""])


def _template(name: str) -> str:
    return (files("gputui") / "systemd" / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template
