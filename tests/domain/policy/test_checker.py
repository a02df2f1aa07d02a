"""Plans of whole servers, each checked by brute force."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.policy.plan import plan
from gputui.domain.state import PendingReason
from tests.domain.policy.cases import Case, cases
from tests.domain.policy.checker import check
from tests.factories import NOW
from tests.lane import IS_LONG, examples

SLOW = settings(max_examples=examples(400), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.hypothesis
def test_plans_of_random_servers_keep_all_rules() -> None:
    seen: Counter[PendingReason] = Counter()

    @given(cases())
    @SLOW
    def each(case: Case) -> None:
        seen.update(check(case.snapshot, case.settings, NOW, plan(case.snapshot, case.settings, NOW)))

    each()
    rare = set() if IS_LONG else {PendingReason.RESERVATION}
    assert seen.keys() >= set(PendingReason) - rare, "a kind of waiting that no case had"


@given(cases(), st.randoms(use_true_random=False))
@settings(SLOW, max_examples=examples(60))
def test_the_order_of_the_listing_does_not_change_the_plan(case: Case, random: object) -> None:
    jobs = list(case.snapshot.jobs)
    random.shuffle(jobs)  # type: ignore[attr-defined]
    found = plan(case.snapshot, case.settings, NOW)
    assert plan(case.snapshot, case.settings, NOW) == found
    assert plan(replace(case.snapshot, jobs=tuple(jobs)), case.settings, NOW) == found
