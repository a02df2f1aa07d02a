"""Several independent servers in one console: what they say to each other over ssh, and both ends of that."""
