"""The columns that the queue can have, and those that a person chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gputui.tui.present.cells import Column

NEVER_LEFT_OUT = "id"
_ALL = (
    (Column("id", "ID", 5, right=True), "its number"),
    (Column("state", "ST", 3), "state, as squeue shortens it"),
    (Column("priority", "PRI", 3, right=True), "0 to 100, or top"),
    (Column("name", "NAME", 14, flex=2, most=40), "name"),
    (Column("tenant", "TENANT", 8, flex=1, most=16), "who it is charged to"),
    (Column("gpus", "GPUS", 4, right=True), "how many GPUs it holds or asks for"),
    (Column("time", "TIME", 6, right=True), "how long it has run"),
    (Column("limit", "LIMIT", 6, right=True, rank=1), "its time limit"),
    (Column("age", "AGE", 6, right=True, rank=3), "since it was submitted"),
    (Column("start", "STARTS", 7, right=True, rank=2), "in how long it is expected to start"),
    (Column("why", "WHY", 18, flex=5), "why it waits, where it runs, how it ended"),
    (Column("eta", "ETA", 12, right=True), "at what local time it is expected to start"),
    (Column("left", "LEFT", 6, right=True), "what is left of its time limit"),
    (Column("where", "ON GPU", 8), "the indices of its GPUs"),
    (Column("user", "USER", 8), "who submitted it"),
    (Column("image", "IMAGE", 14, flex=2, most=40), "its image"),
    (Column("attempts", "TRY", 3, right=True), "how often it was begun"),
    (Column("exit", "EXIT", 4, right=True), "its exit code"),
    (Column("submitted", "SUBMITTED", 11, right=True), "when it was submitted, local time"),
    (Column("started", "STARTED", 11, right=True), "when it started, local time"),
    (Column("ended", "ENDED", 11, right=True), "when it ended, local time"),
    (Column("score", "SCORE", 8, right=True), "by which the plan orders what waits"),
)
COLUMNS: Mapping[str, Column] = MappingProxyType({column.key: column for column, _ in _ALL})
ABOUT: Mapping[str, str] = MappingProxyType({column.key: about for column, about in _ALL})
USUAL = ("id", "state", "priority", "name", "tenant", "gpus", "time", "limit", "age", "start", "why")
ENDED = ("id", "state", "name", "tenant", "gpus", "time", "exit", "ended", "why")
"""Those of jobs that are over."""


@dataclass(frozen=True)
class Chosen:
    """Columns in the order in which they stand."""

    keys: tuple[str, ...] = USUAL

    @classmethod
    def of(cls, remembered: Mapping[str, object], setting: Iterable[str] = ()) -> Chosen:
        """As it was remembered, else as the settings file says; what makes no sense is as if it had not been."""
        found = remembered.get("columns")
        known = tuple(dict.fromkeys(str(key) for key in found if key in COLUMNS)) if isinstance(found, list) else ()
        return cls(known or tuple(setting) or USUAL)

    @property
    def columns(self) -> tuple[Column, ...]:
        """As they are laid out: what was put first stays longest where there is no room for all."""
        if self.keys == USUAL:
            return tuple(COLUMNS[key] for key in USUAL)
        return tuple(
            replace(COLUMNS[key], rank=0 if key == NEVER_LEFT_OUT else rank + 1) for rank, key in enumerate(self.keys)
        )
