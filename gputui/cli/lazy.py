"""A group of commands whose modules are imported only when they are run."""

from __future__ import annotations

import importlib

import click

GROUPS = {
    "Jobs": {
        "submit": "put a job, or a file of jobs, into the queue",
        "run": "submit a job, wait for it, and attach to it",
        "queue": "live jobs, waiting ones in their turn",
        "show": "details of a job",
        "explain": "why a job waits, and when it starts",
        "logs": "output of a job",
        "cancel": "cancel waiting or running jobs",
        "requeue": "run jobs again",
        "edit": "change a waiting job, or the time limit of a running one",
        "priority": "move jobs forward or back in the queue",
        "hold": "keep waiting jobs from starting",
        "release": "release held jobs",
        "wait": "return when jobs have ended, with their exit code",
        "attach": "attach to a job again",
        "exec": "run a command in a running job",
        "history": "jobs that have ended, the latest first",
        "cron": "submit jobs at regular times, as in a crontab",
        "suspend": "stop the processes of running jobs; they keep their GPUs",
        "unsuspend": "continue suspended jobs",
        "signal": "send running jobs a signal, such as USR1",
    },
    "GPUs": {
        "gpus": "the GPUs, and the jobs on them",
        "ps": "processes on the GPUs, and signals to foreign ones",
        "drain": "start no more jobs on GPUs",
        "resume": "start jobs on GPUs again",
        "reserve": "reserve GPUs for a time",
        "top": "the console as plain text, for scripts",
    },
    "Operate": {
        "doctor": "check driver, engine, permissions and disk",
        "serve": "schedule without a screen",
        "pause": "start no more jobs",
        "unpause": "start jobs again after a pause",
        "report": "GPU-hours, waits, energy and cost of a period",
        "tenant": "weights and caps of tenants",
        "web": "the console in a browser, by a link that works once",
        "install": "systemd units that run the scheduler as a service",
        "state": "back up, check, repair and move the queue",
        "metrics": "dashboards and alert rules for Prometheus and Grafana",
    },
    "Cluster": {
        "cluster": "prepare and check a cluster of Slurm or Kubernetes",
        "migrate": "move waiting jobs to the configured cluster",
        "export": "jobs as batch scripts of Slurm or manifests of Kubernetes",
        "probe": "readings of this machine's GPUs, for a console elsewhere",
        "remote": "the server's end of a console over several servers",
    },
    "Tools": {
        "demo": "try it on simulated GPUs: needs neither GPU nor Docker",
        "replay": "compare schedulers on a trace of jobs",
        "completions": "print the completion script of a shell",
        "schema": "JSON schemas of settings and job files",
    },
}
"""Groups of commands with short help, in the order of the help; the rarer ones come last."""
VERBS = frozenset(
    "hold release suspend unsuspend cancel requeue signal priority pause unpause drain resume".split()  # noqa: SIM905
)
"""Commands in `gputui.cli.verbs`, by their names or made of their row in the table of verbs alone."""
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
"""All commands with short help. Each that is neither a verb nor in `_HOMES` is `command` in a module of its name."""
_HOMES = {
    "completions": "completing",
    "export": "migrate",
    "metrics": "offered_files",
    "probe": "serve",
    "remote": "serve",
    "schema": "offered_files",
    "web": "serve",
}
"""Modules of the commands that share one with others; each has its own name there."""


class CommandGroup(click.Group):
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


class LazyGroup(CommandGroup):
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
        if cmd_name in VERBS:
            from gputui.cli import verbs

            return verbs.command_of(cmd_name)
        home = _HOMES.get(cmd_name)
        module = importlib.import_module(f"gputui.cli.{home or cmd_name}")
        command: click.Command = getattr(module, cmd_name if home else "command")
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
        room = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{room}}", about) for name, about in commands.items()])
