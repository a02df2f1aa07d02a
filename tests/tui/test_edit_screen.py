"""Editing of a waiting job in the submit form: filled from the job, forecast, written or refused."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.action import SetPriority
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, LimitWarning
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.main import Main
from gputui.tui.screens.what_if import WhatIf
from tests.cases import cases
from tests.factories import GIB, job
from tests.tui import plans
from tests.tui.console import Console, on_screen, until
from tests.tui.foresight import edit, watched

OPTIONS = ContainerOptions(env=(("TOKEN", "hunter2"), ("A", "1")), volumes=("/data:/data",), shm_size=GIB)


def edited(*, what_if: str = "off", **changes: object) -> Console:
    """Return a console whose job 108 has many options."""
    base = job(108, name="segformer-city", tenant="alice", gpus=2, age=3000, options=OPTIONS)
    asked = base.evolve(spec=replace(base.spec, time_limit=timedelta(hours=4), image="seg:1", command=("train",)))
    picture = plans.contended()
    jobs = tuple(asked.evolve(**changes) if one.id == 108 else one for one in picture.jobs)
    return watched(replace(picture, jobs=jobs), what_if=what_if)


@contextlib.asynccontextmanager
async def opened(console: Console, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Pilot[ExitChoice], Submit]]:
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        console.select(108)
        await pilot.press("e")
        await pilot.pause()
        form = console.app.screen
        assert isinstance(form, Submit)
        yield pilot, form


def put(form: Submit, **texts: str) -> None:
    for name, text in texts.items():
        form.query_one(f"#{name}", Input).value = text


def kept(console: Console) -> Job:
    return console.store.get(108)


async def test_the_form_is_filled_with_the_job_s_request() -> None:
    async with opened(edited()) as (pilot, form):
        await pilot.pause()
        draft = form.draft()
        wanted = {"image": "seg:1", "command": "train", "gpus": "2", "time_limit": "4h", "tenant": "alice"}
        assert wanted.items() <= draft.items()
        assert "hunter2" not in str(draft)
        assert form.query_one("#time_limit", Input).has_focus
        assert not form.is_touched


async def test_edited_fields_change_and_the_others_stay() -> None:
    console = edited()
    before = kept(console)
    async with opened(console) as (pilot, form):
        await pilot.press("ctrl+n")
        await pilot.pause()
        put(form, time_limit="2h", signal="TERM@1m", image="seg:2", shm_size="2g", nice="30", priority="70")
        put(form, env=form.draft()["env"] + " B=2", begin="+1h", retries="3", retry_on="OOM", name="renamed")
        await pilot.press("tab", "tab")
        await console.press(pilot, "ctrl+s")
        assert isinstance(console.app.screen, Main), form.below.said
    after, spec = kept(console), kept(console).spec
    assert console.audited() == [("edit", "job 108")]
    assert spec.options == replace(OPTIONS, shm_size=2 * GIB, env=(*OPTIONS.env, ("B", "2")))
    assert (spec.image, spec.name, spec.retry_on, spec.nice) == ("seg:2", "renamed", ("OOM",), 30)
    assert (spec.time_limit, after.priority) == (timedelta(hours=2), 70)
    assert spec.warning == LimitWarning(15, timedelta(minutes=1))
    assert (spec.gpus, spec.command, after.submitted_at) == (before.spec.gpus, ("train",), before.submitted_at)
    assert "job 108 is edited" in console.told


async def test_fixed_fields_say_why() -> None:
    console = edited()
    async with opened(console, (120, 50)) as (pilot, form):
        await pilot.pause()
        assert form.query_one("#tenant", Input).disabled
        assert form.query_one("#array", Input).disabled
        shown = console.screen_text
        assert "cannot be changed; a clone may" in shown
        assert "a job cannot become an array" in shown


async def test_enter_shows_the_effect_and_enter_again_writes_it() -> None:
    console = edited(what_if="always")
    async with opened(console, (120, 40)) as (pilot, form):
        put(form, gpus="1", time_limit="1h")
        await pilot.press("enter")
        panel = console.app.screen
        assert isinstance(panel, WhatIf)
        assert "job #108 segformer-city: GPUs 2 -> 1, time limit 4h -> 1h" in console.screen_text
        await until(pilot, lambda: panel.comparison is not None)
        assert panel.comparison is not None
        assert panel.comparison.after.starts != panel.comparison.before.starts
        assert console.audited() == []
        await pilot.press("escape")
        await pilot.pause()
        assert console.app.screen is form
        assert form.draft()["gpus"] == "1"
        await pilot.press("enter")
        await console.press(pilot, "enter")
        assert isinstance(console.app.screen, Main)
        assert kept(console).spec.gpus.minimum == 1


async def test_an_edit_is_undone() -> None:
    console = edited()
    before = kept(console)
    async with opened(console) as (pilot, form):
        put(form, time_limit="2h", priority="80")
        await console.press(pilot, "enter")
        assert kept(console).priority == 80
        await console.press(pilot, "u")
        assert kept(console) == before


async def test_hold_is_a_checkbox_of_the_form() -> None:
    console = edited(held=True)
    async with opened(console) as (pilot, form):
        assert form.draft()["hold"] == "yes"
        form.query_one("#hold").focus()
        await pilot.press("space")
        await console.press(pilot, "enter")
        assert not kept(console).held


async def test_errors_are_shown_at_their_field_and_nothing_is_sent() -> None:
    console = edited()
    async with opened(console) as (pilot, form):
        put(form, time_limit="soon")
        await pilot.press("enter")
        await pilot.pause()
        assert console.app.screen is form
        assert "is not a duration" in console.screen_text
        assert console.audited() == []


async def test_an_unchanged_form_writes_nothing() -> None:
    console = edited()
    async with opened(console) as (pilot, _):
        await console.press(pilot, "enter")
        assert isinstance(console.app.screen, Main)
        assert console.told == ["job 108: nothing to change"]
        assert console.audited() == []


async def test_the_time_limit_of_a_running_job() -> None:
    console = watched(plans.contended(), what_if="always")
    runs = next(job for job in console.snapshot.jobs if job.state is JobState.RUNNING and job.spec.time_limit)
    async with on_screen(console, (120, 40)) as (_, pilot):
        console.select(runs.id)
        await console.press(pilot, "e")
        form = console.app.screen
        assert isinstance(form, Submit)
        assert [field.id for field in form.query(Input) if field.region] == ["time_limit", "comment"]
        assert "more fields" not in console.screen_text
        assert "by its time limit" in console.screen_text
        assert console.screen_text.count("only its time limit (4h in all") == 1
        put(form, time_limit="+2h")
        await until(pilot, lambda: "· before: " in console.screen_text)
        await console.press(pilot, "enter")
        panel = console.app.screen
        assert isinstance(panel, WhatIf)
        assert "time limit " in console.screen_text
        await until(pilot, lambda: panel.comparison is not None)
        await console.press(pilot, "enter")
    assert runs.spec.time_limit is not None
    assert console.store.get(runs.id).spec.time_limit == runs.spec.time_limit + timedelta(hours=2)


@cases("state", [JobState.CONFIGURING, JobState.RUNNING])
async def test_an_edit_of_a_job_that_has_started_is_refused(state: JobState) -> None:
    console = edited()
    async with opened(console) as (pilot, form):
        put(form, retries="5")
        with console.store.transaction() as transaction:
            transaction.put(transaction.get(108).evolve(state=state))
        await console.press(pilot, "enter")
        assert console.app.screen is form
        assert "only its time limit and its" in console.screen_text
        assert kept(console).spec.retries == 0
        assert form.draft()["retries"] == "5", "nothing typed is lost"


async def test_an_edit_of_a_changed_job_is_refused_completely() -> None:
    console = edited()
    async with opened(console) as (pilot, form):
        put(form, retries="5")
        console.actions.act(SetPriority((108,), 90))
        before = kept(console)
        await console.press(pilot, "enter")
        assert "changed meanwhile: nothing is edited" in console.screen_text
        assert kept(console) == before
        await console.show(pilot, replace(console.snapshot, jobs=tuple(console.store.jobs().values())))
        assert "edit it as it is now" in console.screen_text


async def test_an_untouched_form_follows_the_job() -> None:
    console = edited()
    async with opened(console) as (pilot, form):
        console.actions.act(SetPriority((108,), 90))
        await console.show(pilot, replace(console.snapshot, jobs=tuple(console.store.jobs().values())))
        assert form.draft()["priority"] == "90"
        put(form, retries="5")
        await console.press(pilot, "enter")
        assert (kept(console).priority, kept(console).spec.retries) == (90, 5)


async def test_the_job_is_edited_in_the_users_own_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen.toml"
    script = tmp_path / "editor"
    script.write_text(
        f'#!/bin/sh\ncp "$1" {seen}\nsed -i "s/^gpus = 2/gpus = 4/; s/^tenant = .*/tenant = \'eve\'/" "$1"\n'
    )
    script.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)
    console = edited()
    async with opened(console) as (pilot, form):
        monkeypatch.setattr(console.app, "suspend", contextlib.nullcontext)
        await edit(pilot)
        assert "hunter2" not in seen.read_text()
        assert (form.draft()["gpus"], form.draft()["tenant"]) == ("4", "alice")
        assert "cannot be changed; a clone may" in console.screen_text
        await console.press(pilot, "enter")
        assert kept(console).spec.gpus.minimum == 4
        assert kept(console).spec.options == OPTIONS


async def test_a_pasted_line_changes_only_its_own_options() -> None:
    console = edited()
    async with opened(console) as (pilot, form):
        form.fill_line("docker run --gpus 1 --shm-size 2g seg:3 train --fast")
        await console.press(pilot, "enter")
        spec = kept(console).spec
        assert (spec.image, spec.command, spec.gpus.minimum) == ("seg:3", ("train", "--fast"), 1)
        assert spec.options == replace(OPTIONS, shm_size=2 * GIB)
        assert spec.time_limit == timedelta(hours=4)


async def test_the_edit_form_does_not_offer_other_jobs() -> None:
    async with opened(edited()) as (pilot, form):
        for key in ("ctrl+r", "ctrl+up", "ctrl+l"):
            await pilot.press(key)
        await pilot.pause()
        assert form.app.screen is form
        assert not form.is_touched
