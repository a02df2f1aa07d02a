"""Checks of the service and its users: who answers at the socket, what this user may do, and who is root anyway."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from gputui.cli.checks import DoctorCheck, fail, ok, warn
from gputui.domain.access import EVERYBODY
from gputui.domain.errors import GputuiError
from gputui.domain.settings import Settings
from gputui.domain.text import format_duration, plural

_NAMED = 5
"""Users that are named."""


def of_answer(path: str, owner: str, user: str, role: str, silent_for: timedelta) -> DoctorCheck:
    """Judge what the owner of the queue tells; `owner` as in `serve of root, pid 4711,`."""
    name = "console" if owner.startswith("console") else "service"
    if silent_for:
        why = "It answers, and starts and ends no jobs."
        hint = "journalctl --unit gputui    # what it does; sudo systemctl restart gputui ends no job"
        if name == "console":
            hint = "quit it and start it again, or: gputui serve    # neither ends a job"
        return fail(name, f"{owner} has not scheduled for {format_duration(silent_for)}", why, hint)
    text = f"{owner} answers at {path}; {user} is {'an' if role == 'operator' else 'a'} {role}"
    if role == "viewer":
        why = "Viewers see the queue and the GPUs, and can submit nothing."
        hint = f'an operator adds "{user}" to users under [access] in /etc/gputui/config.toml'
        return warn(name, text, why, hint)
    return ok(name, text)


def of_silence(error: GputuiError) -> DoctorCheck:
    """Report a service that this user cannot ask."""
    why = "Only the service has the queue; nothing can be submitted."
    return fail("service", error.without_hint, why, error.hint or "")


def of_own_queue(directory: str, live: int) -> DoctorCheck:
    """Report live jobs in a directory of the user's own, beside the service's queue."""
    why = "The service does not start them, and a scheduler of yours would take GPUs that the service thinks free."
    return warn(
        "queue",
        f"{plural(live, 'live job')} in {directory}, a queue of your own",
        why,
        f"gputui --state {directory} queue",
    )


def of_settings(settings: Settings, has_socket: bool) -> DoctorCheck | None:
    """Judge the settings of a queue with users; None if nothing is wrong with them."""
    users, group = settings.access.users, settings.store.group
    if group is not None:
        why = "Its members can do everything to all jobs, past all roles."
        text = f"store.group is set: the group {group} writes the files of the queue"
        return (fail if users else warn)("access", text, why, f"{_INSTALL} --convert")
    if users and not has_socket:
        who = "all accounts" if EVERYBODY in users else ", ".join(users[:_NAMED])
        why = "Their commands find no socket that they may open."
        return warn("access", f"{who} may use the queue, but gputui.socket is not installed", why, _INSTALL)
    return None


def of_engine_group(group: str, members: Collection[str]) -> DoctorCheck | None:
    """Report users of the queue who may use the engine past it."""
    if not members:
        return None
    named = ", ".join(sorted(members)[:_NAMED])
    named += f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    why = "Whoever may use the engine's socket has root's rights on the machine, past all rules of the queue."
    return warn("access", f"in the group {group}: {named}", why, f"sudo gpasswd --delete USER {group}")


_INSTALL = "sudo gputui install --users"
