"""The console in a browser, by textual-serve: who is let in, and a process of its own for each who looks."""
