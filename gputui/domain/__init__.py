"""The ground: frozen dataclasses and pure functions. Standard library only, no I/O, no clock."""
