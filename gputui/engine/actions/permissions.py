"""Permissions of users: options of docker run and longest time.

Options are checked at submission and again at the start: settings and links may have changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import docker_args
from gputui.domain.access import Caller
from gputui.domain.container import Launch
from gputui.domain.errors import InputError, InputErrors
from gputui.domain.job_spec import JobSpec
from gputui.domain.policy.permitted_options import (
    SOCKETS,
    OptionRefusal,
    limits_mounts,
    mount_refusal,
    mount_sources,
    option_refusals,
)
from gputui.domain.settings import AllowSettings, SchedulerSettings, Settings
from gputui.domain.text import format_duration
from gputui.engine.actions.plain_user import FileAccount, PlainUser, file_account, not_allowed


class UserPermissions(Struct, frozen=True):
    """Rules of the site for one state directory."""

    directory: Path
    settings: Settings

    def check(self, spec: JobSpec, uid: int, caller: Caller | None = None) -> None:
        """Raise InputError, or InputErrors with all of them, for options that this user may not use.

        Raises AccessError for what admission refuses to a plain user. With a caller the kernel has told who that is,
        and no account database is asked, which may be slow.
        """
        if caller is not None and not caller.operates:
            account = FileAccount(caller.uid, caller.gid, caller.groups, caller.user)
            self._plain_user(caller.uid).check(spec, account)
            return
        if caller is None and not self.is_operator(uid):
            self._plain_user(uid).check(spec, file_account(uid))
            return
        found = (*option_refusals(spec.options, self._allow), *self._mount_refusals(spec))
        errors = tuple(InputError(each.what, where=each.option, hint=each.hint) for each in found)
        if errors:
            raise errors[0] if len(errors) == 1 else InputErrors(errors)

    def permitted(self, root: Callable[[], str], launch: Launch, until: ExitStack) -> Launch:
        """Return the launch as the site allows it to its submitter, with links in its mounts resolved where limited.

        Raises RuntimeFault for options that this user may not use. `root` returns the root directory as the runtime
        sees it.
        """
        if launch.submitter is not None and not self.is_operator(launch.submitter):
            return self._plain_user(launch.submitter).admitted(root, launch, until)
        try:
            for each in (*option_refusals(launch.spec.options, self._allow), *self._mount_refusals(launch.spec)):
                raise not_allowed(each.sentence)
            spec = launch.spec if self._allow.mounts is None else _resolved(launch.spec)
        except OSError as error:
            text = f"{error.filename} cannot be mounted: {(error.strerror or str(error)).lower()}"
            raise not_allowed(f"{text} (make it before the job starts)") from error
        except ValueError as error:
            raise not_allowed(str(error)) from error
        return replace(launch, spec=spec)

    @property
    def _allow(self) -> AllowSettings:
        return self.settings.policy.allow

    def _mount_refusals(self, spec: JobSpec) -> Iterator[OptionRefusal]:
        for source in mount_sources(spec.options) if limits_mounts(self._allow) else ():
            try:
                resolved = os.path.realpath(source.path)
            except OSError as error:  # a link that only the engine may follow, such as /proc/1/root
                what = f"{source.path} cannot be checked: {error.filename}: {error.strerror}"
                yield OptionRefusal(source.option, what, "mount a directory that you may look into")
            else:
                if found := mount_refusal(source, resolved, self._allow, self._engine_sockets()):
                    yield found

    def _engine_sockets(self) -> list[str]:
        """Return the sockets of engines, without links."""
        address = self.settings.runtime.docker_host or os.environ.get("DOCKER_HOST", "")
        sockets = (*SOCKETS, *([address.removeprefix("unix://")] if address.startswith("unix://") else ()))
        return [os.path.realpath(path) for path in sockets]

    def _plain_user(self, uid: int) -> PlainUser:
        ours = filter(None, [self.settings.access.socket])
        guarded = (*self._engine_sockets(), *map(os.path.realpath, ours))
        return PlainUser(uid, self.directory, self.settings, guarded)

    def is_operator(self, uid: int) -> bool:
        """Return whether this user is root, owns the state directory, or is named by `policy.operators`."""
        if uid == 0:
            return True
        try:
            if self.directory.stat().st_uid == uid:
                return True
        except OSError:
            pass
        return any(_is(uid, name) for name in self.settings.policy.operators)


def account_number(name: str) -> tuple[int | None, bool]:
    """Return the id of a name of the settings, `alice` or `@group`, and whether it is a group's; None: unknown."""
    import grp
    import pwd

    word = name.removeprefix("@")
    is_group = word != name
    try:
        if word.isascii() and word.isdigit():
            return int(word), is_group
        return grp.getgrnam(word).gr_gid if is_group else pwd.getpwnam(word).pw_uid, is_group
    except KeyError:
        return None, is_group


def _is(uid: int, name: str) -> bool:
    """Return whether the name, or the group after an @, is this user's."""
    import pwd

    number, is_group = account_number(name)
    if number is None or not is_group:
        return number == uid
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return False
    return number in os.getgrouplist(account.pw_name, account.pw_gid)


def _resolved(spec: JobSpec) -> JobSpec:
    """Return the spec with mount paths without links, as they were checked."""
    volumes, mounts = [], []
    for text in spec.options.volumes:
        source = docker_args.volume_source(text)
        real = os.path.realpath(source) if source.startswith("/") else source
        if ":" in real:
            raise ValueError(f"{source} is {real}, which has a colon in it")
        volumes.append(real + text[len(source) :])
    for text in spec.options.mounts:
        wanted = docker_args.mount(text)
        is_bind = wanted.kind == "bind"
        mounts.append(docker_args.with_source(text, os.path.realpath(wanted.source)) if is_bind else text)
    return replace(spec, options=replace(spec.options, volumes=tuple(volumes), mounts=tuple(mounts)))


def within_time_limits(spec: JobSpec, settings: SchedulerSettings) -> JobSpec:
    """Return the spec with the site's time limit; raises InputError for a longer one or a pointless warning."""
    longest, limit = settings.max_time, spec.time_limit
    if longest is not None and limit is not None and limit > longest:
        text = f"{format_duration(limit)} is longer than a job may run here"
        hint = f"at most {format_duration(longest)}: the setting scheduler.max_time"
        raise InputError(text, where="--time-limit", hint=hint)
    if limit is None and longest is not None and settings.limit_all:
        limit = longest
        spec = replace(spec, time_limit=limit)
    check_warning(spec)
    return spec


def check_warning(spec: JobSpec) -> None:
    """Raise InputError for a warning without a time limit, or before the start."""
    limit = spec.time_limit
    if spec.warning is not None and limit is None:
        raise InputError("warns of a time limit, but the job has none", where="--signal", hint="add --time-limit")
    if spec.warning is not None and limit is not None and spec.warning.before >= limit:
        text = f"{format_duration(spec.warning.before)} before the end is before the start"
        raise InputError(text, where="--signal", hint=f"the time limit is {format_duration(limit)}")
