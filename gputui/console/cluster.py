"""Differences of a console whose queue belongs to a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from gputui.bootstrap import clusters
from gputui.config import Options, templates_path
from gputui.console import startup
from gputui.domain.attempt import Attempt
from gputui.domain.cluster import Capability, Caps
from gputui.domain.job import Job
from gputui.domain.telemetry_words import unread_words
from gputui.ports import Queue
from gputui.tui.services import FormSources, Services


class Lacking(Mapping[Capability, str]):
    """Missing capabilities of the cluster as it is now: the user's rights are known after its first answer."""

    def __init__(self, caps: Callable[[], Caps]) -> None:
        self._caps = caps

    def __getitem__(self, capability: Capability) -> str:
        caps = self._caps()
        if capability in caps.lacking:
            return caps.lacking[capability]
        if capability in _LOCAL:
            return f"gputui has that for the queue of one machine, not for {caps.engine}"
        raise KeyError(capability)

    def __iter__(self) -> Iterator[Capability]:
        yield from dict.fromkeys((*self._caps().lacking, *_LOCAL))

    def __len__(self) -> int:
        return len(set(self))


def _unread(store: Queue, is_read: bool, job: Job, attempt: Attempt) -> str:
    return unread_words(job, attempt, clusters.caps(store).engine, is_read=is_read)


_LOCAL = (Capability.WHAT_IF,)
"""Capabilities that the console has for the queue of this machine alone."""


def console_options(options: Options) -> Options:
    """Return the options of the console: its log lies in a directory of the user, and it makes no forecasts itself."""
    directory = startup.directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = replace(options.settings, console=replace(options.settings.console, what_if="off"))
    return replace(options, state=directory, settings=settings)


def console_services(services: Services, store: Queue) -> Services:
    """Return the services with what a cluster has in place of this machine."""
    return replace(
        services,
        cluster_name=partial(clusters.name, store),
        foreign=None,
        lacking=Lacking(partial(clusters.caps, store)),
        expected_start=partial(clusters.expected_start, store),
        gpu_past=lambda: (),
        measured=partial(clusters.measured, store),
        unread=partial(_unread, store, services.settings.cluster.probe != "off"),
        forms=FormSources(templates=templates_path()),
    )
