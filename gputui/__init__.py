"""gputui: a console and scheduler for GPU servers."""

__version__ = "0.1.0"
