"""The submit form by keys: typing, pasting, recalling, editing, sending and refusals."""

from __future__ import annotations

import contextlib
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.errors import StoreFullError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import ConsoleSettings
from gputui.domain.submit_action import Done
from gputui.tui.actions import ExitChoice
from gputui.tui.input_queue import UnmarkedPaste
from gputui.tui.preferences import Preferences
from gputui.tui.screens.dialogs import Choose, Confirm
from gputui.tui.screens.form_fields import FieldRow
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.job_form import keep_submission, label, recent_submissions
from gputui.tui.screens.main import Main
from tests.cases import cases
from tests.factories import GIB
from tests.tui.console import Console, on_screen, until
from tests.tui.foresight import edit, judged
from tests.tui.sample import secret_job

SMALL = (80, 24)


@contextlib.asynccontextmanager
async def opened(console: Console, size: tuple[int, int] = SMALL) -> AsyncIterator[tuple[Pilot[ExitChoice], Submit]]:
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        await pilot.press("s")
        await pilot.pause()
        form = console.app.screen
        assert isinstance(form, Submit)
        yield pilot, form


def newest(console: Console) -> Submission:
    made = console.store.jobs()[max(console.store.jobs())]
    return Submission(made.spec, made.held)


def files(directory: Path) -> list[Path]:
    return list(directory.rglob("*.toml"))


async def write(pilot: Pilot[ExitChoice], text: str) -> None:
    """Type a text into the focused field."""
    field = pilot.app.focused
    assert isinstance(field, Input)
    field.insert_text_at_cursor(text)
    await pilot.pause()


async def paste(pilot: Pilot[ExitChoice], text: str) -> None:
    target = pilot.app.focused or pilot.app.screen
    target.post_message(events.Paste(text))
    await pilot.pause()
    await pilot.pause()


async def test_a_job_is_submitted_by_keys_only() -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        await write(pilot, "busybox")
        await pilot.press("down")
        await write(pilot, "sleep 'a b'")
        await pilot.press("down", "2", "tab")
        await write(pilot, "10g")
        await pilot.press("tab", "tab", "space")
        await console.press(pilot, "enter")
        assert not isinstance(console.app.screen, Submit), form.body.draft()
    spec = newest(console).spec
    assert (spec.image, spec.command) == ("busybox", ("sleep", "a b"))
    assert (spec.gpus.minimum, spec.gpus.memory, spec.gpus.share) == (2, 10 * GIB, True)


async def test_errors_show_while_typing_and_prevent_sending() -> None:
    console = Console()
    before = len(console.store.jobs())
    async with opened(console) as (pilot, form):
        await write(pilot, "busybox")
        await console.press(pilot, "down", "down", "x")
        while "'x' is not a number of GPUs" not in console.screen_text:
            await pilot.pause()
        await pilot.press("tab", "up", "up", "up")
        await console.press(pilot, "ctrl+s")
        assert form.focused is not None
        assert form.focused.id == "gpus"
        await pilot.press("1")
        assert "is not a number of GPUs" not in console.screen_text
    assert len(console.store.jobs()) == before


async def test_rare_fields_are_unfolded_and_a_fault_in_them_is_found() -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        await write(pilot, "busybox")
        assert "entrypoint" not in console.screen_text
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert form.focused is not None
        assert form.focused.id == "mount"
        await write(pilot, "type=bind")
        await pilot.press("ctrl+n")
        assert "entrypoint" not in console.screen_text
        await console.press(pilot, "ctrl+s")
        await pilot.pause()
        assert isinstance(console.app.screen, Submit)
        assert form.focused.id == "mount"
        assert "no absolute target" in console.screen_text


@cases("keys", [("^N", "ctrl+n"), ("F3", "f3")])
async def test_key_bar_and_heading_agree_on_the_next_effect_of_a_key(keys: tuple[str, str]) -> None:
    shown, key = keys
    console = Console(console=ConsoleSettings("off", keys={"more_fields": (key,)} if shown == "F3" else {}))
    async with opened(console) as (pilot, _):
        for bar, heading in ("more", "more fields"), ("fewer", "fewer fields"), ("more", "more fields"):
            lines = console.screen_text.splitlines()
            assert any(f"{heading} ({shown})" in line for line in lines), console.screen_text
            assert f"{shown} {bar}  " in next(line for line in lines if "Esc leave" in line)
            await pilot.press(key)
            await pilot.pause()


async def test_a_form_that_opens_with_all_fields_says_how_to_have_fewer() -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        form.fill({"image": "busybox", "cpus": "4"})
        await pilot.pause()
        assert "^N fewer" in console.screen_text


@cases("where", ["image", "env", "hold"])
async def test_a_whole_line_is_pasted_anywhere(where: str) -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        form.body.go_to(where)
        await pilot.pause()
        await paste(
            pilot, "docker run --rm -it \\\n --gpus 2 -e TOKEN=hush --cap-add IPC_LOCK --ipc host busybox sleep 3\n"
        )
        assert form.draft() | {"image": "busybox", "command": "sleep 3", "gpus": "2", "ipc": "host"} == form.draft()
        assert form.draft()["cap_add"] == "IPC_LOCK"
        assert "Left out: -i (a job has no input: gputui run -i gives it one)" in console.screen_text
        await console.press(pilot, "ctrl+s")
    spec = newest(console).spec
    assert (spec.options.env, spec.options.ipc) == ((("TOKEN", "hush"),), "host")
    assert spec.options.cap_add == ("IPC_LOCK",)


async def test_a_line_typed_as_an_image_is_filled_in_rather_than_sent() -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        await write(pilot, "docker run --gpus 1 busybox true")
        await pilot.press("enter")
        await pilot.pause()
        assert (form.draft()["image"], form.draft()["command"]) == ("busybox", "true")
        assert isinstance(console.app.screen, Submit)


@cases("end", ["\n", "\r"])
async def test_other_text_is_pasted_as_one_line(end: str) -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        form.body.go_to("command")
        await pilot.pause()
        await paste(pilot, f"python train.py \\{end}  --epochs 3{end}")
        assert form.draft()["command"].split() == ["python", "train.py", "--epochs", "3"]


@cases("size", [SMALL, (120, 36), (200, 50)])
async def test_a_blank_stands_between_each_label_and_its_field(size: tuple[int, int]) -> None:
    console = Console()
    async with opened(console, size) as (pilot, form):
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "idle timeout" in "".join(row.render_line(0).text for row in form.body.query(FieldRow))
        for row in form.body.query(FieldRow):
            drawn = row.render_line(0).text
            for name, field in row.fields.items():
                start = field.region.x - row.region.x
                assert drawn[start - 1] == " ", (name, drawn)
                assert label(name) in drawn[:start], (name, drawn)


async def test_escape_asks_only_when_something_was_typed() -> None:
    console = Console()
    async with opened(console) as (pilot, _):
        await pilot.press("escape")
        assert isinstance(console.app.screen, Main)
        await pilot.press("s", "x", "escape")
        assert isinstance(console.app.screen, Confirm)
        await pilot.press("n")
        assert isinstance(console.app.screen, Submit)
        await pilot.press("escape", "y")
        assert isinstance(console.app.screen, Main)


async def test_earlier_submissions_are_offered_without_their_environment() -> None:
    console = Console(preferences=Preferences())
    preferences = console.preferences
    async with opened(console) as (pilot, form):
        form.fill({"image": "first", "gpus": "3", "env": "TOKEN=hush"})
        await console.press(pilot, "ctrl+s")
        assert [entry.draft["image"] for entry in recent_submissions(preferences)] == ["first"]
        assert "hush" not in str(preferences.get("submissions"))
        await pilot.press("s")
        await pilot.pause()
        again = console.app.screen
        assert isinstance(again, Submit)
        form = again
        await write(pilot, "typed")
        await pilot.press("ctrl+up")
        assert (form.draft()["image"], form.draft()["gpus"], form.draft()["env"]) == ("first", "3", "")
        assert "Values of TOKEN are not kept" in console.screen_text
        await pilot.press("ctrl+down")
        assert form.draft()["image"] == "typed"


async def test_an_earlier_submission_is_chosen_from_a_list() -> None:
    console = Console(preferences=Preferences())
    for image in ("one", "two", "three"):
        keep_submission(console.preferences, {"image": image, "gpus": "1"})
    async with opened(console) as (pilot, form):
        await console.press(pilot, "ctrl+r")
        await pilot.pause()
        assert "▌ 1 GPU  three" in console.screen_text
        await pilot.press("down", "enter")
        await pilot.pause()
        assert form.draft()["image"] == "two"
        await pilot.press("escape")
        assert isinstance(console.app.screen, Main)


async def test_a_refusal_keeps_the_input() -> None:
    console = Console()
    async with opened(console) as (pilot, form):
        form.fill({"image": "busybox", "gpus": "1", "after": "999"})
        await console.press(pilot, "ctrl+s")
        assert console.app.screen is form
        assert "999" in console.screen_text.split("Start")[0].split("array")[1]
        assert form.draft()["after"] == "999"


async def test_a_full_disk_keeps_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()

    def full(*_: object, **__: object) -> Done:
        raise StoreFullError("no space left", where="queue.json")

    monkeypatch.setattr(console.actions, "act", full)
    async with opened(console) as (pilot, form):
        form.fill({"image": "busybox", "gpus": "1"})
        await console.press(pilot, "ctrl+s")
        assert console.app.screen is form
        assert "It was refused: queue.json: no space left" in console.screen_text
        monkeypatch.undo()
        await console.press(pilot, "ctrl+s")
        assert isinstance(console.app.screen, Main)


async def test_the_expected_start_is_shown_once_typing_pauses() -> None:
    console = Console()
    async with opened(console) as (pilot, _):
        await write(pilot, "busybox")
        assert "2 of 8 suitable GPUs free: 4,5" in console.screen_text
        await judged(console, pilot)
        await pilot.pause()
        assert "Start ~16:00, in 4h00m" in console.screen_text
        await pilot.press("down", "down", "9")
        await judged(console, pilot)
        await pilot.pause()
        assert "Can never start: needs 9 GPUs" in console.screen_text


async def test_the_forecast_follows_a_newer_snapshot() -> None:
    console = Console()
    async with opened(console) as (pilot, _):
        await write(pilot, "busybox")
        node = replace(console.snapshot.nodes[0], gpus=console.snapshot.nodes[0].gpus[4:5])
        await console.show(pilot, replace(console.snapshot, nodes=(node,)))
        await pilot.pause()
        assert "1 of 1 suitable GPU free: 4" in console.screen_text


async def test_images_are_completed_from_the_engine() -> None:
    asked = threading.Event()

    def images() -> Sequence[str]:
        asked.set()
        return ("zoo/model:1", "zoo/model:2")

    console = Console(images=images)
    async with opened(console) as (pilot, form):
        await until(pilot, asked.is_set)
        await pilot.press("z", "o")
        await until(pilot, lambda: "zoo/model:1, zoo/model:2" in console.screen_text)
        await pilot.press("right")
        assert form.draft()["image"] == "zoo/model:1"


async def test_a_clone_asks_for_the_same_and_shows_no_secret() -> None:
    console = Console()
    job = secret_job()
    async with on_screen(console, (120, 50)) as (_, pilot):
        form = Submit.clone(console.app.services, console.snapshot, job)
        await console.app.push_screen(form)
        await pilot.pause()
        shown = console.screen_text
        assert job.spec.options.env
        assert not [value for _, value in job.spec.options.env if len(value) > 3 and value in shown]
        await console.press(pilot, "escape")
        assert isinstance(console.app.screen, Main)
        await console.app.push_screen(Submit.clone(console.app.services, console.snapshot, job))
        await console.press(pilot, "ctrl+s")
        assert isinstance(console.app.screen, Main), console.screen_text
    assert newest(console).spec == job.spec


class TestTemplates:
    async def test_a_template_is_saved_without_secrets_and_loaded_again(self, tmp_path: Path) -> None:
        directory = tmp_path / "templates"
        console = Console(templates=directory)
        async with opened(console) as (pilot, form):
            form.fill({"image": "busybox", "gpus": "2-4", "env": "MY_TOKEN=hush EPOCHS=3"})
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(console.app.screen, Choose))
            await pilot.press("s")
            await pilot.pause()
            await pilot.press(*"mine", "enter")
            await until(pilot, lambda: (directory / "mine.toml").exists())
            text = (directory / "mine.toml").read_text()
            assert "hush" not in text
            assert 'gpus = "2-4"' in text
            assert stat.S_IMODE((directory / "mine.toml").stat().st_mode) == 0o600
            form.fill({"image": "other"})
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(console.app.screen, Choose))
            await pilot.press("enter")
            await until(pilot, lambda: form.draft()["image"] == "busybox")
            assert form.draft()["gpus"] == "2-4"
            assert "From the template mine" in console.screen_text

    async def test_errors_of_a_template_are_shown_with_their_place(self, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text("[[job]]\nimage = 'a'\ngpus = 'x'\n")
        console = Console(templates=tmp_path)
        async with opened(console, (160, 40)) as (pilot, form):
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(console.app.screen, Choose))
            await pilot.press("enter")
            await until(pilot, lambda: "bad.toml" in form.below.said)
            assert "job[1].gpus" in console.screen_text

    async def test_a_template_name_that_is_a_path_is_refused(self, tmp_path: Path) -> None:
        console = Console(templates=tmp_path / "templates")
        async with opened(console) as (pilot, form):
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(console.app.screen, Choose))
            await pilot.press("s")
            await pilot.pause()
            await write(pilot, "../evil")
            await pilot.press("enter")
            await until(pilot, lambda: "is not a valid name for a template" in form.below.said)
        assert not files(tmp_path)


class TestEditor:
    @pytest.fixture(autouse=True)
    def _editor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Provide an editor that runs the script, on a terminal that can be suspended."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.delenv("VISUAL", raising=False)

    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
        path = tmp_path / "edit.sh"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o700)
        monkeypatch.setenv("EDITOR", str(path))

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        yield

    async def test_a_file_saved_in_the_editor_fills_the_form(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.script(tmp_path, monkeypatch, """sed -i 's/^gpus = 1/gpus = "2-4"/' "$1" """)
        console = Console()
        monkeypatch.setattr(console.app, "suspend", self.suspended)
        async with opened(console) as (pilot, form):
            await write(pilot, "busybox")
            await edit(pilot)
            assert (form.draft()["image"], form.draft()["gpus"]) == ("busybox", "2-4")
            assert form.is_touched
        assert not files(tmp_path)

    async def test_a_file_with_a_mistake_is_kept_and_edited_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.script(tmp_path, monkeypatch, """sed -i 's/^gpus = .*/gpus = "x"/' "$1" """)
        console = Console()
        monkeypatch.setattr(console.app, "suspend", self.suspended)
        async with opened(console, (160, 40)) as (pilot, form):
            await write(pilot, "busybox")
            await edit(pilot)
            assert "job[1].gpus: 'x' is not a number of GPUs" in form.below.said
            kept = files(tmp_path)
            assert len(kept) == 1
            assert stat.S_IMODE(kept[0].parent.stat().st_mode) == 0o700
            assert form.draft()["gpus"] == "1"
            self.script(tmp_path, monkeypatch, """sed -i 's/^gpus = "x"/gpus = 3/' "$1" """)
            await edit(pilot)
            assert form.draft()["gpus"] == "3"

    @cases(("lines", "words"), [("exit 3", "ended with 3"), ("true", "")])
    async def test_an_editor_that_changes_nothing_leaves_the_form(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, words: str
    ) -> None:
        self.script(tmp_path, monkeypatch, lines)
        console = Console()
        monkeypatch.setattr(console.app, "suspend", self.suspended)
        async with opened(console) as (pilot, form):
            await write(pilot, "busybox")
            await edit(pilot)
            assert form.draft()["image"] == "busybox"
            assert words in form.below.said

    async def test_a_terminal_that_cannot_be_suspended_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EDITOR", "true")
        console = Console()
        async with opened(console) as (pilot, form):
            await edit(pilot)
            assert "no editor can be opened on this screen" in form.below.said


async def test_a_job_that_asks_for_too_many_gpus_is_sent_only_when_it_is_sent_twice() -> None:
    console = Console()
    before = len(console.store.jobs())
    async with opened(console) as (pilot, form):
        await write(pilot, "busybox")
        await pilot.press("down", "down", "9")
        await console.press(pilot, "enter")
        assert len(console.store.jobs()) == before
        assert form.below.said == "It asks for 9 GPUs, this server has 8. Send it again to queue it anyway."
        await console.press(pilot, "enter")
    assert newest(console).spec.gpus.minimum == 9


def typed(text: str) -> list[events.Key]:
    """Return the keys of a text."""
    return [events.Key("enter" if each == "\r" else each, each) for each in text]


async def test_a_line_without_marks_of_a_paste_waits_for_enter_as_a_typed_one() -> None:
    async with on_screen(Console(), (104, 40)) as (console, pilot):
        await console.press(pilot, "s")
        console.app.post_message(UnmarkedPaste(typed("gputui submit --host --name mine -- sleep 600")))
        await console.settle(pilot)
        assert console.app.screen.query_one("#image", Input).value == "gputui submit --host --name mine -- sleep 600"
        await console.press(pilot, "enter")
        assert console.app.screen.query_one("#name", Input).value == "mine"


async def test_a_key_that_opens_a_line_may_come_with_its_text() -> None:
    async with on_screen(Console(), (104, 40)) as (console, pilot):
        console.app.post_message(UnmarkedPaste([events.Key("slash", "/"), *typed("chrt\r")]))
        await console.settle(pilot)
        assert console.app.screen_stack[0].query_one("#filter", Input).value == "chrt"
        assert not isinstance(console.app.focused, Input)
        assert console.audited() == []


@cases(("end", "is_entered"), [("\r", True), ("", False), ("\rrm -r x\r", False)])
async def test_only_a_single_line_that_came_with_its_enter_is_entered(end: str, is_entered: bool) -> None:
    async with on_screen(Console(), (104, 40)) as (console, pilot):
        await console.press(pilot, "slash")
        console.app.post_message(UnmarkedPaste(typed(f"alice{end}")))
        await console.settle(pilot)
        assert isinstance(console.app.focused, Input) is not is_entered
        assert console.app.screen.query_one("#filter", Input).value.startswith("alice")
