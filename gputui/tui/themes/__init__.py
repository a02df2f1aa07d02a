"""How the console looks: palettes of roles, and what exchanges one for another."""
