"""`gputui schema`: JSON schemas of settings and job files."""

from __future__ import annotations

import click

from gputui.cli.output import print_json


@click.command("schema")
@click.argument("name", type=click.Choice(["settings", "job"]), metavar="settings|job")
def command(name: str) -> int:
    """Print the JSON schema of the settings file, or of job files as `gputui submit -f` takes them.

    Editors check and complete TOML files by it.
    """
    from gputui.request.schemas import SCHEMAS

    print_json(SCHEMAS[name]())
    return 0
