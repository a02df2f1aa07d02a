"""The scheduling policy run over a trace of jobs, besides named baselines; pure except for reading the trace."""
