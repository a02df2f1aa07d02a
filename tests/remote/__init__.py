"""GPUs of another machine, read and used through its engine."""
