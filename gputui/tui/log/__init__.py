"""Logs: reading, searching and drawing them."""
