"""Answers of the tools for agents: bounded, and without secrets."""

from __future__ import annotations

import json

from gputui.mcp import LONGEST_LINE, LONGEST_TEXT, MOST_CHARACTERS, encoded, ids_row, log_end
from tests.cases import cases

ENV = (("API_KEY", "s3cr3t-value"), ("MODEL", "llama"), ("PIN_TOKEN", "1"))


def test_texts_are_masked_cleaned_and_cut() -> None:
    answer = {"lines": ["a s3cr3t-value b", "llama 1"], "deep": {"more": ["https://me:pass@host", "api_key=abcdefg"]}}
    told = json.loads(encoded(answer, ENV))
    assert told["lines"] == ["a *** b", "llama 1"]
    assert told["deep"]["more"] == ["https://me:***@host", "api_key=***"]
    told = json.loads(encoded({"a": "red \x1b[31mtext\nnext\u202e"}))
    assert told["a"] == "red text\nnext"
    told = json.loads(encoded({"command": ["y" * 5000]}))
    assert told["command"] == ["y" * LONGEST_TEXT + "… (5000 characters)"]
    assert "cut" in json.loads(encoded({"id": 3, "spec": {str(number): "z" * 1000 for number in range(100)}}))
    assert ids_row([4, 5]) == {"ids": [4, 5]}
    many = ids_row(list(range(10, 1010)))
    assert (len(many["ids"]), many["count"], many["last"]) == (20, 1000, 1009)


@cases(("name", "kept"), [("jobs", 0), ("lines", 1999)])
def test_a_long_list_is_cut_where_it_matters_least_and_says_so(name: str, kept: int) -> None:
    text = encoded({name: [{"id": number, "name": "x" * 40} for number in range(2000)], "next": "7"})
    told = json.loads(text)
    assert len(text) <= MOST_CHARACTERS
    assert told["next"] == "7"
    assert told["cut"].endswith(f"{len(told[name])} are shown")
    assert kept in [each["id"] for each in told[name]]


def test_lines_of_a_log_are_bounded_and_the_first_error_is_told() -> None:
    data = b"".join(b"step %d\n" % number for number in range(500))
    data += b"torch.OutOfMemoryError: CUDA out of memory\n" + b"closing\n" * 99 + b"RuntimeError: later\n"
    told = log_end(data, 3)
    assert told["lines"] == ["closing", "closing", "RuntimeError: later"]
    assert told["first_error"]["lines_before_end"] == 101
    assert told["first_error"]["kind"] == "out of memory"
    assert log_end(b"", 5) == {"lines": []}
    assert log_end(b"a\nb\n", 0) == {"lines": []}
    told = log_end(b"x" * 100_000 + b"\n10%\r50%\r100%\n\xff\n", 9)
    assert [len(line) for line in told["lines"]] == [LONGEST_LINE, 4, 1]
    assert told["lines"][1] == "100%"
