"""A connection that ends before the attempt does: the command attaches again, and shows all output once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gputui.cli.conversation import Conversation, Ending, Output, Signals


class Pieces:
    """Channel that delivers these pieces and ends."""

    is_tty, has_pending = False, True

    def __init__(self, *pieces: tuple[bool, bytes]) -> None:
        self._pieces: Iterator[tuple[bool, bytes]] = iter(pieces)
        self.on_input: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return -1

    def receive(self) -> list[tuple[bool, bytes]] | None:
        piece = next(self._pieces, None)
        return None if piece is None else [piece]

    def input_fileno(self) -> int:
        return -1

    def send(self, data: bytes) -> None:
        raise OSError

    def end_input(self) -> None:
        pass

    def resize(self, rows: int, columns: int) -> None:
        pass

    def exit_code(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def test_output_that_a_new_connection_repeats_is_shown_once(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = Output()
    for pieces in (
        ((False, b"one\ntw"), (True, b"warned")),
        ((False, b"one\n"), (True, b"warned, twi"), (False, b"two\nthr")),
        ((False, b"one\ntwo\nthree\n"), (True, b"warned, twice")),
    ):
        with Signals(()) as signals:
            talk = Conversation(Pieces(*pieces), signals, has_input=False, show=output.show)
            assert talk.run() is Ending.ENDED
        output.repeat()
    assert capfdbinary.readouterr() == (b"one\ntwo\nthree\n", b"warned, twice")
