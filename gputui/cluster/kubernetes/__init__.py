"""Kubernetes as a cluster."""
