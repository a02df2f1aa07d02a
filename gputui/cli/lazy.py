"""A group of commands whose modules are imported only when they are run."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "submit": "put a job, or a file of jobs, into the queue",
    "queue": "live jobs, in the order they will start",
    "show": "everything about a job",
    "explain": "why a job waits, and when it starts",
    "logs": "what a job printed",
    "cancel": "end jobs, or keep them from starting",
    "hold": "keep waiting jobs from starting",
    "release": "let held jobs start",
    "requeue": "run jobs again",
    "priority": "move jobs forward or back in the queue",
    "edit": "change what a waiting job asks for",
    "gpus": "the GPUs, and who holds them",
    "top": "what the console shows, as lines: for scripts",
    "drain": "let no further job start on GPUs",
    "resume": "let jobs start on GPUs again",
    "reserve": "keep GPUs for somebody for a time",
    "tenant": "weights and caps of tenants",
    "cron": "submit jobs again and again, as in a crontab",
    "pause": "start no further job",
    "unpause": "start jobs again",
    "serve": "schedule without a screen",
    "web": "the console in a browser, by a link that works once",
    "demo": "try it on simulated GPUs: needs neither GPU nor Docker",
    "replay": "what this scheduler and others would have made of a trace of jobs",
    "doctor": "check driver, engine, permissions and disk",
    "state": "repair a queue whose files have lost something",
    "completions": "print the completion script of a shell",
}
"""Every command, in the order of the help, with its short help. Each is `command` in a module of its name."""


class LazyGroup(click.Group):
    """Finds a command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order in which one meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None when there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gputui.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command meant; for one that is none, a hint at what may have been."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else "gputui --help lists the commands"
            raise click.UsageError(f"no such command {args[0]!r} ({hint})", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
