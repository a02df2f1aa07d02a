"""One pass of the scheduler, as named steps."""
