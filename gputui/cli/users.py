"""`gputui install --users`: the settings of a queue for all accounts, and the way there from a shared directory."""

from __future__ import annotations

import grp
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import upkeep
from gputui.cli import terminal
from gputui.config import Options, options
from gputui.domain.access import EVERYBODY
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.text import plain
from gputui.domain.units import plural

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
        _check_group(name[1:])
    path = found.site or found.config or options.SITE_CONFIG
    content = with_users(_text(path), name, str(path))
    is_shared = found.settings.store.group is not None or _is_shared(found)
    if is_shared and not converts:
        what = "a group shares this state directory, so its members could go on doing everything to all jobs"
        hint = f"gputui install {_OPTION} --convert takes it over, after a backup"
        raise GputuiError(what, where=str(found.state), hint=hint)
    if converts and not is_shared:
        raise InputError("no group shares this state directory: leave it out", where="--convert")
    _check_owner(found.state)
    if is_shared:
        content = without_group(content, str(path))
    if is_shared and (leader := upkeep.leader(found)) is not None:
        what = f"{leader.kind} of {leader.user}, pid {leader.pid}, schedules there"
        raise GputuiError(what, where=str(found.state), hint="stop it, then convert; jobs run on")
    access, store = found.settings.access, found.settings.store
    users = access.users or (name,)
    settings = replace(found.settings, access=replace(access, users=users), store=replace(store, group=None))
    return UsersPlan(replace(found, settings=settings), path, content, is_shared and found.state.exists())


def convert(found: Options, backups: Path | None) -> None:
    """Take over the state directory, which a group shares by its present settings, and say what came of it."""
    now = bootstrap.clock().now()
    name = f"{found.state.name}-before-users-{now:%Y%m%dT%H%M%SZ}.tar.gz"
    backup = (backups or found.state.parent) / name
    done = upkeep.convert(found, backup, now)
    terminal.echo(f"wrote {plain(str(backup))}, the queue as it was")
    terminal.echo(f"{plain(str(found.state))} belongs to {bootstrap.user_name(os.geteuid())} alone now")
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
    """Return a settings file in which `access.users` is set; unchanged if it was."""
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _check_group(name: str) -> None:
    try:
        grp.getgrnam(name)
    except KeyError:
        hint = f"make it: groupadd {name}, and add users: usermod --append --groups {name} USER"
        raise InputError(f"there is no group {name!r}", where=_OPTION, hint=hint) from None


def _is_shared(found: Options) -> bool:
    try:
        return upkeep.is_shared(found)
    except PermissionError:  # a preview by a user who may not look into it
        return False


def _check_owner(state: Path) -> None:
    """Raise GputuiError for a directory of another account: the service of root would serve that account's queue."""
    try:
        uid = state.stat().st_uid
    except (FileNotFoundError, PermissionError):
        return
    if uid != 0:
        hint = f"sudo chown root {state}, or name another one by --state"
        raise GputuiError(f"it belongs to {bootstrap.user_name(uid)}, not to root", where=str(state), hint=hint)
