"""A queue for programs: `from gputui import Client, AsyncClient`.

The owner of the queue is asked, with the rights of this program's account. Calls raise `GputuiError`, and block for as
long as the owner needs; a call that changes something is carried out once, also if the owner is killed meanwhile.
Times are aware and in UTC, durations seconds, sizes bytes.
"""

from gputui.client.answers import (
    ArrayPlace,
    AttemptInfo,
    Because,
    Beginning,
    Event,
    GpuEvent,
    GpuInfo,
    JobEvent,
    JobInfo,
    NoticeEvent,
    WaitInfo,
)
from gputui.client.client import Client
from gputui.client.requests import JobOptions
from gputui.client.tasks import AsyncClient
from gputui.domain.errors import GputuiError

__all__ = [
    "ArrayPlace",
    "AsyncClient",
    "AttemptInfo",
    "Because",
    "Beginning",
    "Client",
    "Event",
    "GpuEvent",
    "GpuInfo",
    "GputuiError",
    "JobEvent",
    "JobInfo",
    "JobOptions",
    "NoticeEvent",
    "WaitInfo",
]
