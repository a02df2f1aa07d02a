"""The console: shows snapshots, turns keys into actions. It knows no adapter and no scheduler."""
