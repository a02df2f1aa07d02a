"""GPUs of a server: which are free, which a job can use, which it gets, and how several jobs share one."""
