"""Input to a command that reads slowly: sent in pieces, ended after the last, dropped when nobody reads."""

from __future__ import annotations

import pytest

from gputui.domain.frames import PIECE, PendingInput


def test_pending_input() -> None:
    # input is sent in order and ends after its last byte
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
    # an end without input is passed on at once
    ends: list[bool] = []
    PendingInput(lambda _: None, lambda: ends.append(True)).put_end()
    assert ends == [True]

    # input that nobody reads is dropped and reported
    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    pending = PendingInput(refuse, lambda: None)
    pending.put(b"x" * 2 * PIECE)
    with pytest.raises(BrokenPipeError):
        pending.send_piece()
    assert not pending.is_waiting
    # a full buffer takes more once a piece is sent
    pending = PendingInput(lambda _: None, lambda: None)
    while not pending.is_full:
        pending.put(b"x" * PIECE)
    pending.send_piece()
    assert not pending.is_full
