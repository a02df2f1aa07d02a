"""Attempts as Docker containers: the only code that imports docker-py."""
