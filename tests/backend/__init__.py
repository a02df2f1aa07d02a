"""Tests of backends: what a face of gputui may rely on, wherever its queue is."""
