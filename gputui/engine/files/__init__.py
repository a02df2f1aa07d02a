"""Files in the state directory besides the queue: the leader's lock, the live view, GPU history, saved logs."""
