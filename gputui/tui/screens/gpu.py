"""Page of one GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult

from gputui.domain.gpu import GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Snapshot
from gputui.tui.commands import APP_COMMANDS, BACK, GPU_PAGE_COMMANDS, JOB_COMMANDS, PROCESS_VIEW, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import fitted
from gputui.tui.present.gpu_detail import GpuPage, gpu_lines, holders, title
from gputui.tui.present.gpu_rows import GpuPicture
from gputui.tui.present.style import DIM
from gputui.tui.screens.job_screen import OverlayScreen
from gputui.tui.services import Services
from gputui.tui.widgets.cell_lines import CellLines, Page
from gputui.tui.widgets.status_bars import KeyBar


class GpuDetailScreen(OverlayScreen):
    """Page of a GPU, kept up to date while it is open. Commands act on the GPU and on the job that holds it."""

    BINDINGS: ClassVar = [*bindings(JOB_COMMANDS), *bindings(GPU_PAGE_COMMANDS), *bindings((BACK,))]
    DEFAULT_CSS = """
    GpuDetailScreen { layout: vertical; }
    GpuDetailScreen #heading { dock: top; }
    """

    def __init__(self, services: Services, snapshot: Snapshot, uuid: str, follow: Callable[[JobId], None]) -> None:
        super().__init__(services, snapshot, follow)
        self._uuid = uuid
        self._picture = GpuPicture()
        self._meant = 0
        """Number of the subject among the jobs that share the GPU."""
        self.conditions["next_job"] = lambda _: len(self._jobs()) > 1

    def compose(self) -> ComposeResult:
        """Yield heading, page and keys."""
        yield CellLines(id="heading")
        yield Page(id="page")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show what is known."""
        self.query_one(Page).focus()
        self.set_interval(self._services.pace.tick, self.tick)
        self.call_after_refresh(self.tick)

    def on_unmount(self) -> None:
        """Stop reading PCIe throughput, and release the readings."""
        self._services.want_pcie(None)
        self._picture = GpuPicture()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the GPU as of the snapshot; a GPU that is no longer listed stays as it was."""
        self._snapshot = snapshot
        self.tick()

    def on_screen_resume(self) -> None:
        """Catch up after another screen was closed."""
        self.tick()

    @on(Page.Scrolled)
    def tick(self) -> None:
        """Show the GPU as of now."""
        if not self.is_mounted or self.app.screen is not self:
            return
        now, snapshot = self._services.clock.now(), self._snapshot
        jobs = {job.id: job for job in snapshot.jobs if job.state.is_active}
        picture = self._services.gpu_picture(snapshot, jobs, now)
        if self._uuid in picture.rows:
            self._picture = picture
        row = self._picture.rows.get(self._uuid)
        if row is None:
            return
        self._services.want_pcie(self._uuid)  # again and again: another process may have led meanwhile
        shown = self.query_one(Page)
        keys = (keymap_of(self).key("detail"), keymap_of(self).key("next_job"))
        page = GpuPage(row, self._picture, snapshot, now, self._jobs(), self._why_no_pcie(), keys)
        shown.show(gpu_lines(page, max(0, shown.size.width - 2), shown.size.height))
        self._show_heading(page, shown.position)
        self._show_keys()

    def _show_heading(self, page: GpuPage, position: str) -> None:
        room = self.size.width - len(position) - 3
        head = ((" ", DIM), *fitted(title(page.row), max(0, room)), (f" {position} ", DIM))
        self.query_one("#heading", CellLines).show([head])

    def _show_keys(self) -> None:
        commands = (c for c in (*JOB_COMMANDS, *GPU_PAGE_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (PROCESS_VIEW, BACK, APP_COMMANDS[0]))

    def _why_no_pcie(self) -> str:
        leader = self._snapshot.leader
        if self._snapshot.leads_here:
            return ""
        if leader is None:
            return "no scheduler reads the GPUs now"
        kind = "gputui serve" if leader.kind == "serve" else "a console"
        return f"{kind} (pid {leader.pid}) reads the GPUs and is asked for it"

    def gpu(self) -> GpuView | None:
        """Return the GPU that is shown."""
        row = self._picture.rows.get(self._uuid)
        return row.view if row else None

    def _jobs(self) -> tuple[Job, ...]:
        """Return the jobs on it, the subject first."""
        view = self.gpu()
        jobs = holders(view, self._snapshot.jobs) if view else ()
        meant = self._meant % len(jobs) if jobs else 0
        return (*jobs[meant:], *jobs[:meant])

    def subject(self) -> Job | None:
        """Return the job that holds it; of several, the chosen one."""
        return next(iter(self._jobs()), None)

    def action_next_job(self) -> None:
        """Choose the next of the jobs that share it."""
        self._meant += 1
        self.tick()

    def action_other_gpu(self, step: int) -> None:
        """Show another GPU."""
        uuids = list(self._picture.rows)
        if self._uuid in uuids:
            self._uuid = uuids[(uuids.index(self._uuid) + step) % len(uuids)]
            self._meant = 0
            self.query_one(Page).action_first()
            self.tick()
