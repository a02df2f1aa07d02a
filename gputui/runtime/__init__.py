"""Where jobs run: Docker containers (the only code that imports docker) and host processes."""
