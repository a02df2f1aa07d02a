"""Forms: of a job, be it new, a clone or an edit, and of a reservation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Static

from gputui.config import present_directory
from gputui.domain.cluster import Capability
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import index_of
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission, shown_id
from gputui.domain.policy.placement import shortage
from gputui.domain.policy.reservations import check_conflicts, check_times
from gputui.domain.settings import Window
from gputui.domain.snapshot import EMPTY, Snapshot, WindowState
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.text import listed, plain
from gputui.request import draft as drafts
from gputui.request import job_file
from gputui.request import reservation as asked
from gputui.request.caller import inherited
from gputui.request.draft import YES, Draft
from gputui.request.edits import Editor
from gputui.request.submitter import Submitter
from gputui.request.times import span
from gputui.tui.actions import ActionRequested
from gputui.tui.commands import GIVE_UP, PALETTE, SEND, SUBMIT_COMMANDS, bindings
from gputui.tui.present.cells import AMBER, DIM, RED, Cell, cell
from gputui.tui.proposals import WindowProposal, describe_window
from gputui.tui.screens import job_form
from gputui.tui.screens.dialogs import SAVE, Choose, Confirm, Dialog, Prompt, ask
from gputui.tui.screens.form_fields import (
    Below,
    FlagField,
    Forecaster,
    FormBody,
    Images,
    ImagesFound,
    ProspectSeen,
    TextField,
    gpu_line,
    start_line,
)
from gputui.tui.screens.job_form import (
    FIELDS,
    START,
    JobEdit,
    Origin,
    Purpose,
    RecentSubmission,
    describe_drafts,
    fault_words,
    field_of,
    keep_submission,
    left_out,
    recent_submissions,
    save_template,
    template_names,
)
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.services import Services
from gputui.tui.terminal import loan_of
from gputui.tui.widgets.status_bars import Hints, KeyBar

T = TypeVar("T")
_HEAD = "This job fills in the form when you save and leave; nothing is written before you say so there."


class DraftLoader:
    """Fills a form from stored drafts: the part of the form that carries out these commands."""

    def __init__(self, screen: Submit, services: Services) -> None:
        self._screen = screen
        self._services = services
        self._editor = Editor(_HEAD)
        self._is_editing = False
        self._place = -1
        """Index of the displayed earlier submission; -1: the user's own input."""
        self._typed: Draft = {}

    def action_older(self, step: int) -> None:
        entries = recent_submissions(self._services.preferences)
        place = max(-1, min(len(entries) - 1, self._place + step))
        if place == self._place:
            self._screen.say("no earlier submission" if step > 0 else "these are the latest")
            return
        if self._place < 0:
            self._typed = self._screen.draft()
        self._place = place
        if place < 0:
            self._screen.fill(self._typed, is_clean=False)
        else:
            self._recall(entries[place], f"{place + 1} of {len(entries)} submissions. ")

    def action_recent(self) -> None:
        entries = recent_submissions(self._services.preferences)
        lines = describe_drafts([entry.draft for entry in entries])
        question = Choose("Last submissions", lines, none="Nothing was submitted here yet.")
        ask(self._screen.app, question, lambda place: self._recall(entries[place], ""))

    def _recall(self, entry: RecentSubmission, said: str) -> None:
        env = f"Values of {listed(entry.env)} are not kept: type them again." if entry.env else ""
        self._screen.fill(entry.draft, said + env)

    def action_templates(self) -> None:
        directory = self._services.templates
        if directory is None:
            self._screen.say("there are no templates here")
            return

        def choose(names: tuple[str, ...]) -> None:
            none = f"No templates yet: they are job files in {directory}."
            question = Choose("Templates", names, none=none, saves="save the form as a template")
            ask(self._screen.app, question, lambda place: chosen(place, names))

        def chosen(place: int, names: tuple[str, ...]) -> None:
            if place == SAVE:
                self._save(directory)
                return
            name, by = names[place], self._screen.submitter
            self._in_worker(
                lambda: job_file.read_draft(directory / f"{name}.toml", by),
                lambda draft: self._screen.fill(draft, f"From the template {name}."),
            )

        self._in_worker(lambda: template_names(directory), choose)

    def _save(self, directory: Path) -> None:
        draft = self._screen.draft()

        def named(name: str | None) -> None:
            if name:
                self._in_worker(
                    lambda: save_template(directory, name, draft), lambda path: self._screen.say(f"Saved as {path}.")
                )

        detail = "Values of variables that look like secrets are not written."
        self._screen.app.push_screen(Prompt("Save the form as a template", "Name", detail), named)

    def _in_worker(self, work: Callable[[], T], done: Callable[[T], object]) -> None:
        """Run disk access on a worker thread, and continue with its result here."""
        app = self._screen.app

        def run() -> None:
            try:
                result = work()
            except GputuiError as error:
                app.call_from_thread(self._screen.say, str(error), is_bad=True)
            else:
                app.call_from_thread(done, result)

        self._screen.run_worker(run, thread=True, group="shelf")

    def action_editor(self) -> None:
        self._screen.run_worker(self._edit(), group="editor")

    async def _edit(self) -> None:
        """Edit the form's job in the editor, and load the result. The console handles signals meanwhile."""
        if self._is_editing:
            return
        self._is_editing = True
        screen = self._screen
        try:
            if (terminal := loan_of(screen.app)) is None:
                raise GputuiError("no editor can be opened here", where="EDITOR")
            words = self._editor.begin(screen.draft(), screen.submitter)
            try:
                code = await terminal.run(words, "the form continues when the editor closes")
            except SuspendNotSupported as error:
                raise GputuiError("no editor can be opened on this screen", where="EDITOR") from error
            except OSError as error:
                raise self._editor.cannot_run(words, error) from error
            edited = self._editor.end(words, code, screen.submitter)
        except (GputuiError, OSError) as error:
            screen.say(str(error), is_bad=True)
        else:
            if edited is not None:
                screen.fill(edited, is_clean=False)
        finally:
            self._is_editing = False


@dataclass(eq=False)
class Answered(Message, bubble=False):
    error: Exception | None = None


class Submit(Dialog[None]):
    """Form that is checked while typing; it sends nothing while a field is invalid, and loses nothing until it is sent.

    Its `purpose` determines its initial draft, the editable fields, and the action that is sent.
    """

    BINDINGS: ClassVar = [
        *bindings((*SUBMIT_COMMANDS, PALETTE)),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    LEAVES: ClassVar = "give_up"
    DEFAULT_CSS = """
    Submit .dialog { width: 100%; min-width: 0; max-width: 104; max-height: 100%; padding: 0 1; }
    Submit .title { margin-bottom: 0; }
    """

    def __init__(self, services: Services, snapshot: Snapshot = EMPTY, purpose: Purpose | None = None) -> None:
        super().__init__()
        self._services = services
        self._snapshot = snapshot
        self.purpose: Purpose = purpose or Purpose()
        self._clean: Draft = drafts.filled_texts(self.purpose.start)
        self._is_sent = False
        self._warned_of: Submission | None = None
        """The submission whose lack of GPUs was shown; if it is sent again, it is queued."""
        self._images = Images(snapshot)
        about = services.about
        self.body = FormBody({"image": self._images}, job_form.hints(about.caps))
        self.below = Below()
        directory = about.home if services.server else str(present_directory() or "")
        own = None if services.server else inherited()
        lacking = about.caps.lacking_options
        here = Origin(about.user, directory, os.environ, services.settings.scheduler, own, lacking=lacking)
        self._origin = here.at(snapshot)
        self._forecast = Forecaster(
            self, services.settings, snapshot, self._now, self.purpose.instead, services.foresee
        )
        self.parts = (DraftLoader(self, services),)

    @classmethod
    def clone(cls, services: Services, snapshot: Snapshot, job: Job) -> Submit:
        return cls(services, snapshot, Purpose.like(job, services.clock.now()))

    @classmethod
    def edit(cls, services: Services, snapshot: Snapshot, job: Job) -> Submit:
        return cls(services, snapshot, JobEdit(job, services.clock.now(), services.lacking.get(Capability.EDIT, "")))

    @property
    def _now(self) -> datetime:
        return self._services.clock.now()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            where = f" on {self._snapshot.server_name}" if self._snapshot.server_name else ""
            yield Static(f"{self.purpose.title}{where}", classes="title", markup=False)
            yield self.body
            yield self.below
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.show_keys()
        self.fill(self.purpose.start, judge=self.purpose.start is not START)
        self.say(self.purpose.welcome)
        self.set_interval(1.0, self._tick)
        backend, server = self._services.backend, self._services.server
        tell = lambda: self.post_message(ImagesFound(tuple(backend.images(server))))  # noqa: E731
        Thread(target=tell, name="gputui-images", daemon=True).start()  # since an engine may take seconds
        if locked := self.purpose.locked():
            self.body.keep_as_is(locked)
        if changeable := self.purpose.changeable():
            self.body.show_only(changeable)

    @on(FormBody.Unfolded)
    def show_keys(self) -> None:
        commands = (self.body.told(command) for command in self.purpose.commands() if command.in_footer)
        self.query_one(KeyBar).show(tuple(commands))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = {command.action_name for command in SUBMIT_COMMANDS}
        if action in known and action not in {command.action_name for command in self.purpose.commands()}:
            return False
        return super().check_action(action, parameters)

    def on_unmount(self) -> None:
        """Release the forecast and the queue: the screen may stay in memory for a while."""
        self._forecast.close()
        self._snapshot = EMPTY

    # the draft

    def draft(self) -> dict[str, str]:
        return self.body.draft()

    def fill(self, draft: Draft, said: str = "", *, judge: bool = True, is_clean: bool = True) -> None:
        """Set another draft, and go to its first field; `is_clean`: closing the form does not lose it."""
        self._put(draft, said, judge=judge, is_clean=is_clean)
        self.body.go_to(self.purpose.first)

    def _put(self, draft: Draft, said: str, *, judge: bool = True, is_clean: bool = True) -> None:
        draft, said = self.purpose.adjust(draft, said)
        self.body.leave_out(name for name in self._origin.lacking if not drafts.text_of(draft, name))
        self.body.put(draft)
        if is_clean:
            self._clean = drafts.filled_texts(draft)
        self.below.say(said, AMBER)
        self._judge(None if judge else "")

    def fill_line(self, text: str) -> None:
        """Fill the form from a command line, and name the options that a job cannot have."""
        try:
            read = drafts.read_line(text, Path(self._origin.directory), self._origin.environ)
        except InputError as error:
            self.say(f"Not filled in: {error}", is_bad=True)
            return
        beneath = self.purpose.beneath(self.draft())
        self.fill({**beneath, **read.draft}, left_out(read.dropped), is_clean=False)

    def say(self, words: str, *, is_bad: bool = False) -> None:
        self.below.say(words, RED if is_bad else DIM)
        self._show_outlook()

    @property
    def is_touched(self) -> bool:
        return drafts.filled_texts(self.draft()) != self._clean

    @on(TextField.LinePasted)
    def _line_pasted(self, event: TextField.LinePasted) -> None:
        self.fill_line(event.text)

    def on_paste(self, event: events.Paste) -> None:
        """Accept a command line that is pasted while no text field has the focus."""
        if drafts.is_line(event.text):
            event.stop()
            self.fill_line(event.text)

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
        self._images.add(message.names)

    def _asked(self) -> Submission:
        return self.purpose.asked(self.draft(), self._origin, self._now)

    def _judge(self, name: str | None) -> dict[str, str]:
        """Show the error of that field, or of each for None, and drop corrected ones."""
        draft = self.draft()
        found = self.purpose.faults(draft, self._origin, self._now)
        self.body.set_changed(self.purpose.changed(draft))
        self.body.set_wrong(found, name)
        is_running = self.purpose.outlook(draft, self._now) is not None
        self._forecast.look_at(None if found or is_running else self._asked())
        self._show_outlook()
        return found

    # the preview

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Use another snapshot from now on; a form without user input follows its job."""
        self._snapshot = snapshot = snapshot.of_server(self._snapshot.server_name)
        self._origin = self._origin.at(snapshot)
        if not self.is_mounted:
            return
        self._tick()
        if self._is_sent:
            return
        draft, words = self.purpose.follow(snapshot, self._now, is_touched=self.is_touched)
        if draft is not None:
            self._put(draft, words)  # the focus stays: text may be typed at this moment
        elif words:
            self.say(words, is_bad=True)

    def _tick(self) -> None:
        self._forecast.show_snapshot(self._snapshot, self._now)
        self._show_outlook()

    def on_prospect_seen(self, message: ProspectSeen) -> None:
        self._forecast.take(message)
        self._show_outlook()

    @on(events.Resize)
    def _show_outlook(self) -> None:
        if (end := self.purpose.outlook(self.draft(), self._now)) is not None:
            self._lay_out((end,))
            return
        asked = self._forecast.asked
        spec = asked.spec if asked else job_form.gpus_alone(self.draft(), self._origin, self._now)
        start = start_line(self._forecast.found, self._snapshot, is_held=asked.held) if asked else cell("Start –", DIM)
        self._lay_out((gpu_line(spec, self._snapshot), start))

    def _lay_out(self, outlook: tuple[Cell, ...]) -> None:
        rows = self.below.lay_out(outlook, min(self.app.size.width, 104) - 4)
        self.body.keep_within(self.app.size.height - rows + 2)

    # commands

    @on(Input.Submitted)
    def action_send(self) -> None:
        if self._is_sent:
            return
        if drafts.is_line(self.draft()["image"]):
            self.fill_line(self.draft()["image"])
            return
        try:
            asked = self._asked()
        except InputError:
            found = self._judge(None)
            self.body.go_to(next((name for name in FIELDS if name in found), "image"))
            return
        # why the job could never start on the GPUs of this server; empty when it could
        lack = shortage(asked.spec.gpus, [view.gpu for view in self._snapshot.gpus])
        if lack and asked != self._warned_of:
            self._warned_of = asked
            self.say(f"It {lack}. Send it again to queue it anyway.", is_bad=True)
            return
        self._send(asked)

    def _send(self, asked: Submission) -> None:
        action = self.purpose.action(asked, self.draft(), self._origin, self._now)
        server = self._snapshot.server_name

        def answer(error: Exception | None) -> None:
            self.post_message(Answered(error))

        if action is None:
            job = self.purpose.instead
            self.notify(f"job {shown_id(job.id)}: nothing to change" if job else "nothing to send")
            self.dismiss()
        elif isinstance(action, SubmitJobs):
            self._is_sent = True
            self.say("Submitting …")
            self.app.post_message(ActionRequested(action, server=server, answer=answer))
        elif not self._services.shows_what_if:
            self._is_sent = True
            self.app.post_message(dataclasses.replace(action, tell=answer).request())
        else:
            self.app.push_screen(WhatIf(self._services, self._snapshot, dataclasses.replace(action, tell=answer)))

    def on_answered(self, message: Answered) -> None:
        self._is_sent = False
        error = message.error
        if error is None:
            if self.purpose.is_remembered:
                keep_submission(self._services.preferences, self.draft())
            self.dismiss()
        elif isinstance(error, InputError) and (name := field_of(error)):
            self.say("The job was refused.", is_bad=True)
            self.body.set_wrong({name: fault_words(error)}, name)
            self.body.go_to(name)
        else:
            self.say(f"It was refused: {error}", is_bad=True)

    def action_more(self) -> None:
        self.body.unfold(not self.body.is_open)
        if self.body.is_open:
            self.body.go_to(job_form.MORE[0][0])

    @property
    def submitter(self) -> Submitter:
        return self._origin.submitter(self._now)

    def action_command_palette(self) -> None:
        """Find one of the form's commands by name: the app's own keys do not work in a dialog."""
        self.app.action_command_palette()

    def action_give_up(self) -> None:
        if not self.is_touched:
            self.dismiss()
            return
        ask(self.app, Confirm("Leave the form?", "Your input will be lost."), lambda _: self.dismiss())


USUAL = "8h"
"""Default length of a reservation."""
LABELS = {"gpus": "GPUs", "start": "from", "nobody": "kept clear"}
HINTS = {
    "gpus": "4, all, or device=0,1",
    "start": "now; or 14:00, in 2h, Mon 9-17",
    "for": "duration: 2h, 3d; 8h by default",
    "until": "instead: 18:00, tomorrow 09:00",
    "tenant": "tenant whose jobs it is for (you)",
    "priority": "or all jobs of at least this priority: 80",
    "nobody": "of all jobs: for maintenance",
    "name": "generated if empty",
}


class Reserve(Dialog[None]):
    """Form of a reservation, checked as it is typed; Enter shows which jobs it would delay, a second Enter adds it."""

    BINDINGS: ClassVar = [
        *bindings((GIVE_UP, SEND)),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    LEAVES: ClassVar = "give_up"
    DEFAULT_CSS = """
    Reserve .dialog { width: 72; }
    Reserve VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    Reserve .title { margin-bottom: 0; }
    Reserve .field { height: 1; }
    Reserve .label { width: 12; color: $foreground 75%; }
    Reserve Input { width: 1fr; margin-bottom: 0; background: $background; }
    Reserve FlagField { width: 1fr; height: 1; color: $foreground 80%; }
    Reserve FlagField:focus { background: $background-lighten-2; }
    Reserve #told { color: $foreground 80%; margin-top: 1; width: 100%; height: 2; }
    Reserve #told.-wrong { color: $error; }
    """

    def __init__(self, services: Services, snapshot: Snapshot, uuid: str | None = None) -> None:
        super().__init__()
        self._services = services
        self._snapshot = snapshot
        self._gpus = tuple(view.gpu for view in snapshot.gpus)
        self._told = ("", False)
        chosen = next((index_of(view) for view in snapshot.gpus if view.gpu.uuid == uuid), None)
        self._first = {"gpus": "1" if chosen is None else f"device={chosen}"}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Reserve GPUs", classes="title", markup=False)
            with VerticalScroll(can_focus=False):
                for name in asked.FIELDS:
                    with Horizontal(classes="field"):
                        yield Static(LABELS.get(name, name), classes="label", markup=False)
                        if name == "nobody":
                            yield FlagField(HINTS[name], id=name, classes=None)
                        else:
                            yield Input(self._first.get(name, ""), placeholder=HINTS[name], id=name, compact=True)
            yield Static("", id="told", markup=False)
            how = f"Enter  which jobs it delays     Tab ↓ ↑  fields     {self.answers((GIVE_UP, 'leave'))}"
            yield Hints(how)

    def on_mount(self) -> None:
        self.query_one("#gpus", Input).focus()
        self._typed()

    def on_unmount(self) -> None:
        self._snapshot = EMPTY

    @property
    def is_touched(self) -> bool:
        return any(field.value != self._first.get(field.id or "", "") for field in self.query(Input))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.of_server(self._snapshot.server_name)
        self._gpus = tuple(view.gpu for view in self._snapshot.gpus)
        if self.is_mounted:
            self._typed()

    def _window(self) -> Window:
        given = {field.id or "": field.value for field in self.query(Input)}
        given["nobody"] = YES if self.query_one(FlagField).value else ""
        now = self._services.clock.now()
        has_end = given["for"].strip() or given["until"].strip() or span(given["start"].strip() or "now", "start", now)
        if not has_end:
            given["for"] = USUAL
        window = asked.read_reservation(
            {name: text.strip() for name, text in given.items()}, self._services.about.user, now, self._gpus
        )
        check_times(window, now)
        others = [view.window for view in self._snapshot.windows if view.state is not WindowState.RELEASED]
        if any(other.name == window.name for other in others):
            raise InputError(f"reservation {window.name} exists already", where="name", hint="choose another name")
        check_conflicts(window, others, self._gpus)
        return window

    @on(Input.Changed)
    @on(FlagField.Changed)
    def _typed(self) -> None:
        try:
            self._tell(describe_window(self._window(), self._snapshot))
        except GputuiError as error:
            name = _field(error)
            about = f"{LABELS.get(name, name)}: " if name in asked.FIELDS else ""
            self._tell(f"{about}{error.what}" + (f" ({error.hint})" if error.hint else ""), is_wrong=True)

    def _tell(self, words: str, *, is_wrong: bool = False) -> None:
        if self._told != (words, is_wrong):
            self._told = (words, is_wrong)
            told = self.query_one("#told", Static)
            told.update(plain(words, 300))
            told.set_class(is_wrong, "-wrong")

    @on(Input.Submitted)
    def action_send(self) -> None:
        try:
            window = self._window()
        except GputuiError as error:
            if (name := _field(error)) in asked.FIELDS:
                self.query_one(f"#{name}").focus()
            return
        proposal = WindowProposal(window, self._gpus)
        if self._services.shows_what_if:
            ask(self.app, WhatIf(self._services, self._snapshot, proposal), lambda _: self.dismiss())
            return
        self.app.post_message(ActionRequested(proposal.action(), server=self._snapshot.server_name))
        self.dismiss()

    def action_give_up(self) -> None:
        self.dismiss()


def _field(error: GputuiError) -> str:
    name = (getattr(error, "where", None) or "").removeprefix("--")
    return {"end": "until"}.get(name, name)
