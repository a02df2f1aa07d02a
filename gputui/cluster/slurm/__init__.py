"""Slurm as a cluster."""
