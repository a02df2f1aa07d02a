"""Prometheus families built from the snapshot."""
