"""Queue and actions of a cluster, as commands and the console know those of this machine."""
