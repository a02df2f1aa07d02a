"""The door to a queue: HTTP/1.1 and JSON on a Unix socket, where the kernel tells who asks.

The owner of the queue serves it (`server`, `handlers`, `events`); consoles, commands and programs ask (`client`,
`streams`, `backend`). `routes` is the one table of what may be asked; checks, OpenAPI, tests and docs come from it.
"""
