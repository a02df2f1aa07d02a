"""A console over several servers: it keeps no queue and never schedules; each server is reached over ssh."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap.servers import open_servers
from gputui.config import Options, templates_path
from gputui.console import own_log, startup
from gputui.console.app import ConsoleApp
from gputui.console.console import GIVE_WAY_AFTER, tell
from gputui.console.supervisor import ScreenFailedError, ScreenSupervisor
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.job import Job
from gputui.domain.settings import ServerSettings
from gputui.domain.snapshot import ServerView
from gputui.engine.feed import Feed
from gputui.ports.backend import Backend
from gputui.tui.app import PAGES
from gputui.tui.messages import ExitChoice
from gputui.tui.preferences import Preferences
from gputui.tui.services import FormSources, Services
from gputui.tui.themes.selection import appearance_of

_END_WITHIN = 3.0
"""Seconds for the connections to end."""


class ServersConsole:
    """Shows several servers until it is quit."""

    def __init__(self, options: Options, servers: Sequence[ServerSettings], preferences: Preferences) -> None:
        self._options = options
        self._preferences = preferences
        self._feed = Feed()
        self._there = open_servers(servers)
        self._publishing = threading.Thread(target=self._there.publish, args=(self._feed.publish,), daemon=True)
        self._names = ", ".join(server.name for server in servers)

    async def run(self) -> int:
        """Show the console; return the exit code. Raises ScreenFailedError after too many failures."""
        screens = ScreenSupervisor(self._app, own_log.own_log_path(startup.directory()))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, screens.leave, ExitChoice.PLAIN, 128 + signal.SIGTERM)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        connecting = asyncio.create_task(self._connect(screens.painted))
        try:
            _, code = await screens.run()
        finally:
            connecting.cancel()
            await asyncio.to_thread(self._there.close, _END_WITHIN)
        return code

    def _app(self) -> ConsoleApp:
        return ConsoleApp(
            self._feed,
            self._there,
            services(self._there, self._options, self._preferences, self._names),
            appearance_of(self._options.settings.console, os.environ),
        )

    async def _connect(self, painted: asyncio.Event) -> None:
        """Connect after the first frame, which no server delays."""
        await painted.wait()
        self._publishing.start()

    def _hang_up(self) -> None:
        """End with the connections: the screen's driver would wait for a terminal that will not answer."""
        closing = threading.Thread(target=self._there.close, args=(1.0,), daemon=True)
        closing.start()
        closing.join(2.0)
        os._exit(128 + signal.SIGHUP)


class _Logs:
    """Output of jobs."""

    def __init__(self, there: Backend) -> None:
        self.open = there.log


class _Access:
    """Shells and processes of jobs."""

    def __init__(self, there: Backend) -> None:
        self._there = there

    def shell(self, job: Job) -> Shell:
        return self._there.shell(job.id)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        return self._there.processes(job.id)

    def close(self) -> None:
        """Do nothing: the connections are closed with the console."""


def services(there: Backend, options: Options, preferences: Preferences, host: str = "") -> Services:
    """Return the services of a console over several servers."""

    def of_server(whole: Services, server: ServerView) -> Services:
        own = server.settings
        about = there.about(server.name)
        return replace(
            whole,
            settings=replace(whole.settings, scheduler=own.scheduler, policy=own.policy, servers=()),
            host=about.host,
            user=about.user,
            directory=about.home,
            forms=FormSources(lambda: tuple(there.images(server.name)), whole.forms.templates),
        )

    return Services(
        _Logs(there),
        options.settings,
        bootstrap.clock(),
        PAGES,
        host=host,
        user=bootstrap.actor().user,
        preferences=preferences,
        job_access=_Access(there),
        measured=lambda job: there.measured(job.id),
        past=there.history,
        forms=FormSources(templates=templates_path()),
        of_server=of_server,
    )


def run(options: Options, servers: Sequence[ServerSettings], preferences: Preferences) -> int:
    """Open the console over these servers."""
    sys.setswitchinterval(GIVE_WAY_AFTER)
    startup.directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    own_log.log_to_file(startup.directory(), options.settings.log.format)
    console = ServersConsole(options, servers, preferences)
    try:
        return asyncio.run(console.run())
    except ScreenFailedError as error:
        tell(error.fault)
        raise
