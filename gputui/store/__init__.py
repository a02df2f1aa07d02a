"""Durable storage of the queue: the only code that imports tinydb."""
