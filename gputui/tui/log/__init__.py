"""One log as the console reads, searches and shows it."""
