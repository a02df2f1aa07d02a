"""What a job may be asked for, read from options, a job file or a form: one table for all of them."""
