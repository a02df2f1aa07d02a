"""A group of commands whose modules are imported only when they are run."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "submit": "put a job, or a file of jobs, into the queue",
    "queue": "live jobs, in the order they will start",
    "show": "details of a job",
    "run": "submit a job, wait for it, and attach to it",
    "attach": "attach to a job again",
    "exec": "run a command in a running job",
    "explain": "why a job waits, and when it starts",
    "logs": "output of a job",
    "wait": "return when jobs have ended, with their exit code",
    "cancel": "cancel waiting or running jobs",
    "hold": "keep waiting jobs from starting",
    "release": "release held jobs",
    "requeue": "run jobs again",
    "priority": "move jobs forward or back in the queue",
    "edit": "change a waiting job, or the time limit of a running one",
    "suspend": "stop the processes of running jobs; they keep their GPUs",
    "unsuspend": "continue suspended jobs",
    "signal": "send running jobs a signal, such as USR1",
    "gpus": "the GPUs, and the jobs on them",
    "ps": "processes on the GPUs, and signals to foreign ones",
    "top": "the console as plain text, for scripts",
    "drain": "start no more jobs on GPUs",
    "resume": "start jobs on GPUs again",
    "reserve": "reserve GPUs for a time",
    "tenant": "weights and caps of tenants",
    "cron": "submit jobs at regular times, as in a crontab",
    "pause": "start no more jobs",
    "unpause": "start jobs again after a pause",
    "serve": "schedule without a screen",
    "web": "the console in a browser, by a link that works once",
    "metrics": "dashboards and alert rules for Prometheus and Grafana",
    "remote": "the server's end of a console over several servers",
    "probe": "readings of this machine's GPUs, for a console elsewhere",
    "demo": "try it on simulated GPUs: needs neither GPU nor Docker",
    "report": "GPU-hours, waits, energy and cost of a period",
    "history": "jobs that have ended, the latest first",
    "replay": "compare schedulers on a trace of jobs",
    "doctor": "check driver, engine, permissions and disk",
    "state": "back up, check, repair and move the queue",
    "export": "jobs as batch scripts of Slurm or manifests of Kubernetes",
    "migrate": "move waiting jobs to the configured cluster",
    "install": "systemd units that run the scheduler as a service",
    "cluster": "prepare and check a cluster: Slurm's nodes, or rights in Kubernetes",
    "schema": "JSON schemas of settings and job files",
    "completions": "print the completion script of a shell",
}
"""Table of commands, in the order of the help, with short help. Each is `command` in a module of its name."""


class Group(click.Group):
    """Group that suggests its commands by what other programs and people call them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with a suggestion for an unknown one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            from gputui.domain.synonyms import suggestion  # imported only for this error

            hint = suggestion(args[0], names) or f"{ctx.command_path} --help lists the commands"
            raise click.UsageError(f"no such command {args[0]!r} ({hint})", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Finds a command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None when there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gputui.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. After `--on` its words are not read here: they are for gputui on that server."""
        if args and args[0] in COMMANDS and ctx.params.get("servers") and not ctx.resilient_parsing:
            from gputui.cli.on_servers import RemoteCommand

            return args[0], RemoteCommand(args[0], args[1:]), []
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
