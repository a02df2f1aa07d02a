"""Parameter sweeps: values, combinations, and texts with values in braces."""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain import sweep
from gputui.domain.errors import InputError
from gputui.domain.job import ArrayRef, element_spec, spec_at, sweep_values
from tests.cases import cases
from tests.factories import array, job, spec

VALUES = {"lr": "1e-3", "seed": "4", "index": "14"}


def all_values(text: str) -> list[str]:
    """Return the values of one name."""
    return [sweep.values_at((("x", text),), index)["x"] for index in range(sweep.size((("x", text),)))]


@cases(
    ("text", "values"),
    [
        ("1e-3,1e-4", ["1e-3", "1e-4"]),
        ("0-3", ["0", "1", "2", "3"]),
        ("0-10:5", ["0", "5", "10"]),
        ("08-11", ["08", "09", "10", "11"]),
        ("0-1,7, b ", ["0", "1", "7", "b"]),
        ('"a,b",c,"0-9","say ""x"""', ["a,b", "c", "0-9", 'say "x"']),
        ('""', [""]),
        ("2026-01-05", ["2026-01-05"]),
        ("adam-w", ["adam-w"]),
    ],
)
def test_values_of_a_parameter_are_read(text: str, values: list[str]) -> None:
    assert all_values(text) == values


@cases("text", ["", " ", "a,,b", "a,", "9-0", "0-9:0", "0.1-0.5:0.1", "0-1:0.5", '"a', 'a"b', '"a"b'])
def test_invalid_values_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        sweep.check((("x", text),), 100)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), min_size=1, max_size=6))
def test_quoted_values_are_read_back(values: list[str]) -> None:
    assert all_values(sweep.quoted_list(values)) == values
    assert next(csv.reader(io.StringIO(sweep.quoted_list(values)))) == values


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_combination_is_one_element(counts: list[int]) -> None:
    pairs = tuple((f"v{place}", f"0-{count - 1}") for place, count in enumerate(counts))
    found = [tuple(sweep.values_at(pairs, index).values()) for index in range(sweep.size(pairs))]
    assert found == list(itertools.product(*(map(str, range(count)) for count in counts)))
    with pytest.raises(IndexError):
        sweep.values_at(pairs, sweep.size(pairs))


@cases(
    "pairs",
    [
        (("index", "0-1"),),
        (("a-b", "0-1"),),
        (("lr", "0-1"), ("LR", "0-1")),
        (("x", "0-999"), ("y", "0-999")),
        (("x", ",".join("abcdefgh" for _ in range(3000))),),
    ],
)
def test_invalid_sweeps_are_refused(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InputError):
        sweep.check(pairs, 100_000)


@cases(
    ("text", "filled"),
    [
        ("--lr={lr}/{seed}:{index}", "--lr=1e-3/4:14"),
        ('{"lr": {lr}, "more": {"b": 1}}', '{"lr": 1e-3, "more": {"b": 1}}'),
        ("awk '{print $1}' ${HOME} ${lr} {} {a b}", "awk '{print $1}' ${HOME} ${lr} {} {a b}"),
        ("{{lr}} {{print $1}} ${{HOME}} {{}}", "{lr} {print $1} ${HOME} {}"),
        ("no braces", "no braces"),
    ],
)
def test_texts_are_filled_with_values(text: str, filled: str) -> None:
    assert sweep.filled(text, VALUES) == filled
    sweep.check_text(text, (("lr", "1e-3"), ("seed", "4")))


def test_elements_of_a_sweep() -> None:
    # an unknown name is refused
    with pytest.raises(InputError, match=r"'\{epoch\}' is not a name of the sweep .*lr and index"):
        sweep.check_text("--epochs {epoch}", (("lr", "0-1"),))
    # an element has its values and an entry the text as written
    pairs = (("lr", "1e-3,1e-4"), ("seed", "0-9"))
    entry = array(range(20), sweep=pairs, name="train", command=("t", "{lr}", "{index}"))
    one = entry.element(entry.id + 14)
    assert (entry.name, one.name) == ("train", "train lr=1e-4 seed=4")
    assert (dict(sweep_values(entry)), sweep_values(one)) == ({}, {"lr": "1e-4", "seed": "4"})
    found = element_spec(one)
    assert (found.command, found.sweep) == (("t", "1e-4", "14"), ())
    assert found.options.env == (("GPUTUI_SWEEP_LR", "1e-4"), ("GPUTUI_SWEEP_SEED", "4"))
    assert element_spec(entry) is entry.spec
    assert spec_at(spec(), 3) == spec()
    # an index that the sweep lacks is shown as written
    lost = job(sweep=(("s", "a,b"),), name="x", array=ArrayRef(1, 7))
    assert (lost.name, dict(sweep_values(lost)), element_spec(lost)) == ("x", {}, lost.spec)
    # a name with values is not followed by them
    assert sweep.shown_name("run-{s}", (("s", "a,b"),), 1) == "run-b"
