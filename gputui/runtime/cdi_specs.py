"""Reads the names of NVIDIA's CDI devices from specification files, for engines that do not list them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gputui.domain.policy.engine_gpus import CDI_KIND

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_LARGEST = 4 * 1024**2
_KIND = re.compile(rf"""^kind:\s*["']?{re.escape(CDI_KIND)}["']?\s*$""", re.MULTILINE)
_NAME = re.compile(r"""^[\s-]*name:\s*["']?([\w:.-]+)["']?\s*$""", re.MULTILINE)
"""In a specification only devices have a `name`, so nvidia-ctk's YAML needs no parser."""


def listed(directories: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Return the qualified names of NVIDIA's GPUs in the specifications; None where there is none to read."""
    names = [name for file in _files(tuple(directories) or DIRECTORIES) for name in _names_in(file)]
    return tuple(f"{CDI_KIND}={name}" for name in dict.fromkeys(names)) or None


def _files(directories: Iterable[str]) -> Iterator[Path]:
    for directory in directories:
        with suppress(OSError):
            yield from sorted(file for file in Path(directory).iterdir() if file.suffix in {".yaml", ".yml", ".json"})


def _names_in(file: Path) -> list[str]:
    with suppress(OSError):
        if file.stat().st_size <= _LARGEST:
            text = file.read_text(errors="replace")
            return _names_in_json(text) if file.suffix == ".json" else _names_in_yaml(text)
    return []


def _names_in_yaml(text: str) -> list[str]:
    return _NAME.findall(text) if _KIND.search(text) else []


def _names_in_json(text: str) -> list[str]:
    with suppress(ValueError, AttributeError, TypeError):
        found = json.loads(text)
        return [str(device["name"]) for device in found.get("devices") or () if found.get("kind") == CDI_KIND]
    return []
