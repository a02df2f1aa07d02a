"""The very policy run over a trace of jobs, beside named baselines: pure but for reading the trace."""
