"""What the screens have in common on which a GPU can be selected."""

from __future__ import annotations

from gputui.domain.gpu import GpuView
from gputui.tui import wishes
from gputui.tui.messages import WishMade
from gputui.tui.present.gpu import index_of
from gputui.tui.screens.job_screen import JobScreen


class GpuScreen(JobScreen):
    """A screen that may have a GPU as its subject beside the job."""

    def gpu(self) -> GpuView | None:
        """The GPU meant, while one is."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done to this GPU now."""
        works = super().check_action(action, parameters)
        if not works or action not in {"drain", "resume"}:
            return works
        view = self.gpu()
        if view is None:
            return False
        is_drained = view.drain is not None or view.gpu.uuid in self._snapshot.controls.drains
        return is_drained or view.is_stopped_by_xid if action == "resume" else not is_drained

    def action_drain(self) -> None:
        """Ask for the reason, then drain the GPU that was selected when the key was pressed."""
        if view := self.gpu():
            uuid, index = view.gpu.uuid, index_of(view)
            if self.shows_what_if:
                self._propose_gpu(uuid, index, "drain")
                return
            from gputui.tui.screens.prompt import Prompt

            def answered(reason: str | None) -> None:
                if reason is not None:
                    self.post_message(WishMade(wishes.drain(uuid, index, reason)))

            self.app.push_screen(Prompt(f"Drain GPU {index}", "Reason", "Running jobs go on, none starts."), answered)

    def action_resume(self) -> None:
        """Let jobs start on the selected GPU again."""
        if view := self.gpu():
            uuid, index = view.gpu.uuid, index_of(view)
            if self.shows_what_if:
                self._propose_gpu(uuid, index, "resume")
                return
            self.post_message(WishMade(wishes.resume(uuid, index)))

    def _propose_gpu(self, uuid: str, index: str, verb: str) -> None:
        from gputui.tui.proposals import GpuProposal

        self.propose(GpuProposal(uuid, index, verb))
