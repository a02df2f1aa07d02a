"""The console: shows snapshots and turns keys into actions. It does not depend on adapters or the scheduler."""
