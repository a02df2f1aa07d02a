"""The account database is asked once, and a hanging one delays nobody for long."""

from __future__ import annotations

import pwd
import threading
import time

from gputui.api import rights
from gputui.api.rights import AccountNames
from tests.cases import cases
from tests.waiting import until


class Directory:
    """A directory service that can hang, be told to answer, and counts its questions."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[object] = []
        self.time = 0.0

    def name_of(self, uid: int) -> str:
        self.asked.append(uid)
        assert self.answers.wait(30)
        return {1001: "alice"}[uid]

    def uid_of(self, name: str) -> int:
        self.asked.append(name)
        assert self.answers.wait(30)
        return {"alice": 1001}[name]

    def names(self, patience: float = 30.0) -> AccountNames:
        return AccountNames(patience=patience, now=lambda: self.time, name_of=self.name_of, uid_of=self.uid_of)


def test_names_and_numbers_of_this_machine() -> None:
    names, me = AccountNames(), pwd.getpwuid(0)
    assert names.name(0) == me.pw_name
    assert names.number(me.pw_name) == (0, False)
    assert names.number("@root") == (0, True)
    assert 0 in names.groups(0)


def test_what_has_no_account_is_its_number() -> None:
    names = AccountNames()
    assert names.name(4_000_000_123) == "4000000123"
    assert names.number("4000000123") == (4_000_000_123, False)
    assert names.number("@123") == (123, True)
    assert names.groups(4_000_000_123) == ()


@cases("name", ["no-such-account", "@no-such-group", "", "@", "a\0b", "9" * 11])
def test_unknown_names_have_no_number(name: str) -> None:
    assert AccountNames().number(name)[0] is None


def test_an_answer_is_kept_for_minutes_and_a_missing_account_for_seconds() -> None:
    directory = Directory()
    names = directory.names()
    for _ in range(3):
        assert names.name(1001) == "alice"
        assert names.name(1002) == "1002"
    assert directory.asked == [1001, 1002]
    directory.time = rights.MISSING_KEPT + 1
    assert (names.name(1001), names.name(1002)) == ("alice", "1002")
    directory.time = rights.KEPT + 1
    assert names.name(1001) == "alice"
    assert directory.asked == [1001, 1002, 1002, 1001]


def test_a_hanging_database_is_waited_for_once_and_then_not_for_a_while() -> None:
    directory = Directory()
    names = directory.names(patience=0.05)
    assert names.number("alice") == (1001, False)
    directory.time = rights.KEPT + 1
    directory.answers.clear()
    assert names.number("alice") == (1001, False)  # as it was
    begun = time.monotonic()
    for uid in range(2000, 2100):
        assert names.name(uid) == str(uid)
    assert time.monotonic() - begun < 2.0  # not a hundred times its patience
    assert len(directory.asked) <= 2 + rights.MOST_QUESTIONS
    directory.answers.set()


def test_a_database_that_answers_again_is_believed_again() -> None:
    directory = Directory()
    names = directory.names(patience=0.05)
    directory.answers.clear()
    assert names.name(1001) == "1001"
    directory.answers.set()
    directory.time = rights.PAUSE + 1
    until(lambda: names.name(1001) == "alice")


def test_many_threads_ask_the_same_question_once() -> None:
    directory = Directory()
    directory.answers.clear()
    names, found = directory.names(), list[str]()
    threads = [threading.Thread(target=lambda: found.append(names.name(1001))) for _ in range(20)]
    for thread in threads:
        thread.start()
    directory.answers.set()
    for thread in threads:
        thread.join()
    assert found == ["alice"] * 20
    assert directory.asked == [1001]
