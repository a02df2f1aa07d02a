"""Tests of the adapter for Kubernetes, over a fake API server."""
