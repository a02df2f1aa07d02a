"""The language of filters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.filter import FIELDS, MAX_LENGTH, FilterSubject, parse_filter, searched_text
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, shared_id
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.tui.present.job import state_words
from tests.cases import cases
from tests.factories import NOW, array, job, running, uuid

WAITS = Reason(PendingReason.RESOURCES, "needs 4 GPUs: 1 is free")
WAITING = job(12, gpus=(2, 4), name="bert-large", tenant="alice", priority=80, age=3 * 3600, image="lab/torch:2.1")
RUNS = running(13, on=[uuid(0), uuid(1)], name="vit", tenant="bob", time_limit=timedelta(hours=4))
FAILED = running(14, on=[uuid(2)], name="gpt", tenant="carol").evolve(
    state=JobState.FAILED, ended_at=NOW + timedelta(hours=2), exit_code=3
)
LABELLED = job(15, options=ContainerOptions(labels=(("project", "x"),)), command=("python", "train.py"), held=True)
ELEMENT = job(16, spec=None, name="sweep", array=ArrayRef(16, 3))
JOBS = (WAITING, RUNS, FAILED, LABELLED, ELEMENT)


def seen(each: Job) -> FilterSubject:
    reason = WAITS if each is WAITING else None
    return FilterSubject(each, NOW, reason, searched_text(each, reason))


def ids(text: str) -> list[int]:
    chosen = parse_filter(text)
    return [each.id for each in JOBS if chosen.matches(seen(each))]


@cases(
    ("text", "expected"),
    [
        ("", [12, 13, 14, 15, 16]),
        ("state:pd", [12, 15, 16]),
        ("state:R,failed", [13, 14]),
        ("state!=pd", [13, 14]),
        ("-state:pd", [13, 14]),
        ("tenant:alice,bob", [12, 13, 15, 16]),
        ("tenant:al*", [12, 15, 16]),
        ("tenant:al", []),
        ("name~^b.*large$", [12]),
        ("name!~bert", [13, 14, 15, 16]),
        ("image~torch", [12]),
        ("command~train.py", [15]),
        ("gpus>=4", [12]),
        ("gpus=2", [13]),
        ("gpus:1-2", [13, 14]),
        ("id:12,14-15", [12, 14, 15]),
        ("priority>50", [12]),
        ("exit!=0", [14]),
        ("exit=3", [14]),
        ("is:held", [15]),
        ("is:held,failed", [14, 15]),
        ("is:array", [16]),
        ("array:16", [16]),
        ("-is:live", [14]),
        ("label:project", [15]),
        ("label:project=x", [15]),
        ("label:project=y", []),
        ("reason:resources", [12]),
        ("reason~free", [12]),
        ("wait>2h", [12]),
        ("wait<=1h", [15, 16]),
        ("time>1h", [14]),
        ("limit<=4h", [13]),
        ("left<=4h", [13]),
        ("left<3h", []),
        ("age>2h", [12]),
        ("gpu~00000001", [13]),
        ("STATE:PD Tenant:ALICE gpus>=4 name~BERT", [12]),
        ("bert", [12]),
        ("#13", [13]),
        ("lab/torch:2.1", [12]),
        ('"1 is free"', [12]),
        ('-"1 is free" state:pd', [15, 16]),
        ('"name~bert"', []),
        ("bert vit", []),
        ('"" bert', [12]),
        ("reason!~free", [13, 14, 15, 16]),
        ("reason!=resources", [13, 14, 15, 16]),
    ],
)
def test_a_filter_shows_matching_jobs(text: str, expected: list[int]) -> None:
    assert ids(text) == expected


def test_jobs_by_server_and_idle_gpus() -> None:
    # jobs of several servers are filtered by server
    there = [job(shared_id(number, f"gpu{number}", 7)) for number in (1, 2, 12)]
    for text, expected in (("server:gpu1", [0]), ("server=gpu1,gpu12", [0, 2]), ("-server~gpu1", [1])):
        chosen = parse_filter(text)
        assert [place for place, each in enumerate(there) if chosen.matches(FilterSubject(each, NOW))] == expected
    # jobs that leave GPUs idle
    busy, idle = FilterSubject(RUNS, NOW), FilterSubject(RUNS, NOW, leaves_idle=True)
    for text, shown in (("is:idle", (False, True)), ("-is:idle", (True, False)), ("is:idle,failed", (False, True))):
        assert (parse_filter(text).matches(busy), parse_filter(text).matches(idle)) == shown


@cases(
    ("text", "what"),
    [
        ("colour:red", "no field 'colour'"),
        ("gpus>=", "gpus>= needs a value"),
        ("name:a gpus>=many", "in gpus>=many: 'many' is not a number"),
        ("pri>50", "no field 'pri'.*do you mean priority"),
        ("nme:a", "no field 'nme'.*do you mean name"),
        ("gpus~4", "not compared with ~"),
        ("name>a", "not compared with >"),
        ("name~[", "not a pattern"),
        ("name~[[", "not a pattern"),
        ("state:sleeping", "'sleeping' is not one of its values"),
        ("reason:because", "'because' is not one"),
        ("is:red", "'red' is not one"),
        ("is>held", "is> is not a comparison .as in is:held"),
        ("reason>resources", "not compared with >"),
        ("label~x", "labels are not compared with ~"),
        ("wait>soon", "'soon' is not a duration"),
        ("x" * (MAX_LENGTH + 1), "longer than"),
    ],
)
def test_invalid_filters_are_refused_with_a_sentence(text: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        parse_filter(text, where="--filter")
    assert re.search(what, f"{error.value.what} ({error.value.hint})")
    assert error.value.where == "--filter"


STATE_WORDS = {
    JobState.PENDING: ("pending", "PD", "waiting"),
    JobState.CONFIGURING: ("configuring", "cf", "starting"),
    JobState.RUNNING: ("running", "r", "RUNNING"),
    JobState.COMPLETING: ("completing", "cg", "ending"),
    JobState.COMPLETED: ("completed", "cd"),
    JobState.FAILED: ("failed", "f"),
    JobState.CANCELLED: ("cancelled", "ca", "canceled"),
    JobState.TIMEOUT: ("timeout", "to", '"timed out"', "timed-out"),
    JobState.OUT_OF_MEMORY: ("out_of_memory", "oom", '"no memory"', "no-memory"),
    JobState.PREEMPTED: ("preempted", "pr"),
}


@cases("state", JobState)
def test_each_word_for_a_state_works_with_is(state: JobState) -> None:
    found = FilterSubject(RUNS.evolve(state=state), NOW)
    ended = FilterSubject(
        RUNS.evolve(state=JobState.RUNNING if state is not JobState.RUNNING else JobState.FAILED), NOW
    )
    for word in STATE_WORDS[state]:
        assert parse_filter(f"is:{word}").matches(found), word
        assert not parse_filter(f"is:{word}").matches(ended), word


@cases("each", [RUNS, RUNS.evolve(suspended=True), LABELLED, WAITING, FAILED])
def test_the_words_that_a_row_shows_find_it(each: Job) -> None:
    assert parse_filter(f'is:"{state_words(each)}"').matches(FilterSubject(each, NOW))


def test_words_of_filters() -> None:
    # a refused state names all valid words
    with pytest.raises(InputError) as error:
        parse_filter("is:sleeping")
    hint = str(error.value.hint)
    for word in ("running", "waiting", "held", "starting", "ended", "timeout", "out_of_memory", "pending"):
        assert re.search(rf"\b{word}\b", hint), word
    # a request for all GPUs exceeds any number
    everything = job(1, spec=WAITING.spec).evolve(spec=job(1).spec)
    assert not parse_filter("gpus>=8").matches(seen(everything))
    asked = GpuRequest(1, 1, everything=True)
    wants_all = job(2).evolve(spec=type(WAITING.spec)(image="x", gpus=asked))
    assert parse_filter("gpus>=8").matches(seen(wants_all))
    # each example is a filter
    for name, field in FIELDS.items():
        assert parse_filter(field.example).fields == {name}


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_an_input_error(text: str) -> None:
    try:
        chosen = parse_filter(text)
    except InputError:
        return
    for each in JOBS:
        chosen.matches(seen(each))


@given(st.lists(st.sampled_from(["state:pd", "bert", "-is:held", "gpus>=2", "name~t"]), max_size=4))
def test_a_further_word_never_shows_more_jobs(words: list[str]) -> None:
    shown = set(ids(" ".join(words)))
    assert all(shown <= set(ids(" ".join(words[:length]))) for length in range(len(words)))


class TestEntries:
    """Ids of the waiting elements of an array, which are one entry."""

    @cases(
        ("text", "indices"),
        [
            ("id:8", [1]),
            ("id:1-8", [0, 1]),
            ("-id:8", [0, *range(2, 20)]),
            ("12_7", []),
            ("7_1", [1, *range(10, 20)]),
            ("-7_1", [0, *range(2, 10)]),
            ("#9 sweep", [2]),
            ('"#9 #7_2 sweep"', [2]),
            ("sweep", range(20)),
            ("-sweep", []),
            ("vit", []),
            ("array:7 id>24", [18, 19]),
            ("is:array state:pd", range(20)),
            ("state:r", []),
        ],
    )
    def test_an_entry_is_cut_to_its_matching_elements(self, text: str, indices: Iterable[int]) -> None:
        found = parse_filter(text).part(seen(array(range(20), name="sweep")))
        assert list(found.indices if found else ()) == list(indices)

    @given(st.lists(st.sampled_from(["id:8", "-id>9", "1", "#8", "-7_2", "sweep", "_", "pd", "vit 1"]), max_size=3))
    def test_an_entry_matches_as_its_single_elements_do(self, words: list[str]) -> None:
        chosen, entry = parse_filter(" ".join(words)), array([0, 1, 5, *range(10, 20)], name="sweep 1")
        found = chosen.part(seen(entry))
        assert list(found.ids if found else ()) == [
            job_id for job_id in entry.ids if chosen.matches(seen(entry.element(job_id)))
        ]

    def test_an_entry_that_matches_completely_is_returned_itself(self) -> None:
        entry = array(range(20), name="sweep")
        assert parse_filter("sweep").part(seen(entry)) is entry
