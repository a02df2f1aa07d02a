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
from gputui.config.ranges import SIZES
from gputui.config.settings_file import TABLES, load_settings
from gputui.config.toml import MAX_FILE, read_toml

__all__ = [
    "MAX_FILE",
    "RUNTIMES",
    "SIZES",
    "TABLES",
    "Options",
    "ProbeSpec",
    "load_settings",
    "parse_probe",
    "parse_runtime",
    "read_toml",
    "resolve",
    "site_config",
    "templates_path",
]
