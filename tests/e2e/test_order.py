"""The order of starts on a real engine, by the engine's clock: urgent jobs, newcomers, ranges and forecasts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.job_spec import JobId
from tests.e2e.simulated import Witness, simulated_site, submit_together, witnessed
from tests.e2e.site import Site, all_over
from tests.machine_load import stretched
from tests.runtime.dockerd import Dockerd

pytestmark = pytest.mark.docker

GATED = "while [ ! -e /out/gate ]; do sleep 0.05; done"
HOUR = 3600.0
AGE_UNIT, CREDIT = 36 * HOUR, 240 * HOUR


@pytest.fixture
def four(tmp_path: Path, engine: Dockerd) -> Iterator[Site]:
    """A server with four simulated GPUs, whose scheduler runs."""
    found = simulated_site(tmp_path / "site", engine)
    found.serve()
    yield found
    found.close()


def test_an_urgent_job_goes_before_all_that_wait_however_long_it_is_planned_to_run(four: Site) -> None:
    wide = {"gpus": 4, "command": ["true"]}
    with witnessed(four) as witness:
        blocker = fill(four, witness)
        [low, day, hours] = submit_together(
            four,
            [
                {**wide, "priority": 0, "time_limit": "15m"},
                {**wide, "priority": 50, "time_limit": "24h"},
                {**wide, "priority": 50, "time_limit": "4h"},
            ],
        )
        [urgent] = submit_together(four, [{**wide, "priority": 100, "time_limit": "72h"}])
        four.until(lambda: four.json("explain", str(urgent))["expected_start_at"] is not None)
        told = {job: four.json("explain", str(job)) for job in (urgent, hours, day, low)}
        four.let_go()
        four.until_state(low, "COMPLETED")
    assert [told[job]["position"] for job in told] == [1, 2, 3, 4]
    assert list(witness.starts) == [blocker, urgent, hours, day, low]
    assert witness.starts[urgent] <= datetime.fromisoformat(told[urgent]["expected_start_at"])


def fill(site: Site, witness: Witness, gpus: int = 4) -> JobId:
    """Return a job that holds `gpus` GPUs until it is released."""
    [blocker] = submit_together(site, [{"gpus": gpus, "time_limit": "1h", "command": ["sh", "-c", GATED]}])
    site.until(lambda: blocker in witness.starts)
    return blocker


def test_a_newcomer_is_not_stuck_behind_a_dump_and_explain_shows_the_numbers(four: Site) -> None:
    job = {"gpus": 1, "time_limit": "1h", "command": ["sleep", "1"]}
    with witnessed(four) as witness:
        dump = submit_together(four, [{**job, "tenant": "ann", "name": f"dump{n}"} for n in range(20)])
        four.until(lambda: len(witness.starts) >= 6)
        before = len(witness.starts)
        asked = datetime.now(UTC)
        [newcomer, late] = submit_together(four, [{**job, "tenant": "ben"}, {**job, "tenant": "cat", "priority": 0}])
        check_explained(four, witness, dump[-1], dump)
        check_explained(four, witness, late, dump)
        four.until(lambda: newcomer in witness.starts)
        four.run("cancel", *map(str, (*dump, late)), check=False)
    assert list(witness.starts).index(newcomer) - before <= 4, "only jobs that were being started go before it"
    assert (witness.starts[newcomer] - asked).total_seconds() < stretched(6)


def check_explained(site: Site, witness: Witness, job: JobId, dump: list[JobId]) -> None:
    """Assert that `explain` shows the numbers of the formula and of the engine's observations."""
    begun = datetime.now(UTC)
    told = site.json("explain", str(job))
    now = datetime.now(UTC)
    shown = site.json("show", str(job))
    waited = (now - datetime.fromisoformat(shown["submitted_at"])).total_seconds()
    used = {"ann": witness.used(dump, now), "ben": 0.0, "cat": 0.0}
    of_its_share = used[shown["tenant"]] / sum(used.values()) * len(used)
    credit = max(0.0, CREDIT * (1 - of_its_share) - 12 * HOUR)
    score, spare = told["score"], (now - begun).total_seconds() + 0.5
    assert told["fair_share"] == pytest.approx(2.0**-of_its_share, abs=0.02)
    assert told["planned_duration"] == HOUR
    assert score["waited"] == pytest.approx(waited, abs=spare)
    assert score["credited"] == pytest.approx(credit, abs=1)
    assert score["total"] == pytest.approx((waited + credit + HOUR) / HOUR + waited / AGE_UNIT, abs=2 * spare / HOUR)


def test_a_range_takes_what_is_free_and_wants_more_only_where_it_may_be_patient(four: Site) -> None:
    ranged = {"gpus": "2-4", "time_limit": "1h", "command": ["true"]}
    with witnessed(four) as witness:
        blocker = fill(four, witness, 2)
        [narrow] = submit_together(four, [ranged])
        four.until_state(narrow, "COMPLETED")
        four.let_go()
        four.until_state(blocker, "COMPLETED")
        [wide] = submit_together(four, [ranged])
        four.until_state(wide, "COMPLETED")
    assert [len(held(four, job)) for job in (narrow, wide)] == [2, 4]


def held(site: Site, job: JobId) -> list[str]:
    """Return the GPUs of the job's first attempt."""
    gpus: list[str] = site.json("show", str(job))["attempts"][0]["gpus"]
    return gpus


@pytest.mark.long
def test_a_patient_range_takes_fewer_gpus_at_the_announced_time(tmp_path: Path, engine: Dockerd) -> None:
    site = simulated_site(tmp_path / "site", engine)
    site.config.write_text('[policy]\npatience = "8s"\n')
    site.serve()
    with witnessed(site) as witness:
        fill(site, witness, 2)
        [ranged] = submit_together(site, [{"gpus": "2-4", "time_limit": "1h", "command": ["sleep", "1"]}])
        asked = datetime.fromisoformat(site.json("show", str(ranged))["submitted_at"])
        site.until(lambda: "wants 4 GPUs, will take 2 from " in site.json("explain", str(ranged))["reason"]["text"])
        told = site.json("explain", str(ranged))
        site.until(lambda: ranged in witness.starts)
        settled = (witness.starts[ranged] - asked).total_seconds()
        assert told["reason"]["text"].partition("; ")[2].startswith("2 free")
        assert 7.5 <= settled <= 12
        assert abs((witness.starts[ranged] - datetime.fromisoformat(told["expected_start_at"])).total_seconds()) < 4
        assert len(held(site, ranged)) == 2
    site.close()


@pytest.mark.long
def test_jobs_start_in_the_order_and_by_the_time_first_predicted(four: Site) -> None:
    def sleeps(seconds: int, **changes: Any) -> dict[str, Any]:
        return {"gpus": 1, "time_limit": f"{seconds + 2}s", "command": ["sleep", str(seconds)], **changes}

    with witnessed(four) as witness:
        fill(four, witness)
        wanted = [sleeps(2 + n % 3, priority=(50, 20, 50, 80)[n % 4], tenant=("ann", "ben")[n % 2]) for n in range(10)]
        jobs = submit_together(four, [*wanted, sleeps(3, gpus=4, priority=60), sleeps(2, gpus=2, priority=40)])
        four.run("edit", "1", "--time-limit", "1h", check=False)
        expected = {job: datetime.fromisoformat(four.json("explain", str(job))["expected_start_at"]) for job in jobs}
        over = datetime.now(UTC)
        four.let_go()
        four.until(lambda: all_over(four.queue.jobs().values()), seconds=90)
    blocked = min(expected.values())
    ahead = {job: (at - blocked).total_seconds() for job, at in expected.items()}
    began = {job: (witness.starts[job] - over).total_seconds() for job in jobs}
    apart = [(one, other) for one, other in combinations(jobs, 2) if abs(ahead[one] - ahead[other]) > 1]
    right = [(ahead[one] < ahead[other]) == (began[one] < began[other]) for one, other in apart]
    assert sum(right) >= 0.95 * len(right), (ahead, began)
    assert all(began[job] <= ahead[job] + 5 for job in jobs), (ahead, began)
