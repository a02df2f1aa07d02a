"""Durable storage of the queue: the only code that imports tinydb."""

from gputui.store.tinydb_store import TinyJobStore

__all__ = ["TinyJobStore"]
