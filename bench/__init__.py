"""Benchmarks: each prints what it measured, against what, and on which machine. Run as `python -m bench.NAME`."""
