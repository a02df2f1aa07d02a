"""The process around the scheduler: its host, the loop of ticks, the count of faults, memory tuning."""
