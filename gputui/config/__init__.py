"""Settings from a TOML file and the environment, and the options every command shares."""

from __future__ import annotations

from gputui.config.options import (
    RUNTIMES,
    Options,
    ProbeSpec,
    parse_probe,
    parse_runtime,
    resolve,
    site_config,
    templates_path,
)
from gputui.config.settings_file import MAX_FILE, SIZES, TABLES, listen_address, load_settings, read_toml, value_of_text

__all__ = [
    "MAX_FILE",
    "RUNTIMES",
    "SIZES",
    "TABLES",
    "Options",
    "ProbeSpec",
    "listen_address",
    "load_settings",
    "parse_probe",
    "parse_runtime",
    "read_toml",
    "resolve",
    "site_config",
    "templates_path",
    "value_of_text",
]
