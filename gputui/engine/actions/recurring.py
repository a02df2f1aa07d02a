"""Actions on recurring jobs, and the time zones that they run by."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, tzinfo
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.action import AddRecurring, Done, PauseRecurring, RemoveRecurring, ResumeRecurring
from gputui.domain.errors import AccessError, InputError, NotFoundError
from gputui.domain.recurring import RecurringJob
from gputui.domain.spec_values import check_array
from gputui.domain.text import plain, plural, quoted
from gputui.engine.actions.admission import checked_spec, with_tenant
from gputui.engine.actions.agents import AGENT_GPUS
from gputui.engine.actions.context import ActionContext, PriorityCaps, check_own_recurring

MAX_TEXT = 1000
_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")
_DIRECTORY = "/zoneinfo/"
_POSIX = re.compile(r"([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d.*", re.ASCII)
"""Values of TZ that describe a zone, such as CET-1CEST,M3.5.0,M10.5.0/3."""


def find_zone(name: str) -> tzinfo:
    """Return the time zone of that name in the IANA database; raises InputError."""
    if name == "UTC":
        return UTC  # also known on hosts without the database
    from zoneinfo import ZoneInfo  # takes milliseconds, and no other command needs it

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        hint = "write it as in Europe/Berlin; they come with the package tzdata"
        raise InputError(f"{quoted(name)} is not a time zone on this host", where="--time-zone", hint=hint) from error


def local_zone_name(
    environ: Mapping[str, str] = os.environ, localtime: Path = _LOCALTIME, text: Path = _TIMEZONE
) -> str:
    """Return the name of this host's time zone, from TZ, /etc/localtime or /etc/timezone.

    Raises InputError if none of them names it, unless the host is at UTC: a guess would run jobs at wrong times.
    """
    check_local_zone("--time-zone", environ)
    candidates = [_bare(environ["TZ"])] if environ.get("TZ") else []
    if not candidates:
        with suppress(OSError):
            candidates.append(os.readlink(localtime).rpartition(_DIRECTORY)[2])  # noqa: PTH115 - not where it leads
        with suppress(OSError, UnicodeDecodeError):
            candidates.append(text.read_text().partition("\n")[0].strip())
    name = next((each for each in candidates if each and _is_known(each)), None)
    if name is None and (time.timezone or time.daylight):
        hint = "give it, as in --time-zone Europe/Berlin"
        raise InputError("the name of this host's time zone is unknown", where="--time-zone", hint=hint)
    return name or "UTC"


def check_local_zone(where: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise InputError if TZ names a zone that this host does not know, which the C library takes for UTC."""
    given = environ.get("TZ", "").removeprefix(":")
    if not given or _POSIX.fullmatch(given) or _is_known(_bare(given)) or (given[0] == "/" and Path(given).is_file()):
        return
    hint = "set TZ as in TZ=Europe/Berlin; zones come with the package tzdata"
    raise InputError(f"TZ is {quoted(given)}, which is not a time zone on this host", where=where, hint=hint)


def _bare(given: str) -> str:
    """Return the name of the zone in a value of TZ, which may be `:NAME` or the path of its file."""
    return given.removeprefix(":").rpartition(_DIRECTORY)[2]


def _is_known(name: str) -> bool:
    try:
        find_zone(name)
    except InputError:
        return False
    return True


def change_recurring(
    context: ActionContext, action: AddRecurring | PauseRecurring | ResumeRecurring | RemoveRecurring
) -> Done:
    """Add a recurring job, whose id differs from all job ids; or pause, resume or remove some, all of them or none."""
    if isinstance(action, AddRecurring):
        return _add(context, action)
    ids, verb = tuple(dict.fromkeys(action.ids)), action.verb.removesuffix("_recurring")
    with context.store.transaction() as transaction:
        for one in ids:
            if (before := transaction.recurring().get(one)) is None:
                raise NotFoundError(f"there is no recurring job {one}", hint="gputui cron list")
            check_own_recurring(context.caller, before)
            if isinstance(action, RemoveRecurring):
                transaction.remove_recurring(one)
                context.audit(transaction, verb, f"recurring {one}", _words(before), "")
            elif before.paused != (paused := isinstance(action, PauseRecurring)):
                after = replace(before, paused=paused).awaiting(find_zone(before.zone), context.clock.now())
                transaction.put_recurring(after)
                context.audit(transaction, verb, f"recurring {one}", _words(before), _words(after))
    return Done(ids)


def _add(context: ActionContext, action: AddRecurring) -> Done:
    recurrence, submission = action.recurrence, with_tenant(context, action.submission)
    check_array(submission)
    checked_spec(context, submission.spec)
    if len(recurrence.expression) > MAX_TEXT or plain(recurrence.name) != recurrence.name:
        hint = f"an expression of at most {MAX_TEXT} characters, and a name of one line"
        raise InputError("is too long, or has control characters", where="cron", hint=hint)
    PriorityCaps(context, context.store.controls()).check_new(submission.spec)
    if context.agent_gpus is not None:  # the jobs of its runs could not be counted
        raise AccessError("an agent adds no recurring jobs where access.agent_gpus is set", rule=AGENT_GPUS)
    if submission.spec.begin_at is not None:
        raise InputError("a recurring job has no begin time", where="--begin", hint="the expression says when")
    entry = recurrence.begun(submission, find_zone(recurrence.zone), context.actor, context.clock.now())
    with context.store.transaction() as transaction:
        _check_number(context, transaction.recurring().values())
        entry = transaction.add_recurring(entry)
        context.audit(transaction, "add", f"recurring {entry.id}", "", _words(entry))
    return Done((entry.id,))


def _check_number(context: ActionContext, present: Iterable[RecurringJob]) -> None:
    """Raise AccessError if a user has as many recurring jobs as one may have."""
    caller, site = context.caller, context.permissions
    if caller is None or caller.operates or site is None:
        return
    most = site.settings.admission.recurring
    if sum(each.uid == caller.uid for each in present) >= most:
        what = f"{caller.user} has {plural(most, 'recurring job')}, the most for one user"
        raise AccessError(what, rule="admission-recurring", hint="remove some: gputui cron remove")


def _words(entry: RecurringJob) -> str:
    return f"{'paused' if entry.paused else 'waiting'}: {entry.expression} in {entry.zone}"
