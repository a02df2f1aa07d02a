"""The only place where adapters are chosen."""
