"""Every option and setting that takes a time or a duration reads the same texts, and refuses others in one sentence."""

from __future__ import annotations

import re
import time as clocks
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from gputui import bootstrap
from gputui.cli import main
from gputui.domain.errors import InputError
from gputui.request import job_values, reservation
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.domain.policy.test_decide import seen
from tests.factories import NOW, job, load_settings, running

DURATIONS = {
    "submit --time-limit": ("submit", "--time-limit", "{}", "busybox"),
    "submit --idle-timeout": ("submit", "--idle-timeout", "{}", "busybox"),
    "submit --backoff": ("submit", "--retries", "1", "--backoff", "{}", "busybox"),
    "submit --signal": ("submit", "--time-limit", "9d", "--signal", "TERM@{}", "busybox"),
    "submit --health-interval": ("submit", "--health-cmd", "true", "--health-interval", "{}", "busybox"),
    "submit --health-timeout": ("submit", "--health-cmd", "true", "--health-timeout", "{}", "busybox"),
    "submit --health-start-period": ("submit", "--health-cmd", "true", "--health-start-period", "{}", "busybox"),
    "submit --health-start-interval": ("submit", "--health-cmd", "true", "--health-start-interval", "{}", "busybox"),
    "edit --time-limit": ("edit", "1", "--time-limit", "{}"),
    "edit --time-limit of a running job": ("edit", "2", "--time-limit", "{}"),
    "edit --idle-timeout": ("edit", "1", "--idle-timeout", "{}"),
    "edit --backoff": ("edit", "3", "--backoff", "{}"),
    "wait --timeout": ("wait", "--timeout", "{}", "77"),
    "cluster check --timeout": ("cluster", "check", "--timeout", "{}"),
    "top --interval": ("top", "-n", "1", "--interval", "{}"),
    "serve --wait": ("serve", "--wait", "{}"),
    "state backup --keep": ("state", "backup", "--keep", "{}", "/no/such/directory/"),
    "replay --max-time": ("replay", "--max-time", "{}", "/no/such/file.csv"),
    "reserve add --for": ("reserve", "add", "--dry-run", "--gpus", "1", "--for", "{}"),
}
MOMENTS = {
    "submit --begin": ("submit", "--begin", "{}", "busybox"),
    "edit --begin": ("edit", "1", "--begin", "{}"),
    "reserve add --start": ("reserve", "add", "--gpus", "1", "--for", "1h", "--start", "{}"),
    "reserve add --end": ("reserve", "add", "--gpus", "1", "--end", "{}"),
}
PAST = {
    "history --since": ("history", "--since", "{}"),
    "history --until": ("history", "--until", "{}"),
    "report --since": ("report", "--since", "{}"),
    "report --until": ("report", "--until", "{}"),
}
NO_EFFECT = {"serve --wait", "wait --timeout", "cluster check --timeout", "replay --max-time", "state backup --keep"}
"""Commands that would not end, or that refuse something else after the duration was read."""
_FORMS = re.compile(r"write|such as|at most|at least|needs a value")


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The times below are UTC, in whichever time zone the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    clocks.tzset()
    yield
    monkeypatch.undo()
    clocks.tzset()


def fill(store: KeptStore) -> None:
    store.clear()
    put(store, job(), running(), job(retries=1))


@pytest.fixture(autouse=True)
def jobs(store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting job, a running one, and a waiting one with retries, on eight GPUs."""
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(seen([])))
    fill(store)


def tried(run: Run, words: tuple[str, ...], text: str) -> tuple[int, str]:
    found = run(*(word.replace("{}", text) for word in words))
    return found.code, found.err


def refusal(run: Run, words: tuple[str, ...], text: str) -> str:
    """Return the sentence with which the text is refused; it is short, one line, and names the forms that are valid."""
    code, err = tried(run, words, text)
    assert code == 2, (words, text, err)
    assert err.startswith("gputui: error: --"), err
    assert err.count("\n") == 1, err
    assert err.strip().isprintable()
    assert len(err) < 230, err
    assert _FORMS.search(err), err
    return err


def test_all_options_are_in_these_tables() -> None:
    """An option whose help speaks of a time or a duration is tried here."""
    listed = {name.split(" of ")[0] for name in (*DURATIONS, *MOMENTS, *PAST)}
    other = {"run"}  # takes what submit takes
    found = {name for name in _options(main.cli, ()) if name.split()[0] not in other}
    same = {f"edit --{name}" for name in ("signal", *(f"health-{part}" for part in _HEALTH))}  # read as in submit
    assert found - same == listed


_HEALTH = ("interval", "timeout", "start-period", "start-interval")


def _options(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from _options(inner, (*path, name))
        return
    for option in command.params:
        if isinstance(option, click.Option) and re.search(r"\b(TIME|DURATION)\b", option.metavar or ""):
            yield " ".join((*path, max(option.opts, key=len)))


@cases("name", sorted(DURATIONS.keys() - NO_EFFECT))
def test_durations(run: Run, name: str) -> None:
    short = ("95s", "1h30m", "1h30", "1d12h", "2:30:00", "2-12:00:00", "1.5h")
    for text in (*short, "2 h", "1h 30m", "30 minutes", "1 day and 2 hours", "2 Hours, 5 min"):
        code, err = tried(run, DURATIONS[name], text)
        assert code == 0, err


@cases("name", sorted(DURATIONS))
def test_what_is_no_duration(run: Run, name: str) -> None:
    odd = ("1h\n2", "\u0663h", "\x1b[31m", "\u202e90", "9" * 20, "x" * 10_000)
    for text in (
        "",
        " ",
        "-",
        "abc",
        *(("90", "1.5") if "signal" not in name else ()),
        "in 2h",
        "4000d",
        "2 30",
        "5 months",
        "1:2:3:4",
        "tomorrow 09:00",
        "Mon 9-17",
        *odd,
    ):
        refusal(run, DURATIONS[name], text)


@cases("name", sorted(DURATIONS))
def test_a_duration_has_no_sign_except_as_a_change_of_a_limit(run: Run, name: str) -> None:
    for text in ("+2h", "-2h"):
        if name == "edit --time-limit":
            assert "no time limit" in tried(run, DURATIONS[name], text)[1]
        elif name == "edit --time-limit of a running job":
            assert tried(run, DURATIONS[name], "9h")[0] == 0
            assert tried(run, DURATIONS[name], text)[0] == 0
        else:
            refusal(run, DURATIONS[name], text)


@cases("name", sorted(DURATIONS.keys() - NO_EFFECT))
def test_0_is_refused_where_nothing_would_be_left(run: Run, name: str) -> None:
    if "health" in name or "backoff" in name:  # 0 is docker's default, and no pause
        assert tried(run, DURATIONS[name], "0")[0] == 0
        return
    for text in ("0", "0s", "0:00", "0 minutes"):
        assert re.search("is not above 0|too close to the limit", refusal(run, DURATIONS[name], text))


@cases("name", sorted(MOMENTS))
@cases(
    ("text", "found"),
    [
        ("tomorrow 09:00", "2026-03-03T09:00"),
        ("Tue 9pm", "2026-03-03T21:00"),
        ("in 2h", "2026-03-02T14:00"),
        ("in 1 day and 2 hours", "2026-03-03T14:00"),
        ("+2h", "2026-03-02T14:00"),
        ("+1d12h", "2026-03-04T00:00"),
        ("in 2:30:00", "2026-03-02T14:30"),
        ("18:00 America/New_York", "2026-03-02T23:00"),
        ("29 Mar 03:30 Europe/Berlin", "2026-03-29T01:30"),
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30"),
    ],
)
def test_moments(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch, name: str, text: str, found: str) -> None:
    fill(store)
    monkeypatch.setenv("GPUTUI_PROBE", "sim:1")
    code, err = tried(run, MOMENTS[name], text)
    assert code == 0, err
    wanted = datetime.fromisoformat(found).replace(tzinfo=UTC)
    if name.startswith("reserve"):
        (window,) = store.controls().reservations
        assert (window.end if name.endswith("end") else window.start) == wanted
    else:
        assert store.get(1 if name.startswith("edit") else 4).spec.begin_at == wanted


@cases("name", sorted({**MOMENTS, **PAST}))
def test_what_is_no_moment(run: Run, name: str) -> None:
    open_ones = ("90", "1d12h", "2:30:00", "0", "18", "in 2", "1/2", "18:00 19:00")
    none = ("in -2h", "in 4000d", "2026-02-30", "abc", "25:00", "13pm", "18:00 Mars/Phobos", "", " ", "-")
    edges = ("24:00", "18:60", "+", "+x", "2026-13-01", "0001-01-01", "9999-12-31T23:59")
    of_clock_changes = ("29 Mar 02:30 Europe/Berlin", "25 Oct 02:30 Europe/Berlin")
    odd = ("18:00\x1b[31m", "\u202e18:00", "x" * 10_000)
    for text in (*open_ones, *none, *edges, *of_clock_changes, *odd):
        refusal(run, {**MOMENTS, **PAST}[name], text)


def test_a_span_is_read_where_a_start_is_asked_for(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_PROBE", "sim:1")
    assert run("reserve", "add", "--gpus", "1", "--start", "Tue 9-17").code == 0
    (window,) = store.controls().reservations
    assert window.end - window.start == timedelta(hours=8)
    for name in ("submit --begin", "edit --begin", "reserve add --end", *PAST):
        assert "is a span of time" in refusal(run, {**MOMENTS, **PAST}[name], "Tue 9-17")


@cases("name", sorted(PAST))
def test_moments_of_the_past(run: Run, name: str) -> None:
    for text in ("-7d", "-1d12h", "2 hours ago", "1 day and 2 hours ago", "yesterday 18:00", "last monday", "2026-02"):
        assert tried(run, PAST[name], text)[0] == 0, text
    for text in ("in 2h", "+2h", "tomorrow 09:00"):
        assert "not a time of the past" in refusal(run, PAST[name], text)


TOLD = {
    ("submit --begin", "tomorrow 9am"): "job 4: not before Tue 2026-03-03 09:00 UTC",
    ("submit --begin", "18:00"): "job 4: not before 18:00",
    ("submit --time-limit", "1:30"): "job 4: time limit 1m30s",
    ("submit --idle-timeout", "90 minutes"): "job 4: idle timeout 1h30m",
    ("submit --backoff", "1m"): "job 4: backoff 1m",
    ("submit --signal", "90"): "job 4: time limit 9d; signal 1m30s before it",
    ("edit --begin", "Fri 14:00"): "edited job 1: begin Fri 2026-03-06 14:00 UTC",
    ("edit --time-limit", "90m"): "edited job 1: time-limit 1h30m",
    ("edit --time-limit of a running job", "1h30"): "edited job 2: time-limit 1h30m; it ends by 13:29",
    ("edit --idle-timeout", "90m"): "edited job 1: idle-timeout 1h30m",
    ("reserve add --start", "Tue"): "from Tue 2026-03-03 00:00 UTC to Tue 2026-03-03 01:00 UTC, 1h00m",
    ("reserve add --end", "18:00"): "from 12:00 to 18:00, 6h00m",
    ("reserve add --for", "12:30:00"): "from 12:00 to Tue 2026-03-03 00:30 UTC, 12h30m",
}


@cases(("name", "text"), TOLD)
def test_a_command_that_sets_a_time_says_which_it_understood(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    fill(store)
    monkeypatch.setenv("GPUTUI_PROBE", "sim:1")
    found = run(*(word.replace("{}", text) for word in {**DURATIONS, **MOMENTS}[name]))
    assert TOLD[name, text] in found.err.splitlines()[0]
    assert found.err.count("\n") == 1
    assert "20" not in found.out


def test_only_people_are_told_the_times(run: Run, tmp_path: Path) -> None:
    line = ("submit", "--begin", "tomorrow", "busybox")
    for silent in ("--quiet", "--json"):
        assert run(line[0], silent, *line[1:]).err == ""
    assert run(line[0], "--dry-run", *line[1:]).err == "the new job: not before Tue 2026-03-03 00:00 UTC\n"
    path = tmp_path / "job.toml"
    path.write_text('[[job]]\nimage = "busybox"\nbegin = "tomorrow"\n')
    assert run("submit", "-f", str(path)).err == ""
    assert run("submit", "busybox").err == ""


@cases("text", ["30 minutes", "1h 30m", "abc", "in 2h", "0", "4000d", "-5", ""])
def test_forms_job_files_and_settings_read_them_like_the_options(run: Run, text: str, tmp_path: Path) -> None:
    code, err = tried(run, DURATIONS["submit --time-limit"], text)
    told = err.removeprefix("gputui: error: --time-limit: ").strip() if code else ""
    path = tmp_path / "job.toml"
    path.write_text(f'[[job]]\nimage = "busybox"\ntime_limit = "{text}"\n')
    by_file = run("submit", "-f", str(path))
    assert by_file.code == code
    assert told in by_file.err
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[policy]\nhalf_life = "{text}"\n')
    if not code:
        assert load_settings(settings, {}).policy.half_life == job_values.time_span(text, "")
        return
    if text:  # an empty field of a form is an option that is not given
        with pytest.raises(InputError) as caught:
            job_values.time_span(text, "time limit")
        assert told in str(caught.value)
    with pytest.raises(InputError, match=r"above 0|not a duration|out of range"):
        load_settings(settings, {})


def test_the_form_of_a_reservation_reads_them_like_the_command(run: Run) -> None:
    for field, text in (("for", "0"), ("for", "abc"), ("start", "18"), ("until", "1/2")):
        given = {"gpus": "1", "start": "in 1h", field: text}
        with pytest.raises(InputError) as caught:
            reservation.read_reservation(given, "alice", NOW, ())
        name = {"until": "end"}.get(field, field)
        words = (
            "reserve",
            "add",
            "--gpus",
            "1",
            *(() if field == "start" else ("--start", "in 1h")),
            f"--{name}",
            "{}",
        )
        assert str(caught.value.what) in refusal(run, words, text)
