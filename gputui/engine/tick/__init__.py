"""The tick: one pass of the scheduler (`scheduler`), a module for each of its steps, and the workers they use."""
