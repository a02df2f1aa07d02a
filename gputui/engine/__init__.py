"""The scheduler and what faces may ask of it."""
