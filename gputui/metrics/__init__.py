"""Metrics for Prometheus. Only `gputui.metrics.families` is light; the others are imported once metrics are on."""
