"""A change of a job's begin ends the pause before its retry; other changes leave it."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gputui.domain.action import Edit
from tests.cases import cases
from tests.factories import NOW, job

LATER = NOW + timedelta(hours=3)


def test_an_edit_of_the_begin_replaces_the_pause_before_a_retry() -> None:
    pausing = job(not_before=NOW + timedelta(minutes=5))
    edited = Edit(spec={"begin_at": LATER}).on(pausing, NOW)
    assert (edited.not_before, edited.spec.begin_at) == (None, LATER)


def test_an_edit_of_the_comment_keeps_the_pause_before_a_retry() -> None:
    pausing = job(not_before=NOW + timedelta(minutes=5))
    assert Edit(spec={"comment": "after the fix"}).on(pausing, NOW).not_before == pausing.not_before


@cases("part", ["gpus", "options"])
def test_parts_of_a_spec_are_edited_beside_it(part: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"{part} are not edited within the spec"):
        Edit(spec={part: {}}).typed()
