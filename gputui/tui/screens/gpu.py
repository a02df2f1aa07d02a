"""Page of one GPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult

from gputui.domain.cluster import ENGINES
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import APP_COMMANDS, BACK, GPU_PAGE_COMMANDS, JOB_COMMANDS, PROCESS_VIEW
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import fitted
from gputui.tui.present.gpu_detail import GpuPage, gpu_page_lines, holders, is_in_trouble, title
from gputui.tui.present.gpu_rows import GpuPicture, GpuRow
from gputui.tui.present.style import DIM
from gputui.tui.queue.tab_models import PastJobs, PastJobsLoader, PastJobsRead
from gputui.tui.screens.job_screen import OverlayScreen
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines, Page
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
        """Index of the selected job among those that share the GPU."""
        self._past_jobs = PastJobsLoader(services.backend.history, self.post_message)
        self.conditions["next_job"] = lambda _: len(self._jobs()) > 1

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield Page(id="page")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(Page).focus()
        self.set_interval(self._services.pace.tick, self.tick)
        self.call_after_refresh(self.tick)

    def on_unmount(self) -> None:
        """Stop reading PCIe throughput and the history, and release the readings."""
        self._past_jobs.close()
        self._services.want_pcie(None)
        self._picture = GpuPicture()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the GPU as of the snapshot; a GPU that is no longer listed stays as it was."""
        self._snapshot = snapshot
        self.tick()

    def on_screen_resume(self) -> None:
        self.tick()

    @on(Page.Scrolled)
    def tick(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        now, snapshot = self._services.clock.now(), self._snapshot
        jobs = {job.id: job for job in snapshot.jobs if job.state.is_active}
        picture = self._services.gpus.of(snapshot, jobs, now)
        if self._uuid in picture.rows:
            self._picture = picture
        row = self._picture.rows.get(self._uuid)
        if row is None:
            return
        self._services.want_pcie(self._uuid)  # repeatedly: another process may have become leader meanwhile
        shown = self.query_one(Page)
        page = self._page(row, now)
        shown.show(gpu_page_lines(page, max(0, shown.size.width - 2), shown.size.height))
        room = self.size.width - len(shown.position) - 3
        head = ((" ", DIM), *fitted(title(page.row), max(0, room)), (f" {shown.position} ", DIM))
        self.query_one("#heading", CellLines).show([head])
        commands = (c for c in (*JOB_COMMANDS, *GPU_PAGE_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (PROCESS_VIEW, BACK, APP_COMMANDS[0]))

    def _page(self, row: GpuRow, now: datetime) -> GpuPage:
        keys = (keymap_of(self).key("detail"), keymap_of(self).key("next_job"))
        past = self._past_jobs.of(self._uuid, now) if is_in_trouble(row.view) else PastJobs(is_read=True)
        words = "" if past.is_read else "reading the history …"
        if past.failure:
            words = f"the history cannot be read: {plain(past.failure, 200)}"
        leader = self._snapshot.leader
        if self._snapshot.leads_here:
            why = ""
        elif leader is None:
            why = "no scheduler reads the GPUs now"
        elif leader.kind in ENGINES:
            why = "the probes of nodes do not read it"
        else:
            kind = "gputui serve" if leader.kind == "serve" else "a console"
            why = f"{kind} (pid {leader.pid}) reads the GPUs and is asked for it"
        return GpuPage(row, self._picture, self._snapshot, now, self._jobs(), why, keys, past.jobs, words)

    def on_past_jobs_read(self, message: PastJobsRead) -> None:
        self._past_jobs.take(message)
        self.tick()

    def gpu(self) -> GpuView | None:
        row = self._picture.rows.get(self._uuid)
        return row.view if row else None

    def _jobs(self) -> tuple[Job, ...]:
        view = self.gpu()
        jobs = holders(view, self._snapshot.jobs) if view else ()
        meant = self._meant % len(jobs) if jobs else 0
        return (*jobs[meant:], *jobs[:meant])

    def subject(self) -> Job | None:
        """Return the job that holds it; of several, the selected one."""
        return next(iter(self._jobs()), None)

    def action_next_job(self) -> None:
        self._meant += 1
        self.tick()

    def action_other_gpu(self, step: int) -> None:
        uuids = list(self._picture.rows)
        if self._uuid in uuids:
            self._uuid = uuids[(uuids.index(self._uuid) + step) % len(uuids)]
            self._meant = 0
            self.query_one(Page).action_first()
            self.tick()
