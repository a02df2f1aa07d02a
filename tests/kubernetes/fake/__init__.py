"""Fake Kubernetes: an API server with real watches over HTTP, and a controller that runs jobs without containers."""
