"""Durable storage of the queue: the only code that imports tinydb."""

from gputui.store.memory import MemoryJobStore
from gputui.store.tinydb_store import TinyJobStore

__all__ = ["MemoryJobStore", "TinyJobStore"]
