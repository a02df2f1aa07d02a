"""gputui: a console and scheduler for GPU servers."""

__version__ = "0.2.0"
