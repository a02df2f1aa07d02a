"""Settings from a TOML file and the environment, and the options every command shares."""

from __future__ import annotations

from gputui.config.options import Options, ProbeSpec, parse_probe, resolve, templates_path
from gputui.config.settings_file import SIZES, TABLES, listen_address, load_settings, read_toml, value_of_text

__all__ = [
    "SIZES",
    "TABLES",
    "Options",
    "ProbeSpec",
    "listen_address",
    "load_settings",
    "parse_probe",
    "read_toml",
    "resolve",
    "templates_path",
    "value_of_text",
]
