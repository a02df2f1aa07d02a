"""Names of the account database, which never keep a request waiting for a directory service that hangs."""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

from msgspec import Struct

PATIENCE = 1.0
"""Seconds for which an answer is waited for."""
KEPT = 300.0
"""Seconds for which an answer is taken as it was."""
MISSING_KEPT = 10.0
"""Seconds for which what the database does not have is not asked for again."""
PAUSE = 5.0
"""Seconds after an answer in vain for which only known answers are given."""
MOST_QUESTIONS = 8
"""Maximum number of questions that wait for their answers."""


class _Remembered(Struct, frozen=True):
    value: Any
    """None: there is none."""
    until: float


class AccountNames:
    """Names, ids and groups of accounts. Safe to use from any thread; each answer is remembered for some minutes.

    What a hanging database does not tell in time is as before, else unknown: so it takes no rights from those it told
    of before, and gives none.
    """

    def __init__(
        self,
        *,
        patience: float = PATIENCE,
        now: Callable[[], float] = time.monotonic,
        name_of: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_name,
        uid_of: Callable[[str], int] = lambda name: pwd.getpwnam(name).pw_uid,
        gid_of: Callable[[str], int] = lambda name: grp.getgrnam(name).gr_gid,
        groups_of: Callable[[str], tuple[int, ...]] | None = None,
        home_of: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_dir,
    ) -> None:
        """`name_of` and the others ask the database, may hang, and raise KeyError for what it does not have."""
        self._patience, self._now = patience, now
        self._name_of, self._uid_of, self._gid_of = name_of, uid_of, gid_of
        self._groups_of = groups_of or _groups_of
        self._home_of = home_of
        self._lock = threading.Condition()
        self._known: dict[Hashable, _Remembered] = {}
        self._asked: set[Hashable] = set()
        self._paused_until = 0.0

    def name(self, uid: int) -> str:
        """Return the name of the account, or the number where there is none."""
        return self._answer(("name", uid), lambda: self._name_of(uid)) or str(uid)

    def number(self, name: str) -> tuple[int | None, bool]:
        """Return the id of a name of the settings, `alice`, `1000` or `@group`, and whether it is a group's.

        None: unknown.
        """
        word = name.removeprefix("@")
        is_group = word != name
        if word.isascii() and word.isdigit() and len(word) < 11:
            return int(word), is_group
        ask = self._gid_of if is_group else self._uid_of
        return self._answer(("number", name), lambda: ask(word)), is_group

    def groups(self, uid: int) -> tuple[int, ...]:
        """Return the groups that the database knows the account to be in; none if it knows none."""
        return self._answer(("groups", uid), lambda: self._groups_of(self._name_of(uid))) or ()

    def home(self, uid: int) -> str:
        """Return the home directory of the account; empty where it is unknown."""
        return self._answer(("home", uid), lambda: self._home_of(uid)) or ""

    def _answer(self, about: Hashable, ask: Callable[[], Any]) -> Any:
        """Return the remembered answer, or ask in a thread and wait for a while."""
        with self._lock:
            now, known = self._now(), self._known.get(about)
            if known is not None and now < known.until:
                return known.value
            if about not in self._asked and len(self._asked) < MOST_QUESTIONS:
                self._asked.add(about)
                threading.Thread(target=self._ask, args=(about, ask), name="accounts", daemon=True).start()
            if now >= self._paused_until and not self._lock.wait_for(lambda: about not in self._asked, self._patience):
                self._paused_until = self._now() + PAUSE
            found = self._known.get(about)
            return found.value if found is not None else None

    def _ask(self, about: Hashable, ask: Callable[[], Any]) -> None:
        value: Any = None
        kept = MISSING_KEPT
        with suppress(KeyError, OSError, ValueError):
            value, kept = ask(), KEPT
        with self._lock:
            self._known[about] = _Remembered(value, self._now() + kept)
            self._asked.discard(about)
            self._lock.notify_all()


def _groups_of(name: str) -> tuple[int, ...]:
    return tuple(os.getgrouplist(name, pwd.getpwnam(name).pw_gid))
