"""The console: shows snapshots, turns keys into wishes. It knows no adapter and no scheduler."""
