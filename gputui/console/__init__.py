"""Runtime of the console: the screen, its supervisor, and the scheduler on a thread behind it."""
