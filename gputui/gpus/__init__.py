"""Readings of GPUs, real and simulated: the only code that imports pynvml."""
