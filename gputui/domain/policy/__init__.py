"""Scheduling policy: pure functions of a snapshot, the settings and the time that decide which job starts where."""
