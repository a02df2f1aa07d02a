"""Several independent servers in one console."""
