"""What an engine lacks in the console: its tabs, fields, columns, keys and lines of help are absent or say why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes import site as kubernetes
from gputui.cluster.slurm import site as slurm
from gputui.domain.cluster import NEEDED_FOR, Capability, Caps
from gputui.domain.errors import CapabilityError, InputError
from gputui.domain.job_spec import GpuRequest, LimitWarning, Submission
from gputui.tui.screens.dialogs import Confirm
from gputui.tui.screens.form_fields import FlagField, TextField
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.what_if import WhatIf
from tests.cases import cases
from tests.cluster.console import ClusterConsole
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec
from tests.tui.idle import share_style_sheets

ENGINES: Mapping[str, Caps] = {
    "Slurm": slurm.caps_of(slurm.SlurmSite(user="alice", uid=1000, slurm_user="slurm")),
    "Kubernetes": kubernetes.caps_of(None),
}
SIZES = [(80, 24), (200, 50)]
both = cases("engine", ENGINES)


@pytest.fixture(autouse=True)
def _one_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    share_style_sheets(monkeypatch.setattr)


def console_over(engine: str, first: int = 1) -> ClusterConsole:
    """Return a console over a cluster with running and waiting jobs, and with what that engine has."""
    cluster = FakeCluster(FakeClock(), caps=ENGINES[engine], output=(b"step 1",), first=first)
    for name in ("llama", "vit", "bert"):
        cluster.submit([Submission(spec(gpus=2, name=name, time_limit=timedelta(hours=8)))], name)
    cluster.submit([Submission(spec(gpus=1, name="sweep"), array=tuple(range(4)))], "sweep")
    return ClusterConsole(cluster)


def end_all(console: ClusterConsole) -> None:
    """End the followed logs."""
    for job in console.cluster.snapshot().jobs:
        if job.state.is_active:
            console.cluster.end(job.id)


@cases(("engine", "size"), zip(ENGINES, SIZES, strict=True))
async def test_tabs_and_fields_of_what_an_engine_lacks_are_absent(engine: str, size: tuple[int, int]) -> None:
    console = console_over(engine)
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "2")
        assert re.search(r"\bfinished\b", console.screen_text)
        assert not re.search("recurring|reservations", console.screen_text)
        for key, capability in (("3", Capability.RECURRING), ("4", Capability.RESERVE)):
            await console.press(pilot, key)
            assert console.told[-1].endswith(f"Not in this cluster: {ENGINES[engine].why_not(capability)}.")
        await console.press(pilot, "1", "s", "ctrl+n")
        fields = [*console.app.screen.query(TextField), *console.app.screen.query(FlagField)]
        shown = {field.id for field in fields if field.display}
        lacking = ENGINES[engine].lacking_options
        assert shown.isdisjoint(lacking)
        assert {"image", "command", "gpus", "time_limit", "array", "hold"} <= shown
        assert len(shown) + len(lacking.keys() & {field.id for field in fields}) == len(fields)
        assert "this host" not in console.screen_text
        end_all(console)


@cases(
    ("engine", "words"),
    [("Slurm", "Start ~"), ("Kubernetes", "Start no forecast: Kubernetes does not forecast when a job starts")],
)
async def test_the_form_tells_the_engines_start_and_what_it_lacks(engine: str, words: str) -> None:
    console = console_over(engine)
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "s", *"busybox")
        while words not in console.screen_text:
            await pilot.pause(0.01)
        form = console.app.screen
        assert isinstance(form, Submit)
        form.fill_line("gputui submit --retries 3 python:3.11 python train.py")
        await console.settle(pilot)
        assert f"retries: {ENGINES[engine].options['retries']}" in console.screen_text
        await console.press(pilot, "enter")
        assert console.app.screen is form
        end_all(console)


@cases(("engine", "is_there"), [("Slurm", True), ("Kubernetes", False)])
async def test_starts_have_a_column_where_the_engine_tells_them_and_changes_no_forecast_of_ours(
    engine: str, is_there: bool
) -> None:
    console = console_over(engine)
    async with console.app.run_test(size=(160, 40)) as pilot:
        await console.begin(pilot)
        assert ("STARTS" in console.screen_text) is is_there
        await console.press(pilot, "vertical_line")
        assert ("Kubernetes tells how many GPUs of a node" in console.screen_text) is not is_there
        await console.press(pilot, "escape", "end", "c")
        assert isinstance(console.app.screen, Confirm)
        await console.press(pilot, "escape", "h")
        assert not isinstance(console.app.screen, WhatIf)
        assert all(job.held for job in console.cluster.snapshot().jobs if job.array)
        end_all(console)


@both
async def test_help_tells_what_the_engine_lacks_in_place_of_what_a_key_does(engine: str) -> None:
    console = console_over(engine)
    async with console.app.run_test(size=(200, 50)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "question_mark", "slash", *"timeline")
        assert "Not in this cluster: " in console.screen_text
        assert "Show the timeline of the GPUs" not in console.screen_text
        end_all(console)


@pytest.mark.parametrize("size", [*SIZES, (150, 40)])
async def test_long_numbers_are_shown_by_as_many_digits_as_tell_them_apart(size: tuple[int, int]) -> None:
    console = console_over("Kubernetes", first=1_726_912_349)
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        rows = [line[1:].split() for line in console.screen_text.splitlines() if re.search(r"^.? *17269", line)]
        assert [row[0] for row in rows] == ["1726912349", "1726912350", "1726912351", "1726912352"]
        end_all(console)


async def test_a_long_number_alone_is_shown_by_six_digits() -> None:
    cluster = FakeCluster(FakeClock(), first=1_726_912_349)
    cluster.submit([Submission(spec(gpus=1, name="only"))], "only")
    console = ClusterConsole(cluster)
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.begin(pilot)
        assert re.search(r"(?m)^▌?172691 R +50 +only", console.screen_text)
        end_all(console)


@pytest.mark.parametrize("size", [*SIZES, (150, 40)])
async def test_the_tab_of_ended_jobs_has_whole_numbers(size: tuple[int, int]) -> None:
    console = console_over("Kubernetes", first=1_726_912_349)
    end_all(console)
    async with console.app.run_test(size=size) as pilot:
        await console.refresh(pilot)
        await console.press(pilot, "2")
        assert len(re.findall(r"\b1726912\d{3}\b", console.screen_text)) >= 3
        end_all(console)


OF_ONE_MACHINE = re.compile(r"this (host|server|machine)|the plan\b|gputui serve|scheduler|the driver does not")
PLACES = {
    "main": ("z", "z"),
    "ended": ("2",),
    "form": ("s", "ctrl+n"),
    "job": ("enter",),
    "waiting job": ("end", "enter"),
    "GPU": ("i",),
    "processes on GPUs": ("U",),
    "notices": ("exclamation_mark",),
    "palette": ("colon",),
    "columns": ("vertical_line",),
    "help": ("question_mark",),
    "end of help": ("question_mark", "G"),
}


@pytest.mark.parametrize(
    ("engine", "size", "places"),
    [
        ("Slurm", SIZES[0], tuple(PLACES)[:6]),
        ("Kubernetes", SIZES[1], tuple(PLACES)[6:]),
        pytest.param("Slurm", SIZES[1], tuple(PLACES), marks=pytest.mark.long),
        pytest.param("Kubernetes", SIZES[0], tuple(PLACES), marks=pytest.mark.long),
    ],
)
async def test_no_screen_speaks_of_the_scheduler_of_one_machine(
    engine: str, size: tuple[int, int], places: tuple[str, ...]
) -> None:
    console = console_over(engine)
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        for place in places:
            await console.press(pilot, *PLACES[place])
            assert OF_ONE_MACHINE.findall(console.screen_text) == [], f"{place}: {console.screen_text}"
            await console.press(pilot, "escape", "1")
        end_all(console)


ASKING: Mapping[str, Submission] = {
    "retries": Submission(spec(retries=1)),
    "share": Submission(replace(spec(), gpus=GpuRequest(1, 1, share=True))),
    "gpu_memory": Submission(replace(spec(), gpus=GpuRequest(1, 1, memory=1 << 30))),
    "idle_timeout": Submission(spec(idle_timeout=timedelta(hours=1))),
    "preemptible": Submission(spec(preemptible=True)),
    "signal": Submission(spec(warning=LimitWarning(10, timedelta(minutes=1)))),
    "host": Submission(spec(image=None)),
    "nice": Submission(spec(nice=5)),
    "after": Submission(spec(after=(3,))),
    "hold": Submission(spec(), held=True),
    "array": Submission(spec(), array=(0, 1)),
}


@both
@cases("option", ASKING)
def test_a_job_with_an_option_that_the_engine_lacks_is_refused_with_its_sentence(engine: str, option: str) -> None:
    caps, submission = ENGINES[engine], ASKING[option]
    if option not in caps.lacking_options:
        caps.check_submission(submission)
        return
    with pytest.raises((CapabilityError, InputError)) as refused:
        caps.check_submission(submission)
    assert refused.value.what == caps.lacking_options[option]
    assert refused.value.where == (None if option in NEEDED_FOR else f"--{option.replace('_', '-')}")
