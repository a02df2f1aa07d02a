"""Metrics for Prometheus. Only `gputui.metrics.families` imports little; the others are imported if metrics are on."""
