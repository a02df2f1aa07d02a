"""Who starts next, and where: pure functions of a snapshot, the settings and the time."""
