"""gputui: the console for the people who run GPU servers."""

__version__ = "0.1.0"
