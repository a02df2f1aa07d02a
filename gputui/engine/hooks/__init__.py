"""Hooks: commands, a webhook and mail that are notified of events.

`announcer` finds the events, `outbox` queues them for each target, `delivery` and `webhook` deliver them.
"""
