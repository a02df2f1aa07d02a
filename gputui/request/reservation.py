"""A reservation as requested by options or by a form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.gpu import Gpu, find_gpu
from gputui.domain.settings import Window
from gputui.request import job_values
from gputui.request.times import span

FIELDS = ("gpus", "start", "for", "until", "tenant", "priority", "nobody", "name")
"""Fields of the reservation form; `nobody` is a check box."""


def read_reservation(given: Mapping[str, str], user: str, now: datetime, gpus: Sequence[Gpu]) -> Window:
    """Return the reservation for these fields, over these GPUs; raises InputError, whose `where` is the field."""
    start, end = times(given, now, ("start", "for", "until"))
    tenant, priority = whom(given, user)
    name = job_values.one_line(given["name"], "name", 64) if given.get("name") else ""
    window = Window(name, start, end, 0, (), tenant, priority)
    asked = job_values.gpus(given.get("gpus", ""), "gpus")
    if asked.everything:
        return replace(window, count=sum(not gpu.mig_enabled for gpu in gpus))
    if asked.devices:
        uuids = [gpu.uuid for gpu in gpus]
        try:
            return replace(window, gpus=tuple(dict.fromkeys(find_gpu(uuids, name) for name in asked.devices)))
        except NotFoundError as error:
            raise InputError(error.what, where="gpus") from error
    if asked.minimum != asked.maximum or not asked.minimum:
        raise InputError("a reservation needs a number of GPUs", where="gpus", hint="write 4, all or device=0,1")
    return replace(window, count=asked.minimum)


def times(
    given: Mapping[str, str], now: datetime, names: tuple[str, str, str], dashes: str = ""
) -> tuple[datetime, datetime]:
    """Return start and end; `names` are the fields of start, duration and end, of which one of the last two is
    required, unless the first is a span such as `Mon 9-17`."""
    begins, lasts, ends = names
    if found := span(given.get(begins) or "+0", dashes + begins, now):
        if given.get(ends) or given.get(lasts):
            hint = f"leave out {dashes}{ends} and {dashes}{lasts}"
            raise InputError("has an end already", where=dashes + begins, hint=hint)
        return found
    if bool(given.get(ends)) == bool(given.get(lasts)):
        hint = f"{dashes}{ends} 2026-12-01T17:00, or {dashes}{lasts} 8h"
        raise InputError("either a time or a duration", where=dashes + ends, hint=hint)
    start = job_values.begin(given.get(begins) or "+0", dashes + begins, now)
    if lasting := given.get(lasts):
        return start, start + job_values.time_span(lasting, dashes + lasts)
    return start, job_values.begin(given[ends], dashes + ends, now, start)


def whom(given: Mapping[str, str], user: str, dashes: str = "") -> tuple[str | None, int | None]:
    """Return the tenant and the priority of the reservation; by default the user's own tenant."""
    tenant = job_values.tenant_name(given["tenant"], f"{dashes}tenant") if given.get("tenant") else None
    priority = job_values.priority(given["priority"], f"{dashes}priority") if given.get("priority") else None
    if given.get("nobody"):
        if tenant is not None or priority is not None:
            raise InputError(f"cannot be combined with {dashes}tenant or {dashes}priority", where=f"{dashes}nobody")
        return None, None
    return (user if tenant is None and priority is None else tenant), priority
