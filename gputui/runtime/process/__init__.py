"""Attempts as processes of this host."""
