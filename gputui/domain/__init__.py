"""Domain: frozen msgspec structs and pure functions. No I/O, no clock, no third-party package but msgspec."""
