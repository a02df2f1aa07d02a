"""`gputui report`."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gputui.cli import report
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from gputui.domain.telemetry import Efficiency
from gputui.domain.telemetry_series import Tally, TallyRecord
from gputui.engine import telemetry_files
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import NOW, job, running, sample, uuid

USE = Efficiency(3600.0, 0.5, 0.25)


def over(start: float, end: float, gpus: int = 1, code: CauseCode | None = None, **changes: Any) -> Job:
    """Return a job that ran from `start` to `end`, in hours before NOW, submitted half an hour earlier."""
    begin, stop = (NOW - timedelta(hours=hours) for hours in (start, end))
    cause = Cause(code, "words") if code else None
    use = changes.pop("efficiency", None)
    held = tuple(uuid(gpu) for gpu in range(gpus))
    tried = Attempt(1, held, begin, "c", begin, stop, cause=cause, efficiency=use)
    state = JobState.CANCELLED if code is CauseCode.CANCELLED else JobState.FAILED if code else JobState.COMPLETED
    made = job(1, gpus=gpus, age=start * 3600 + 1800, **changes)
    return made.evolve(state=state, attempts=(tried,), started_at=begin, ended_at=stop, cause=cause)


@pytest.fixture
def past(store: KeptStore) -> None:
    put(
        store,
        over(10, 6, efficiency=USE),
        over(5, 4, 2, CauseCode.NON_ZERO_EXIT, tenant="bob", image="torch"),
        over(3, 1, 2, CauseCode.CANCELLED, tenant="bob"),
        running(on=[uuid(3)], tenant="bob"),
    )


@pytest.mark.usefixtures("past")
def test_a_table_of_tenants_marks_unknown_values(run: Run) -> None:
    result = run("report")
    lines = result.out.splitlines()
    assert lines[0].endswith(", by tenant")
    titles = "TENANT JOBS GPU-H BUSY IDLE UNKNOWN FAILED PREEMPTED CANCELLED WAIT P95 KWH"
    assert lines[2].split() == titles.split()
    assert lines[3].split() == ["bob", "3", "6.02", "?", "?", "6.02", "2.00", "0.00", "4.00", "20m00s", "30m00s", "?"]
    assert lines[4].split() == [
        "alice", "1", "4.00", "0.50", "0.25", "3.00", "0.00", "0.00", "0.00", "30m00s", "30m00s", "?",
    ]  # fmt: skip
    assert lines[5].split()[:6] == ["TOTAL", "4", "10.0", "0.50", "0.25", "9.02"]
    assert lines[7] == "Use of the GPUs is not known for 9.02 of 10.0 GPU-hours."
    assert (result.code, result.err) == (0, "")


@pytest.mark.usefixtures("past")
def test_the_edges_of_the_period_cut_attempts(run: Run) -> None:
    told = json.loads(run("report", "--since", "-8h", "--until", "2h ago", "--format", "json").out)
    groups = {each["group"]: each for each in told["groups"]}
    assert (groups["alice"]["gpu_hours"], groups["alice"]["gpu_hours_busy"]) == (2.0, 0.25)
    assert groups["bob"]["gpu_hours_cancelled"] == 2.0
    assert (groups["bob"]["jobs_failed"], groups["bob"]["jobs_cancelled"]) == (1, 0)
    assert (told["total"]["jobs_started"], told["total"]["wait_mean"]) == (2, 1800.0)
    assert told["total"]["energy_kwh"] is told["total"]["cost"] is groups["bob"]["gpu_hours_busy"] is None
    assert told["total"]["gpu_hours_without_energy"] == told["total"]["gpu_hours"]


@pytest.mark.usefixtures("past")
@cases(
    ("by", "groups"),
    [
        ("user", {"none"}),
        ("image", {"busybox", "torch"}),
        ("name", {"train"}),
        ("gpu", {uuid(0), uuid(1), uuid(3)}),
        ("cause", {"completed", "NonZeroExit", "Cancelled", "running"}),
    ],
)
def test_jobs_are_grouped_by_each_key(run: Run, by: str, groups: set[str]) -> None:
    told = json.loads(run("report", "--by", by, "--format", "json").out)
    assert {each["group"] for each in told["groups"]} == groups
    assert sum(each["gpu_hours"] for each in told["groups"]) == pytest.approx(told["total"]["gpu_hours"], abs=1e-5)


@pytest.mark.usefixtures("past")
def test_rates_give_costs(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[report]\ngpu_hour = 2.5\nkwh = 0.3\ncurrency = "EUR"\n')
    result = run("--config", str(config), "report", "--since", "-8h", "--until", "-2h")
    assert result.out.splitlines()[2].split()[-1] == "COST"
    assert result.out.splitlines()[-1] == "COST is in EUR."
    told = json.loads(run("--config", str(config), "report", "--format", "json").out)
    assert told["total"]["cost_gpu_hours"] == pytest.approx(told["total"]["gpu_hours"] * 2.5, abs=1e-3)
    assert told["total"]["cost_energy"] is None
    assert told["currency"] == "EUR"


@pytest.mark.usefixtures("past")
def test_csv_has_a_line_for_each_group(run: Run, store: KeptStore, tmp_path: Path) -> None:
    put(store, over(2, 1, tenant="=1+1"))
    file = tmp_path / "report.csv"
    assert run("report", "--format", "csv", "-o", str(file)).out == ""
    rows = {row["tenant"]: row for row in csv.DictReader(file.read_text().splitlines())}
    assert set(rows) == {"alice", "bob", "'=1+1"}
    assert (rows["alice"]["gpu_hours"], rows["alice"]["energy_kwh"]) == ("4.0", "")


@pytest.mark.usefixtures("past")
def test_what_if_replays_the_jobs_that_started_in_the_period(run: Run) -> None:
    lines = run("report", "--what-if").out.splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("What if: 3 of these jobs"))
    assert [line.split()[0] for line in lines[head + 3 : head + 5]] == ["as-it-was", "plan"]
    told = json.loads(run("report", "--since", "-6h", "--what-if", "--format", "json").out)["what_if"]
    assert (told["jobs"], told["policies"]["plan"]["wait_mean"]) == (2, 0.0)


def test_a_period_that_is_empty_or_unwritable_is_refused(run: Run, tmp_path: Path) -> None:
    assert "the period is empty" in run("report", "--since", "-1d", "--until", "-2d").err
    assert "cannot be written" in run("report", "-o", str(tmp_path / "missing" / "x")).err
    assert "is not a time" in run("report", "--since", "whenever").err


@cases(
    ("since", "until", "hours"), [(None, None, 720), ("-7d", None, 168), ("-7d", "tomorrow", None), (None, "-1d", 720)]
)
def test_the_default_period_is_thirty_days(since: str | None, until: str | None, hours: float | None) -> None:
    if hours is None:
        with pytest.raises(Exception, match="past"):
            report.period(since, until, NOW)
        return
    found = report.period(since, until, NOW)
    assert found.until - found.since == timedelta(hours=hours)


def test_a_period_without_jobs_gives_an_empty_report(run: Run, store: KeptStore) -> None:
    line = run("report").out.splitlines()[-1]
    assert line.split() == ["TOTAL", "0", *["0.00"] * 6, "-", "-", "0.00"]
    assert store.closed


class Elements(HTMLParser):
    """Parser that collects the parts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        if tag not in {"meta", "line", "rect"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"rect", "line"}:
            assert self.open.pop() == tag


@pytest.mark.usefixtures("past")
def test_an_html_page_is_self_contained(run: Run, store: KeptStore, tmp_path: Path) -> None:
    put(store, *(over(2 + number, 1, tenant=f"<script>tenant{number}&") for number in range(300)))
    file = tmp_path / "report.html"
    assert run("report", "--since", "-365d", "--what-if", "--format", "html", "-o", str(file)).code == 0
    page = file.read_text()
    found = Elements(page)
    assert (found.open, found.links, found.tags["script"]) == ([], [], 1)
    assert len(page) < 500_000
    assert not re.search(r"https?:|@import|url\(", page)
    assert "&lt;script&gt;tenant299&amp;" in page
    assert "102 more are not shown" in page
    assert "What if:" in page
    assert (found.tags["table"], found.tags["svg"]) == (4, 1)
    assert page.count('<div class="outcomes">') == 200 + 4 + 3


@pytest.mark.needs("chromium")
@pytest.mark.usefixtures("past")
def test_no_column_of_a_page_is_cut_at_1280_pixels(run: Run, store: KeptStore, tmp_path: Path) -> None:
    """With every column, a long name and large figures."""
    suspended = over(20_000, 1, 64, CauseCode.PREEMPTED, tenant="a-tenant-with-a-long-name-" * 3)
    paused = ((NOW - timedelta(hours=9000), NOW - timedelta(hours=100)),)
    put(store, suspended.with_attempt(suspensions=paused))
    (tmp_path / "config.toml").write_text('[report]\ngpu_hour = 12.5\ncurrency = "EUR"\n')
    page = run("--config", str(tmp_path / "config.toml"), "report", "--since", "-1000d", "--format", "html").out
    assert all(f">{name}</" in page for name in ("OUTCOMES", "UNKNOWN", "SUSPENDED", "COST"))
    measure = "document.title = [...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    file = tmp_path / "report.html"
    file.write_text(page.replace("</body>", f"<script>{measure}</script></body>"))
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--window-size=1280,800", "--dump-dom", file.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    title = re.search("<title>(.*?)</title>", shown)
    assert title is not None
    assert {*title[1].split(",")} == {"0"}


@pytest.mark.usefixtures("past")
def test_a_running_attempt_has_the_use_that_was_measured_so_far(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    before = json.loads(run("--state", str(state), "report", "--by", "cause", "--format", "json").out)["total"]
    tally = Tally(TallyRecord(1, NOW.timestamp() - 60))
    tally.add(sample(3, at=NOW - timedelta(seconds=40), utilization=0.5, power=300.0))
    telemetry_files.write(state, 4, 1, telemetry_files.Measurement(tally, "c1", 0.0).encoded(), durably=False)
    after = json.loads(run("--state", str(state), "report", "--by", "cause", "--format", "json").out)["total"]
    gained = after["gpu_hours_busy"] - before["gpu_hours_busy"]
    assert gained == pytest.approx(10 / 3600, rel=0.01)


@pytest.mark.usefixtures("past")
def test_without_the_library_of_the_chart_the_page_says_how_to_get_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == "pygal" else object())
    monkeypatch.setattr(sys, "prefix", "/home/ann/.local/share/pipx/venvs/gputui")
    result = run("report", "--format", "html")
    sentence = "The chart is left out, because pygal is not installed: pipx inject gputui "
    assert (result.code, result.err.startswith(f"gputui: note: {sentence}")) == (0, True)
    assert sentence in result.out
    assert "<svg" not in result.out
    assert Elements(result.out).tags["table"] == 3


def test_a_report_without_jobs_on_gpus_is_a_valid_page(run: Run, store: KeptStore) -> None:
    assert "Nothing ran in this period." in run("report", "--format", "html").out
    put(store, over(3, 1, 0))
    page = run("report", "--format", "html").out
    assert "No job used a GPU in this period." in page
    assert "<svg" not in page
