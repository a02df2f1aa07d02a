"""Loader of the probe's source from memory, sent ahead of that source by `gputui.gpus.remote_probe`.

Nothing is written where it runs, and nothing but the standard library is imported from there. Python 3.8 must do.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn


class MemoryLoader:
    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._sources:
            return None
        is_package = any(other.startswith(f"{name}.") for other in self._sources)
        return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the module is an ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._sources[module.__name__], f"<{module.__name__}>", "exec"), module.__dict__)  # noqa: S102 - the console's own source


def begin(sources: dict[str, str], arguments: list[str]) -> NoReturn:
    """Run the probe of these sources, by name of module, and exit."""
    sys.meta_path.insert(0, MemoryLoader(sources))
    from gputui.gpus.probe.__main__ import main

    sys.exit(main(arguments))
