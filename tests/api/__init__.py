"""The door: server, routes, rights, events and clients."""
