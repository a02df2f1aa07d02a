"""The columns in which GPUs are shown where each has a line."""

from __future__ import annotations

from gputui.tui.present.cells import Column

GPU_COLUMNS = (
    Column("index", "GPU", 3, right=True),
    Column("model", "MODEL", 7, flex=1, most=16),
    Column("uuid", "UUID", 12, rank=7),
    Column("state", "STATE", 7),
    Column("who", "HELD BY", 22, flex=6),
    Column("history", "LAST MINUTES", 20, flex=2, rank=3, most=40),
    Column("load", "UTIL", 6, flex=1, rank=1, most=12),
    Column("percent", "", 4, right=True),
    Column("memory_bar", "MEMORY", 8, rank=4),
    Column("memory", "MEM", 9, right=True),
    Column("temperature", "TEMP", 4, right=True),
    Column("power", "PWR", 5, right=True),
    Column("power_limit", "LIMIT", 5, right=True, rank=5),
    Column("clock", "CLOCK", 7, right=True, rank=6),
    Column("fan", "FAN", 4, right=True, rank=8),
)
