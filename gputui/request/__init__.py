"""Requests for jobs, read from options, a job file or a form: one table of options for all of them."""
