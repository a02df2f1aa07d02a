"""Requests with keys: the same one is carried out once, whoever asks at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from msgspec.structs import replace

from gputui.domain.access import Caller, Role, further_key, name_of_key, stored_key
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.submit_action import Done
from gputui.engine.actions.admission import KnownRequests
from tests.cases import cases
from tests.memory_store import MemoryJobStore

ALICE = Caller(1001, 1001, (), "alice", Role.USER, key="k.1")


def test_the_same_request_of_many_threads_is_carried_out_once() -> None:
    requests, store, numbers = KnownRequests(), MemoryJobStore(), count(1)
    all_ask = threading.Barrier(8)

    def ask(_: int) -> Done:
        all_ask.wait(30)
        return requests.once(ALICE, store, lambda: Done((next(numbers),)))

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(8)))
    assert {done.ids for done in told} == {(1,)}
    assert sorted(done.is_repeated for done in told) == [False] + [True] * 7


def test_a_request_that_failed_may_be_repeated() -> None:
    requests, store = KnownRequests(), MemoryJobStore()

    def fail() -> Done:
        raise GputuiError("the disk is full")

    for _ in range(2):
        with pytest.raises(GputuiError, match="full"):
            requests.once(ALICE, store, fail)
    assert requests.once(ALICE, store, lambda: Done((1,))) == Done((1,))


def test_keys_of_requests() -> None:
    # a key is of one user and one request
    requests, store = KnownRequests(), MemoryJobStore()
    assert requests.once(ALICE, store, lambda: Done((1,))).ids == (1,)
    bob = replace(ALICE, uid=1002)
    assert not requests.once(bob, store, lambda: Done((2,))).is_repeated
    with pytest.raises(InputError, match="another request"):
        requests.once(replace(ALICE, key="k.2"), store, lambda: Done((3,)))
    without = replace(ALICE, key="")
    assert [requests.once(without, store, lambda: Done((4,))).is_repeated for _ in range(2)] == [False, False]
    # keys tell requests apart
    key = stored_key("k", "POST", "/v1/jobs", {"anyway": "true"}, b"{}")
    assert name_of_key(key) == "k"
    assert key == stored_key("k", "POST", "/v1/jobs", {"anyway": "true"}, b"{}")
    others = {
        stored_key("k", "PATCH", "/v1/jobs", {"anyway": "true"}, b"{}"),
        stored_key("k", "POST", "/v1/actions", {"anyway": "true"}, b"{}"),
        stored_key("k", "POST", "/v1/jobs", {}, b"{}"),
        stored_key("k", "POST", "/v1/jobs", {"anyway": "true"}, b"{} "),
    }
    assert key not in others
    assert len(others) == 4
    assert further_key(key, 0) == key
    assert stored_key(further_key(key, 1), "POST", "/v1/actions", {}, b"") == further_key(key, 1)  # passed on
    assert name_of_key(further_key(key, 1)) == "k~1"


@cases("key", ["", "a b", "ä", "a.b", "a~1", "x" * 65])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="no key"):
        stored_key(key, "POST", "/", {}, b"")
