"""The score and its terms, and the fair share in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.policy.board import Rules
from gputui.domain.policy.fairshare import Ledger, factor, factors
from gputui.domain.policy.lanes import Ageing, Lane, LaneKey, Waiting
from gputui.domain.policy.machine import Ask
from gputui.domain.policy.order import score_terms
from gputui.domain.settings import PolicySettings
from tests.factories import NOW, job

DAY = 86400.0
WEEK = 7 * DAY


def test_the_terms_are_those_of_the_formula() -> None:
    terms = score_terms(job(1, priority=100, age=1.5 * DAY, nice=20), PolicySettings(), 0.25, DAY / 2, NOW)
    assert (terms.priority_class, terms.age, terms.duration) == (2000, 1500, -500)
    assert (terms.fair_share, terms.nice) == (125, -20)
    assert terms.total == 3105


def test_age_counts_by_the_weights_set_and_up_to_a_cap_where_one_is_set() -> None:
    old = job(1, age=30 * DAY)
    assert score_terms(old, PolicySettings(), 0, 0, NOW).age == 30_000
    assert score_terms(old, PolicySettings(age_cap=3.0), 0, 0, NOW).age == 3000
    halved = PolicySettings(age_weight=500.0, age_unit=timedelta(hours=12), age_cap=2.0)
    assert score_terms(job(1, age=DAY / 4), halved, 0, 0, NOW).age == 250
    assert score_terms(old, halved, 0, 0, NOW).age == 1000


def test_who_used_exactly_its_share_has_a_half() -> None:
    assert factor(0.3, 0.3) == 0.5
    assert factor(0.0, 0.3) == 1.0
    assert factor(0.5, 0.0) == 0.0
    found = factors({"a": 300.0, "b": 100.0}, {"a": 3.0}, ["b"])
    assert found == {"a": 0.5, "b": 0.5}


def test_who_has_not_used_anything_yet_has_a_share_too() -> None:
    found = factors({"a": 100.0}, {}, ["a", "new"])
    assert found == {"a": 0.25, "new": 1.0}


def test_usage_halves_in_a_half_life() -> None:
    ledger = Ledger(WEEK, 0.0)
    ledger.credit("a", 1000.0, at=0.0)
    assert ledger.used(WEEK)["a"] == pytest.approx(500)
    assert ledger.used(3 * WEEK)["a"] == pytest.approx(125)


def test_a_running_job_counts_up_to_now() -> None:
    ledger = Ledger(WEEK, 0.0)
    ledger.begin("a", 2, at=0.0)
    assert ledger.used(10.0)["a"] == pytest.approx(20, rel=1e-3)
    ledger.end("a", 2, at=10.0)
    assert ledger.used(10.0)["a"] == pytest.approx(20, rel=1e-3)
    assert ledger.used(10.0 + WEEK)["a"] == pytest.approx(10, rel=1e-3)


SPANS = st.lists(st.tuples(st.floats(0, 40 * DAY), st.floats(1, 20 * DAY), st.integers(1, 8)), min_size=1, max_size=8)


@given(SPANS)
def test_the_ledger_agrees_with_a_sum_over_minutes(spans: list[tuple[float, float, int]]) -> None:
    now, step = 60 * DAY, 3600.0
    ledger, slow = Ledger(WEEK, 0.0), 0.0
    for start, lasts, gpus in spans:
        ledger.begin("a", gpus, start)
        ledger.end("a", gpus, start + lasts)
        steps = max(1, round(lasts / step))
        width = lasts / steps
        slow += sum(gpus * width * 2 ** (-(now - start - (n + 0.5) * width) / WEEK) for n in range(steps))
    assert ledger.used(now)["a"] == pytest.approx(slow, rel=1e-3)


def test_a_ledger_lives_longer_than_its_floats() -> None:
    ledger = Ledger(WEEK, 0.0)
    ledger.begin("a", 1, at=0.0)
    ledger.end("a", 1, at=2000 * WEEK)
    assert ledger.used(2000 * WEEK)["a"] == pytest.approx(WEEK / 0.6931, rel=1e-3)


ITEMS = st.lists(
    st.builds(
        Waiting,
        st.integers(0, 20 * 86400).map(float),
        st.integers(1, 10**6),
        st.just(60.0),
        st.sampled_from([0.0, 500.0, 1000.0, 2000.0]),
        st.just(50),
        st.sampled_from([0.0, 0.0, 7.0]),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda item: item.id,
)


MOST = st.sampled_from([3000.0, 12_000.0, float("inf")])


@given(ITEMS, st.lists(st.integers(20 * 86400, 40 * 86400), min_size=1, max_size=4), MOST)
def test_a_lane_is_always_in_the_order_of_the_score(items: list[Waiting], moments: list[int], most: float) -> None:
    ageing = Ageing(1000 / DAY, most)
    lane = Lane(LaneKey("a", Ask(1, 1, (1,))), ageing)
    half = len(items) // 2
    for item in items[:half]:
        lane.add(item)
    for moment in sorted(moments):
        lane.settle(float(moment))
        assert lane.items == sorted(lane.items, key=lambda item: ageing.rank(item, 0.0, float(moment)))
    for item in items[half:]:
        lane.add(item)
    last = float(max(moments))
    lane.settle(last)
    assert lane.items == sorted(items, key=lambda item: ageing.rank(item, 0.0, last))


@given(ITEMS, st.lists(st.integers(20 * 86400, 40 * 86400), min_size=2, max_size=5, unique=True), MOST)
def test_a_lane_fed_in_order_stays_in_the_order_of_the_score(
    items: list[Waiting], moments: list[int], most: float
) -> None:
    ageing = Ageing(1000 / DAY, most)
    lane = Lane(LaneKey("a", Ask(1, 1, (1,))), ageing)
    first, *later = (float(moment) for moment in sorted(moments))
    lane.feed(sorted(items, key=lambda item: ageing.rank(item, 0.0, first)), first)
    for moment in (first, *later):
        lane.settle(moment)
        assert lane.items == sorted(items, key=lambda item: ageing.rank(item, 0.0, moment))


def test_a_class_is_worth_a_day_however_long_both_have_waited() -> None:
    rules = Rules.of(PolicySettings())
    for waited in (0.0, 2 * DAY, 20 * DAY):
        low = Waiting(0.0, 1, 60.0, rules.base(50, 0, 60.0), 50)
        high = Waiting(DAY, 2, 60.0, rules.base(100, 0, 60.0), 100)
        now = DAY + waited
        assert rules.ageing.rank(low, 1.0, now) < rules.ageing.rank(high, 0.0, now)
        assert rules.ageing.rank(high, 1.0, now) < rules.ageing.rank(low, 0.0, now)


@given(st.floats(5.51 * DAY, 60 * DAY), st.floats(0, 90 * DAY))
def test_nothing_submitted_much_later_ever_overtakes(later: float, waited: float) -> None:
    rules = Rules.of(PolicySettings())
    least = Waiting(0.0, 1, 4 * DAY, rules.base(0, 0, 4 * DAY), 0)
    most = Waiting(later, 2, 60.0, rules.base(100, 0, 60.0), 100)
    now = later + waited
    assert rules.ageing.rank(least, 0.0, now) < rules.ageing.rank(most, rules.fair_weight, now)


def test_of_two_that_have_waited_alike_the_shorter_goes_first_and_three_days_are_the_most() -> None:
    rules = Rules.of(PolicySettings())
    assert rules.base(50, 0, 0.0) - rules.base(50, 0, DAY) == pytest.approx(1000)
    assert rules.base(50, 0, 3 * DAY) == rules.base(50, 0, 30 * DAY)
    for planned in (0.0, 60.0, DAY, 5 * DAY):
        terms = score_terms(job(1), PolicySettings(), 0.0, planned, NOW)
        assert terms.priority_class + terms.duration == pytest.approx(rules.base(50, 0, planned))
    indifferent = Rules.of(PolicySettings(duration_weight=0.0))
    assert indifferent.base(50, 0, 60.0) == indifferent.base(50, 0, 3 * DAY)


def test_a_high_job_of_a_day_goes_before_any_normal_one_submitted_with_it() -> None:
    rules = Rules.of(PolicySettings())
    high = Waiting(0.0, 1, DAY, rules.base(100, 0, DAY), 100)
    normal = Waiting(0.0, 2, 1.0, rules.base(50, 0, 1.0), 50)
    assert rules.ageing.rank(high, 0.0, 9.0) < rules.ageing.rank(normal, 0.0, 9.0)


def test_weights_are_settings() -> None:
    settings = replace(PolicySettings(), class_weight=10.0, fair_weight=0.0)
    assert score_terms(job(1, priority=50), settings, 1.0, 0, NOW).total == 10
