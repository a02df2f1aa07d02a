"""Types that several threads decode at once for the first time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from gputui.domain.decoding import DEEPEST, convert, decode_json, decode_msgpack, json_decoder
from tests.cases import cases

_FIRST_DECODE = """
import sys, threading
from msgspec import defstruct
from gputui.domain.decoding import convert, decode_json

sys.setswitchinterval(1e-6)


def decode_fresh_type():
    inner = defstruct("Inner", [(f"a{number}", int, 0) for number in range(30)])
    outer = defstruct("Outer", [("first", inner), ("all", list[inner])])
    together, found = threading.Barrier(4), []

    def decode(number):
        together.wait()
        if number % 2:
            found.append(decode_json(b'{"first": {"a0": 1}, "all": [{"a29": 4}]}', outer))
        else:
            found.append(convert({"first": {"a0": 1}, "all": [{"a29": 4}]}, outer))

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(each.first.a0, each.all[0].a29) for each in found]


assert all(decode_fresh_type() == [(1, 4)] * 4 for _ in range(200))
"""


class _Pair(msgspec.Struct):
    left: int
    right: str = ""


def test_threads_that_decode_a_type_first_do_not_crash() -> None:
    """Without the lock one of twenty types is enough to end the process by a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", _FIRST_DECODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_values_are_decoded() -> None:
    # values are decoded as msgspec does
    assert decode_json(b'{"left": 1}', _Pair) == _Pair(1)
    assert decode_json("[1, {}]") == [1, {}]
    assert decode_msgpack(msgspec.msgpack.encode({"left": 2}), _Pair) == _Pair(2)
    assert convert({"left": 3, "right": "x"}, _Pair) == _Pair(3, "x")
    assert convert(_Pair(4), _Pair, from_attributes=True) == _Pair(4)
    # a deep value below an unknown key is refused
    with pytest.raises(msgspec.DecodeError, match="it is nested too deeply"):
        decode_json(b'{"unknown": ' + DEEP + b"]" * len(DEEP) + b"}", Struct)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(msgspec.ValidationError):
        convert({"a": deep}, dict[str, dict[str, int]])


@cases("text", [b"{", b'{"left": "1"}'])
def test_damaged_text_raises_errors_of_msgspec(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_json(text, _Pair)


DEEP = b"[" * 100_000
"""More levels than any Python takes: 3.13 takes ten times as many as 3.11."""


@cases("data", [DEEP, DEEP + b"]" * len(DEEP), b'{"a":' * len(DEEP), b'"\xff"', b'{"a\xff":1}', b"\xff" * 9])
def test_every_error_is_of_one_family(data: bytes) -> None:
    for kind in (Any, dict[str, Any], list[int]):
        with pytest.raises(msgspec.DecodeError):
            decode_json(data, kind)
        with pytest.raises(msgspec.DecodeError):
            json_decoder(kind).decode(data)
        with pytest.raises(msgspec.DecodeError):
            json_decoder(kind).decode_lines(b"{}\n" + data)


@cases("data", [b"\x91" * len(DEEP) + b"\xc0", b"\xa2\xff\xff", b"\xdd\xff\xff\xff\xff"])
def test_every_error_of_messagepack_is_of_one_family(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_msgpack(data, Any)


@cases("text", ['"[[["', r'"\"[{\\"', r'"\\\"}"', '"]]"'])
def test_levels_are_counted_outside_of_texts(text: str) -> None:
    for levels, is_refused in ((DEEPEST, False), (DEEPEST + 1, True)):
        data = "[" * levels + text + "]" * levels
        if is_refused:
            with pytest.raises(msgspec.DecodeError, match="nested"):
                decode_json(data)
        else:
            assert decode_json(data)
    wide = "[" + ",".join([f"[{text}]"] * 500) + "]"
    assert len(decode_json(wide)) == 500
