"""Base classes of screens whose commands act on a job or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from textual import on, work
from textual.screen import Screen

from gputui.domain.action import Action, DrainGpus, ResumeGpus, Signal
from gputui.domain.arrays import count
from gputui.domain.cluster import Capability
from gputui.domain.gpu import GpuView, index_of
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, server_of
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.verbs import BY_NAME, SIGNAL, SIGNALS
from gputui.tui.actions import ActionRequested
from gputui.tui.commands import CHANGING, OF_CLUSTERS, OF_VIEWS
from gputui.tui.keymap import Lacking, lack
from gputui.tui.present.job import job_title
from gputui.tui.screens.dialogs import Choose, ClosedOnce, Confirm, CopyDialog, Prompt, ask
from gputui.tui.services import Services
from gputui.tui.terminal import copy, open_shell
from gputui.tui.widgets.line_table import RowOpened

if TYPE_CHECKING:
    from gputui.tui.proposals import Proposal

Predicate: TypeAlias = Callable[[object], bool]
"""Checks whether an action with this argument makes sense now."""


class JobScreen(ClosedOnce[None], Screen[None]):
    """Screen with a subject: the job that commands act on."""

    def __init__(self, services: Services, snapshot: Snapshot = EMPTY) -> None:
        super().__init__()
        self._services = services
        self._snapshot = snapshot
        self.conditions: dict[str, Predicate] = {
            "verb": lambda name: any(map(BY_NAME[str(name)].may, self.own_subjects())),
            "signal": lambda _: any(map(SIGNAL.may, self.own_subjects())),
            "shell": self._may_enter,
            "processes": self._may_enter,
            **dict.fromkeys(("detail", "follow", "copy"), lambda _: self.subject() is not None),
        }
        """Conditions of actions, by name; an action without one is always available."""

    def on_unmount(self) -> None:
        """Release the queue: a closed screen lives in reference cycles until the next full garbage collection."""
        self._snapshot = EMPTY

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def subject(self) -> Job | None:
        raise NotImplementedError

    def subjects(self) -> Sequence[Job]:
        job = self.subject()
        return () if job is None else (job,)

    def own_subjects(self) -> Sequence[Job]:
        return self._services.own(self.subjects())

    @property
    def lacking(self) -> Lacking:
        """Capabilities that the queue lacks; among several servers, for changes of the subject, those of its own."""
        ours, job = self._services.lacking, self.subject() if len(self._snapshot.servers) > 1 else None
        if job is None:
            return ours
        theirs = self._services.backend.about(server_of(job.id)).caps.lacking
        return {**ours, **{each: why for each, why in theirs.items() if each not in OF_VIEWS}}

    @property
    def not_mine(self) -> str:
        """Sentence on who may act on the subject, if it is a job of somebody else; else empty."""
        job = self.subject()
        if job is None or self.own_subjects():
            return ""
        who = job.submitted_by or "another user"
        return f"Only {who}, who submitted job {job.shown_id}, and operators may do that."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide commands that make no sense now, or never do in a read-only console."""
        if self._services.is_read_only and action in CHANGING:
            return False
        argument = parameters[0] if parameters else ""
        command = OF_CLUSTERS.get((action, str(argument)))
        if command is not None and lack(command, self.lacking):
            return False
        condition = self.conditions.get(action)
        return condition is None or condition(argument)

    def _may_enter(self, _: object) -> bool:
        job = self.subject()
        return job is not None and job.state is JobState.RUNNING and self._services.may_act_for(job.submitted_uid)

    def action_verb(self, name: str) -> None:
        """Ask for the change; it applies to the present subject, however long a dialog stays open."""
        verb = BY_NAME[name]
        jobs = [job for job in self.own_subjects() if verb.may(job)]
        if not jobs:
            return
        if verb.wish.has_forecast and self.shows_what_if:
            from gputui.tui.proposals import propose

            self.propose(propose(jobs, name, self._snapshot))
            return
        action = verb.on(tuple(job_id for job in jobs for job_id in job.ids))
        # the id of one element of an array need not be shown anywhere
        subject = f"job {jobs[0].shown_id}" if count(jobs) == 1 and jobs[0].array else ""
        if not verb.question:
            self.request(action, subject)
            return
        which = f"job {job_title(jobs[0])}" if len(jobs) == 1 else f"{count(jobs)} jobs"
        follow = partial(_what_cancel_does, jobs)
        question = Confirm(f"{verb.question} {which}?", follow(self._snapshot), follow)
        ask(self.app, question, lambda _: self.request(action, subject))

    def action_signal(self) -> None:
        jobs = [job for job in self.own_subjects() if SIGNAL.may(job)]
        if not jobs:
            return
        from gputui.request.job_values import signal_number

        which = f"job {job_title(jobs[0])}" if len(jobs) == 1 else f"{count(jobs)} jobs"
        lines = [f"{each.name:<6}{each.use}" for each in SIGNALS]
        ids, numbers = tuple(job.id for job in jobs), [signal_number(each.name, "") for each in SIGNALS]
        question = Choose(f"Signal {which}", lines, none="none")
        ask(self.app, question, lambda place: self.request(Signal(ids, numbers[place])))

    def request(self, action: Action, subject: str = "", server: str = "") -> None:
        self.post_message(ActionRequested(action, subject, server))

    @property
    def shows_what_if(self) -> bool:
        job = self.subject()
        return self._services.scoped(self._snapshot, server_of(job.id) if job else "")[0].shows_what_if

    def propose(self, proposal: Proposal) -> None:
        """Open the panel with the effects of a change; the panel makes the change, or drops it."""
        from gputui.tui.proposals import servers_of
        from gputui.tui.screens.what_if import WhatIf

        servers = servers_of(proposal, self._snapshot)
        scope = self._services.scoped(self._snapshot, next(iter(servers)) if len(servers) == 1 else "")
        self.app.push_screen(WhatIf(*scope, proposal))

    def open_page(self, job: Job, follow: Callable[[JobId], None]) -> None:
        def followed(job_id: JobId) -> None:
            follow(job_id)
            self.app.call_later(self.dismiss)  # after the page above has closed

        self.app.push_screen(self._services.pages.detail(self._services, self._snapshot, job.id, followed))

    @work
    async def action_shell(self) -> None:
        if (job := self.subject()) is not None:
            await open_shell(self.app, self._services.backend, job)

    def action_processes(self) -> None:
        if (job := self.subject()) is not None:
            self.app.push_screen(self._services.pages.processes(self._services, self._snapshot, job.id))

    def action_copy(self) -> None:
        if (job := self.subject()) is not None:
            ask(self.app, CopyDialog(job), lambda text: copy(self.app, text, plain(text, 60)))


class GpuScreen(JobScreen):
    """Screen on which a GPU can be selected as well."""

    def __init__(self, services: Services, snapshot: Snapshot = EMPTY) -> None:
        super().__init__(services, snapshot)
        self.conditions |= {"drain": lambda _: self._may("drain"), "resume": lambda _: self._may("resume")}

    def gpu(self) -> GpuView | None:
        """Return the GPU that commands act on, while one is selected."""
        raise NotImplementedError

    def drained_node(self) -> str | None:
        """Return the node that a drain concerns where the cluster drains nodes alone: that of the GPU."""
        if (view := self.gpu()) is None:
            return None
        uuid, nodes = view.gpu.uuid, self._snapshot.nodes
        return next(node.name for node in nodes if any(each.gpu.uuid == uuid for each in node.gpus))

    def _may(self, verb: str) -> bool:
        view = self.gpu()
        if self.drains_nodes and (name := self.drained_node()):
            view = next((gpu for node in self._snapshot.nodes if node.name == name for gpu in node.gpus), None)
        return view is not None and bool(BY_NAME[verb].may((view, self._snapshot.controls)))

    @property
    def drains_nodes(self) -> bool:
        return Capability.DRAIN_GPU in self._services.lacking

    def _drained(self) -> tuple[str, str] | None:
        """Return what a drain concerns: the UUID of the selected GPU, or the name of its node; and its words."""
        if self.drains_nodes:
            node = self.drained_node()
            return None if node is None else (node, f"node {node}")
        view = self.gpu()
        return None if view is None else (view.gpu.uuid, f"GPU {index_of(view)}")

    def _proposes(self, verb: str) -> bool:
        """Open the what-if panel, if it is used, with a verb about the selected GPU; return whether it was."""
        view = self.gpu()
        if view is None or self.drains_nodes or not self.shows_what_if:
            return False
        from gputui.tui.proposals import GpuProposal

        self.propose(GpuProposal(view.gpu.uuid, index_of(view), verb))
        return True

    def action_drain(self) -> None:
        """Ask for a reason, then drain the GPU that was selected when the key was pressed, or its node."""
        found = self._drained()
        if found is None or self._proposes("drain"):
            return
        name, words = found
        why = self._services.lacking.get(Capability.DRAIN_GPU)
        detail = f"{why}. Running jobs continue." if why else "Running jobs continue; no new starts."
        question = Prompt(f"Drain {words}", "Reason", detail)
        ask(self.app, question, lambda reason: self.request(DrainGpus((name,), reason), words))

    def action_resume(self) -> None:
        if (found := self._drained()) is not None and not self._proposes("resume"):
            self.request(ResumeGpus((found[0],)), found[1])


class OverlayScreen(GpuScreen):
    """Screen over the main one, which Escape closes; logs are followed on the main screen."""

    def __init__(self, services: Services, snapshot: Snapshot, follow: Callable[[JobId], None]) -> None:
        super().__init__(services, snapshot)
        self._follow = follow

    @on(RowOpened)
    def action_detail(self) -> None:
        if job := self.subject():
            self.open_page(job, self._follow)

    def action_follow(self) -> None:
        if job := self.subject():
            self._follow(job.id)
            self.dismiss()


def _what_cancel_does(asked: Sequence[Job], snapshot: Snapshot) -> str:
    jobs = [job if job.runs else snapshot.job(job.id) or job for job in asked]
    running = sum(job.state.is_active for job in jobs)
    ended = sum(job.state.is_terminal for job in jobs)
    if count(jobs) == 1:
        if ended:
            return f"It has ended meanwhile: {jobs[0].state}."
        return "Its container is stopped; its output so far is kept." if running else "It will not be started."
    told = f"{running} of them run and are stopped; their output so far is kept." if running else "None will start."
    return f"{told} {ended} have ended meanwhile." if ended else told
