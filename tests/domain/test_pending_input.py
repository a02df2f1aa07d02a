"""Input to a command that reads slowly: sent in pieces, ended after the last, dropped when nobody reads."""

from __future__ import annotations

import pytest

from gputui.domain.frames import PIECE, PendingInput


def test_input_is_sent_in_order_and_ends_after_its_last_byte() -> None:
    sent: list[bytes | None] = []
    pending = PendingInput(sent.append, lambda: sent.append(None))
    data = bytes(range(256)) * 20
    pending.put(data[:5000])
    pending.put(data[5000:])
    pending.put_end()
    assert not sent
    while pending.is_waiting:
        pending.send_piece()
    assert sent == [data[:PIECE], data[PIECE:], None]


def test_an_end_without_input_is_passed_on_at_once() -> None:
    ends: list[bool] = []
    PendingInput(lambda _: None, lambda: ends.append(True)).put_end()
    assert ends == [True]


def test_a_full_buffer_takes_more_once_a_piece_is_sent() -> None:
    pending = PendingInput(lambda _: None, lambda: None)
    while not pending.is_full:
        pending.put(b"x" * PIECE)
    pending.send_piece()
    assert not pending.is_full


def test_input_that_nobody_reads_is_dropped_and_reported() -> None:
    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    pending = PendingInput(refuse, lambda: None)
    pending.put(b"x" * 2 * PIECE)
    with pytest.raises(BrokenPipeError):
        pending.send_piece()
    assert not pending.is_waiting
