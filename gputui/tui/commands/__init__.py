"""The console's commands: declarations, table, and where they work."""
