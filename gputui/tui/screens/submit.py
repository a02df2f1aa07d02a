"""The form for a new job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from gputui.domain.errors import InputError
from gputui.domain.job import Job, Submission
from gputui.domain.policy.fitting import shortage
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.request import draft as drafts
from gputui.request import line, written
from gputui.request.draft import Draft
from gputui.request.submitter import Submitter
from gputui.tui.commands import PALETTE, SUBMIT_COMMANDS, bindings
from gputui.tui.commands.command import Command
from gputui.tui.desk import Desk
from gputui.tui.messages import WishMade
from gputui.tui.present.cells import cell
from gputui.tui.present.style import AMBER, DIM, RED
from gputui.tui.submission import form
from gputui.tui.submission.below import Below
from gputui.tui.submission.body import FormBody
from gputui.tui.submission.fields import FlagField
from gputui.tui.submission.forecast import Forecaster, ProspectSeen
from gputui.tui.submission.form import FIELDS, START, Origin, fault_words, faults, field_of, submission
from gputui.tui.submission.history import keep
from gputui.tui.submission.images import Images, ImagesFound, ask_engine
from gputui.tui.submission.lines import TakesLines
from gputui.tui.submission.outlook import gpu_line, start_line
from gputui.tui.submission.shelf import Shelf
from gputui.tui.submission.wish import Answered, submit
from gputui.tui.widgets.line import KeyBar


class Submit(TakesLines):
    """Checked as it is typed; nothing is sent while a field is wrong, and nothing typed is lost until it is sent."""

    BINDINGS: ClassVar = [
        *bindings(SUBMIT_COMMANDS),
        *bindings((PALETTE,)),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    DEFAULT_CSS = """
    Submit .dialog { width: 100%; min-width: 0; max-width: 104; max-height: 100%; padding: 0 1; }
    Submit .title { margin-bottom: 0; }
    """
    first: ClassVar = "image"
    """The field that has the focus at first."""
    welcome: ClassVar = "Paste a whole docker run line anywhere to fill in the form."

    def __init__(
        self,
        desk: Desk,
        snapshot: Snapshot = EMPTY,
        start: Draft = START,
        *,
        hidden: Mapping[str, str] | None = None,
        title: str = "Submit a job",
        instead: Job | None = None,
    ) -> None:
        super().__init__()
        self._desk = desk
        self._snapshot = snapshot
        self._heading = title
        self._start = start
        self._hidden = dict(hidden or {})
        self._clean: Draft = drafts.typed(start)
        self._is_sent = False
        self._warned_of: Submission | None = None
        """The submission whose lack of GPUs was told: sent again, it is queued."""
        self._images = Images(snapshot)
        self.body = FormBody({"image": self._images})
        self.below = Below()
        here = Origin(desk.user, str(Path.cwd()), os.environ, desk.settings.scheduler)
        self._origin = here.at(snapshot)
        self._forecast = Forecaster(self, desk.settings, snapshot, desk.clock.now(), instead)
        self._shelf = Shelf(self, desk)

    @classmethod
    def clone(cls, desk: Desk, snapshot: Snapshot, job: Job) -> Submit:
        """The form filled with what that job asked for; values of its environment are taken over unseen."""
        draft = drafts.masked(written.of_spec(job.spec, desk.clock.now()))
        hidden = written.hidden(job.spec)
        return cls(desk, snapshot, draft, hidden=hidden, title=f"Submit a job like #{job.shown_id}")

    def compose(self) -> ComposeResult:
        """The fields, what would become of the job, and the keys."""
        with Vertical(classes="dialog"):
            yield Static(self._heading, classes="title", markup=False)
            yield self.body
            yield self.below
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Begin with what the form was opened with."""
        self.show_keys()
        self.fill(self._start, judge=self._start is not START)
        self.say(self.welcome)
        self.set_interval(1.0, self._tick)
        ask_engine(self._desk.forms.images, self.post_message)

    def commands(self) -> tuple[Command, ...]:
        """What can be done here."""
        return SUBMIT_COMMANDS

    @on(FormBody.Unfolded)
    def show_keys(self) -> None:
        """What they do now."""
        commands = (self.body.told(command) for command in self.commands() if command.in_footer)
        self.query_one(KeyBar).show(tuple(commands))

    def on_resize(self) -> None:
        """Leave room for what is above and below the fields."""
        self._show_outlook()

    def on_unmount(self) -> None:
        """What is still being worked out is wanted no more, nor the queue that is known."""
        self._forecast.close()
        self._snapshot = EMPTY

    # what is in it

    def draft(self) -> dict[str, str]:
        """What is typed now."""
        return self.body.draft()

    def fill(self, draft: Draft, said: str = "", *, judge: bool = True, is_clean: bool = True) -> None:
        """Hold this instead; `is_clean`: it is not lost when the form is left."""
        self.body.put(draft)
        if is_clean:
            self._clean = drafts.typed(draft)
        self.below.say(said, AMBER)
        self._judge(None if judge else "")
        self.body.go_to(self.first)

    def say(self, words: str, *, is_bad: bool = False) -> None:
        """Tell something below the fields until something is typed."""
        self.below.say(words, RED if is_bad else DIM)
        self._show_outlook()

    @property
    def is_touched(self) -> bool:
        """Whether anything would be lost."""
        return drafts.typed(self.draft()) != self._clean

    @on(Input.Changed)
    def _text_typed(self, event: Input.Changed) -> None:
        if event.input.id == "image":
            self.body.set_known("image", self._images.words(event.value))
        self.below.say("")
        self._judge(event.input.id)

    @on(FlagField.Changed)
    def _box_ticked(self, event: FlagField.Changed) -> None:
        self._judge(event.field.id)

    def on_images_found(self, message: ImagesFound) -> None:
        """Offer them."""
        self._images.add(message.names)

    def asked(self) -> Submission:
        """The submission; raises InputError."""
        return submission(drafts.revealed(self.draft(), self._hidden), self._origin, self._desk.clock.now())

    def faults(self) -> dict[str, str]:
        """What is wrong with each field."""
        return faults(drafts.revealed(self.draft(), self._hidden), self._origin, self._desk.clock.now())

    def _judge(self, name: str | None) -> dict[str, str]:
        """Say what is wrong with that field, or with each for None, and no more what has been put right."""
        found = self.faults()
        self.body.set_wrong(found, name)
        self._forecast.look_at(None if found else self.asked())
        self._show_outlook()
        return found

    # what would become of it

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Judge by this picture from now on."""
        self._snapshot = snapshot
        self._origin = self._origin.at(snapshot)
        if self.is_mounted:
            self._tick()

    def _tick(self) -> None:
        self._forecast.show_snapshot(self._snapshot, self._desk.clock.now())
        self._show_outlook()

    def on_prospect_seen(self, message: ProspectSeen) -> None:
        """Show it."""
        self._forecast.take(message)
        self._show_outlook()

    def _show_outlook(self) -> None:
        asked = self._forecast.asked
        spec = asked.spec if asked else form.gpus_alone(self.draft(), self._origin, self._desk.clock.now())
        start = start_line(self._forecast.found, self._snapshot, is_held=asked.held) if asked else cell("Start –", DIM)
        rows = self.below.lay_out((gpu_line(spec, self._snapshot), start), min(self.app.size.width, 104) - 4)
        self.body.keep_within(self.app.size.height - rows + 3)

    # what can be done

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Submit, or show what is wrong and go there."""
        if self._is_sent:
            return
        if line.is_line(self.draft()["image"]):
            self.fill_line(self.draft()["image"])
            return
        try:
            asked = self.asked()
        except InputError:
            found = self._judge(None)
            self.body.go_to(next((name for name in FIELDS if name in found), "image"))
            return
        if (lack := self._shortage(asked)) and asked != self._warned_of:
            self._warned_of = asked
            self.say(f"It {lack}. Send it again to queue it all the same.", is_bad=True)
            return
        self.send(asked)

    def _shortage(self, asked: Submission) -> str:
        """Return why the job could never start on the GPUs of this server; empty when it could."""
        return shortage(asked.spec.gpus, [view.gpu for view in self._snapshot.gpus])

    def send(self, asked: Submission) -> None:
        """Have it submitted."""
        self._is_sent = True
        self.say("Submitting …")
        self.app.post_message(WishMade(submit(asked, self.post_message)))

    def sent(self) -> None:
        """It is in the queue."""
        keep(self._desk.remembered, self.draft())
        self.dismiss()

    def on_answered(self, message: Answered) -> None:
        """Leave, or go on with what was refused."""
        self._is_sent = False
        error = message.error
        if error is None:
            self.sent()
        elif isinstance(error, InputError) and (name := field_of(error)):
            self.say("It was refused.", is_bad=True)
            self.body.set_wrong({name: fault_words(error)}, name)
            self.body.go_to(name)
        else:
            self.say(f"It was refused: {error}", is_bad=True)

    def action_more(self) -> None:
        """Fold the rare fields open or away."""
        self.body.unfold(not self.body.is_open)
        if self.body.is_open:
            self.body.go_to(form.MORE[0][0])

    def action_older(self, step: int) -> None:
        """The submission before, or back towards what was typed."""
        self._shelf.step(step)

    def action_recent(self) -> None:
        """Choose among the last submissions."""
        self._shelf.choose_recent()

    def action_templates(self) -> None:
        """Choose a template, or save one."""
        self._shelf.choose_template()

    def action_editor(self) -> None:
        """Open the job in the user's own editor."""
        self._shelf.edit()

    @property
    def submitter(self) -> Submitter:
        """Who submits, as those who read files know it."""
        return self._origin.submitter(self._desk.clock.now())

    def action_command_palette(self) -> None:
        """Find one of the form's commands by its name: the app's own keys end at a dialog."""
        self.app.action_command_palette()

    def action_give_up(self) -> None:
        """Submit nothing; ask first where something typed would be lost."""
        if not self.is_touched:
            self.dismiss()
            return
        from gputui.tui.screens.confirm import Confirm

        def answered(yes: bool | None) -> None:
            if yes:
                self.dismiss()

        self.app.push_screen(Confirm("Leave the form?", "What was typed is lost."), answered)

    @on(KeyBar.Clicked)
    async def run_clicked(self, event: KeyBar.Clicked) -> None:
        """Do what the words say that were clicked."""
        event.stop()
        await self.run_action(event.command.action)
