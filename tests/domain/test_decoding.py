"""Types that several threads decode at once for the first time."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from gputui.domain.decoding import convert, decode_json, decode_msgpack

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


def test_values_are_decoded_as_msgspec_does() -> None:
    assert decode_json(b'{"left": 1}', _Pair) == _Pair(1)
    assert decode_json("[1, {}]") == [1, {}]
    assert decode_msgpack(msgspec.msgpack.encode({"left": 2}), _Pair) == _Pair(2)
    assert convert({"left": 3, "right": "x"}, _Pair) == _Pair(3, "x")
    assert convert(_Pair(4), _Pair, from_attributes=True) == _Pair(4)


@pytest.mark.parametrize("text", [b"{", b'{"left": "1"}'])
def test_damaged_text_raises_errors_of_msgspec(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_json(text, _Pair)
