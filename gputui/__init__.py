"""gputui: a console and scheduler for GPU servers. For programs: `from gputui import Client, AsyncClient`."""

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """Return what programs import from here, see `__init__.pyi`; commands load none of it."""
    if name not in {"AsyncClient", "Client", "GputuiError"}:
        raise AttributeError(f"module 'gputui' has no attribute {name!r}")
    from importlib import import_module  # so that what imports this does not depend on the client

    return getattr(import_module("gputui.client"), name)
