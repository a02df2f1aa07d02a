"""Screens and dialogs of the console."""
