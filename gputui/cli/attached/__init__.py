"""Terminals of people who are attached to jobs: raw mode, detach keys, and the conversation itself."""
