"""Runtimes, where jobs run: Docker containers and host processes."""
