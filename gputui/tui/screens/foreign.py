"""Pages of foreign processes and containers, and the thread that carries out actions on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_processes import ContainerDetail, GpuProcessRow, process_target
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.ports import LogStream
from gputui.tui.actions import ActionDone, ActionFailed
from gputui.tui.commands.command import Command, bindings
from gputui.tui.commands.table import APP_COMMANDS, BACK, LOG_COMMANDS, STOP_CONTAINER
from gputui.tui.log.follower import LogFollower
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.process import FAULT, container_lines, process_page
from gputui.tui.present.style import DIM, STRONG
from gputui.tui.progress import LatestWorker
from gputui.tui.screens.dialog import ScrollingDialog
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines
from gputui.tui.widgets.status_bars import KeyBar


def act(app: App[Any], begun: str, call: Callable[[], str]) -> None:
    """Carry out an action on its own thread and show its result on the screen that is in front by then."""
    app.notify(begun)

    def run() -> None:
        try:
            told: Message = ActionDone(call())
        except GputuiError as error:
            told = ActionFailed(error)
        except Exception as error:  # noqa: BLE001 - a border: whatever went wrong is told
            told = ActionFailed(GputuiError(f"{type(error).__name__}: {error}", where="gputui"))
        app.post_message(told)

    Thread(target=run, name="gputui-foreign", daemon=True).start()


def ask_stop(screen: Screen[Any], use: ForeignUse, container_id: str, words: str) -> None:
    from gputui.tui.screens.questions import Confirm

    def answered(yes: bool | None) -> None:
        if yes:
            act(screen.app, f"Stopping container {words} …", lambda: use.stop(container_id))

    detail = "It gets its stop signal, and is killed when its stop timeout is over, 10 s unless it has its own."
    screen.app.push_screen(Confirm(plain(f"Stop container {words}?", 200), detail), answered)


@dataclass(eq=False)
class EnvironmentRead(Message, bubble=False):
    """Message with the environment of a process, or why it cannot be read."""

    environment: tuple[str, ...] | None
    refusal: str = ""


class ProcessPage(ScrollingDialog):
    """Page of a process, with its environment if this user may read it."""

    DEFAULT_CSS = """
    ProcessPage VerticalScroll {
        width: 90%; max-width: 112; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    """

    def __init__(self, row: GpuProcessRow, use: ForeignUse | None) -> None:
        super().__init__()
        self._row = row
        self._use = use
        self._environment: tuple[str, ...] | None = None
        self._refusal = ""
        self._worker = LatestWorker(self.post_message, lambda error: EnvironmentRead(None, str(error)))

    def compose(self) -> ComposeResult:
        with VerticalScroll() as body:
            body.border_title = f"Process {self._row.pid}"
            body.border_subtitle = self.how
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        self.show_lines()
        self._worker.ask(lambda is_wanted: self._read())

    def on_unmount(self) -> None:
        self._worker.close()

    def _read(self) -> EnvironmentRead:
        target = process_target(self._row)
        if self._use is None or target is None:
            return EnvironmentRead(None, "it cannot be read from here")
        if target.ticks is None:
            return EnvironmentRead(None, "the process cannot be identified from here")
        try:
            return EnvironmentRead(self._use.environment(target))
        except GputuiError as error:
            return EnvironmentRead(None, str(error))

    def on_environment_read(self, message: EnvironmentRead) -> None:
        self._environment, self._refusal = message.environment, message.refusal
        self.show_lines()
        self.call_after_refresh(self.show_lines)  # the scroll bar may have taken some of the room

    def lines(self, room: int) -> list[Cell]:
        return process_page(self._row, self._environment, self._refusal, room)


class ContainerLog:
    """LogOpener for the output of one container."""

    def __init__(self, use: ForeignUse, container_id: str) -> None:
        self._use = use
        self._container_id = container_id

    def log(
        self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool, stamped: bool = False
    ) -> LogStream:
        return self._use.logs(self._container_id, tail=tail, follow=follow, stamped=stamped)


@dataclass(eq=False)
class ContainerRead(Message, bubble=False):
    """Message with the engine's description of a container, or why it cannot be inspected."""

    detail: ContainerDetail | None
    fault: str = ""


class ContainerScreen(JobScreen):
    """Page of a foreign container: owner, image, uptime, mounts and ports, and its log."""

    BINDINGS: ClassVar = [*bindings((STOP_CONTAINER,)), *bindings((BACK,))]
    DEFAULT_CSS = """
    ContainerScreen { layout: vertical; }
    ContainerScreen #log { height: 1fr; min-height: 4; }
    """

    def __init__(self, services: Services, use: ForeignUse, container_id: str, name: str) -> None:
        super().__init__(services)
        self._use = use
        self._container_id = container_id
        self._called = name
        self._detail: ContainerDetail | None = None
        self._fault = ""
        self._worker = LatestWorker(self.post_message, lambda error: ContainerRead(None, str(error)))
        self.conditions["stop_container"] = lambda _: (
            (detail := self._detail) is not None and detail.is_running and not detail.store
        )

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield CellLines(id="page")
        yield LogPane(id="log")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._draw()
        self._worker.ask(lambda is_wanted: self._read())
        pane = self.query_one(LogPane)
        pane.follow(
            LogFollower(ContainerLog(self._use, self._container_id), 0, None), f"container {plain(self._called, 60)}"
        )
        pane.focus()
        self.set_interval(5.0, lambda: self._worker.ask(lambda is_wanted: self._read()))

    def on_unmount(self) -> None:
        super().on_unmount()
        self._worker.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _read(self) -> ContainerRead:
        try:
            return ContainerRead(self._use.container(self._container_id))
        except GputuiError as error:
            return ContainerRead(None, str(error))

    def on_container_read(self, message: ContainerRead) -> None:
        """Show the container; one that is gone stays as it was, with the reason."""
        self._detail, self._fault = message.detail or self._detail, message.fault
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        self.query_one("#heading", CellLines).show([((" CONTAINER  ", DIM), (plain(self._called, 80), STRONG))])
        page, room = self.query_one("#page", CellLines), max(20, self.size.width - 2)
        lines = container_lines(self._detail, self._services.clock.now(), room) if self._detail else []
        lines = [*([cell(plain(self._fault, 400), FAULT)] if self._fault else []), *lines]
        page.fill([((" ", DIM), *line) for line in lines[: max(3, self.size.height // 2)] or [cell("Looking …", DIM)]])
        keys = tuple(command for command in (STOP_CONTAINER, *LOG_COMMANDS[:2]) if self._works(command))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def _works(self, command: Command) -> bool:
        pane = self.query_one(LogPane)
        return command.works_at(pane if command.is_known_to(pane) else self)

    def subject(self) -> Job | None:
        """Return None: a foreign container has no job."""
        return None

    def action_stop_container(self) -> None:
        ask_stop(self, self._use, self._container_id, self._called)
