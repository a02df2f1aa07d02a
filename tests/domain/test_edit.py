"""A change of a job's begin ends the pause before its retry; other changes leave it."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gputui.domain.action import Edit
from tests.cases import cases
from tests.factories import NOW, job

LATER = NOW + timedelta(hours=3)


def test_the_pause_before_a_retry() -> None:
    # an edit of the begin replaces the pause before a retry
    pausing = job(not_before=NOW + timedelta(minutes=5))
    edited = Edit(spec={"begin_at": LATER}).on(pausing, NOW)
    assert (edited.not_before, edited.spec.begin_at) == (None, LATER)
    # an edit of the comment keeps the pause before a retry
    assert Edit(spec={"comment": "after the fix"}).on(pausing, NOW).not_before == pausing.not_before


@cases("part", ["gpus", "options"])
def test_parts_of_a_spec_are_edited_beside_it(part: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"{part} are not edited within the spec"):
        Edit(spec={part: {}}).typed()
