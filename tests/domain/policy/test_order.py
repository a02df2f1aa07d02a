"""Levels and scores, the fair share in them, and the lanes of jobs alike."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputui.domain.job_spec import whole_class
from gputui.domain.policy.cluster_state import UsageLedger, fair_share_factor, usage_ratio, usage_ratios
from gputui.domain.policy.lanes import (
    Lane,
    LaneKey,
    Waiting,
    credit,
    is_top,
    lane_of,
    level,
    score,
    score_terms,
    with_item,
    without_item,
)
from gputui.domain.policy.placement import Ask
from gputui.domain.settings import PolicySettings

DAY = 86400.0
WEEK = 7 * DAY


def test_the_score_is_the_expansion_factor_and_the_age() -> None:
    policy = PolicySettings(age_unit=timedelta(days=2), newcomer_credit=timedelta(days=10))
    assert score(1.5 * DAY, DAY / 2, 0.0, policy) == 4 + 0.75
    assert score(0.0, DAY, 13 * DAY, policy) == 2
    assert score(0.0, DAY, 11 * DAY, policy) == 1
    assert [credit(used, policy) for used in (0.0, 0.75, 1.0, 9.0)] == [10 * DAY, 2.5 * DAY, 0, 0]
    terms = score_terms(level(60, 0), 1.5 * DAY, DAY / 8, 0.8, policy)
    assert (terms.level, terms.age) == (60, 0.75)
    assert (terms.credited, terms.expansion) == pytest.approx((0.5 * DAY, 17))
    assert terms.total == pytest.approx(17 + 0.75)
    assert not terms.is_promoted


@given(st.lists(st.floats(0, 90 * DAY), min_size=2, max_size=9), st.floats(1, 30 * DAY), st.floats(0, 9))
def test_the_score_never_falls_while_a_job_waits(waits: list[float], planned: float, used: float) -> None:
    policy = PolicySettings()
    found = [score(waited, planned, credit(used, policy), policy) for waited in sorted(waits)]
    assert found == sorted(found)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(-20_000, 20_000), st.integers(-20_000, 20_000))
@example(one=25, other=26, nice=0, less=10_000)  # the least level of a class beside the top of the one below
def test_priority_goes_before_nice_and_promotion_before_both(one: int, other: int, nice: int, less: int) -> None:
    if one < other:
        assert level(one, nice) < level(other, less)
    if one == other and 0 <= nice < less <= 10_000:
        assert level(one, nice) > level(other, less)
    assert level(one, min(0, nice)) == one
    top = level(one, nice, promoted=True)
    assert (top > level(other, less)) == (whole_class(one) >= whole_class(other))
    assert is_top(top)
    assert not is_top(level(one, nice))


def test_usage_of_a_tenant() -> None:
    # exact use of a share gives a factor of one half
    assert usage_ratio(0.3, 0.3) == 1.0
    assert fair_share_factor(usage_ratio(0.3, 0.3)) == 0.5
    assert fair_share_factor(usage_ratio(0.0, 0.3)) == 1.0
    assert fair_share_factor(usage_ratio(0.5, 0.0)) == 0.0
    assert usage_ratios({"a": 300.0, "b": 100.0}, {"a": 3.0}, ["b"]) == {"a": 1.0, "b": 1.0}
    # a tenant without usage has a share too
    assert usage_ratios({"a": 100.0}, {}, ["a", "new"]) == {"a": 2.0, "new": 0.0}
    assert usage_ratios({}, {}, ["a"]) == {"a": 0.0}
    # usage halves in a half life
    ledger = UsageLedger(WEEK, 0.0)
    ledger.credit("a", 1000.0, at=0.0)
    assert ledger.used(WEEK)["a"] == pytest.approx(500)
    assert ledger.used(3 * WEEK)["a"] == pytest.approx(125)
    # a running job counts up to now
    ledger = UsageLedger(WEEK, 0.0)
    ledger.begin("a", 2, at=0.0)
    assert ledger.used(10.0)["a"] == pytest.approx(20, rel=1e-3)
    ledger.end("a", 2, at=10.0)
    assert ledger.used(10.0)["a"] == pytest.approx(20, rel=1e-3)
    assert ledger.used(10.0 + WEEK)["a"] == pytest.approx(10, rel=1e-3)


SPANS = st.lists(st.tuples(st.floats(0, 40 * DAY), st.floats(1, 20 * DAY), st.integers(1, 8)), min_size=1, max_size=8)


@given(SPANS)
def test_the_ledger_agrees_with_a_sum_over_minutes(spans: list[tuple[float, float, int]]) -> None:
    now, step = 60 * DAY, 3600.0
    ledger, slow = UsageLedger(WEEK, 0.0), 0.0
    for start, lasts, gpus in spans:
        ledger.begin("a", gpus, start)
        ledger.end("a", gpus, start + lasts)
        steps = max(1, round(lasts / step))
        width = lasts / steps
        slow += sum(gpus * width * 2 ** (-(now - start - (n + 0.5) * width) / WEEK) for n in range(steps))
    assert ledger.used(now)["a"] == pytest.approx(slow, rel=1e-3)


def test_a_ledger_stays_exact_for_thousands_of_half_lives() -> None:
    ledger = UsageLedger(WEEK, 0.0)
    ledger.begin("a", 1, at=0.0)
    ledger.end("a", 1, at=2000 * WEEK)
    assert ledger.used(2000 * WEEK)["a"] == pytest.approx(WEEK / 0.6931, rel=1e-3)


RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=12)


@given(RUNS, st.data())
def test_a_lane_stays_in_the_order_in_which_its_jobs_became_eligible(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    """However it is filled, and whichever of its jobs are taken; and a change makes a lane, and leaves the last."""
    items, job_id = [], 1
    for since, count in runs:
        items.append(Waiting(float(since), job_id, count))
        job_id += count
    coming = data.draw(st.permutations(items))
    full = lane_of(LaneKey("a", Ask(1, 1, (1,))), [coming[0]])
    for item in coming[1:]:
        before = singles(full)
        last, full = full, with_item(full, item)
        assert singles(last) == before
    lane: Lane | None = full
    wanted = [one for item in sorted(items) for one in parts(item)]
    assert singles(lane) == wanted
    while lane is not None:
        place = data.draw(st.sampled_from([0, 0, len(wanted) // 2, len(wanted) - 1]))
        before, wanted_id = list(wanted), wanted[place][1]
        del wanted[place]
        other, lane = lane, without_item(lane, item_of(lane, wanted_id))
        assert singles(other) == before
        assert singles(lane) == wanted


def singles(lane: Lane | None) -> list[tuple[float, int]]:
    return [one for item in lane.waiting for one in parts(item)] if lane else []


def parts(item: Waiting) -> list[tuple[float, int]]:
    return [(item.since, job_id) for job_id in range(item.id, item.id + item.count)]


def item_of(lane: Lane, job_id: int) -> Waiting:
    """The jobs of an item from that one on."""
    [item] = (each for each in lane.waiting if each.id <= job_id < each.id + each.count)
    return Waiting(item.since, job_id, item.id + item.count - job_id)
