"""The command line: its groups of commands, options that every command shares, exit codes, and reports of errors."""

from __future__ import annotations

import gc
import importlib
import io
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gputui import __version__, bootstrap, thin
from gputui.cli import terminal
from gputui.cli.session import Session
from gputui.config import Options, ensure_home, present_directory, resolve
from gputui.domain.errors import AccessError, GputuiError, InputErrors, ParseLocallyError
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.text import plain

if TYPE_CHECKING:
    from gputui.domain.access import Caller
    from gputui.domain.settings import ServerSettings
    from gputui.ports.backend import DirectBackend, RunCommand


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
        "api-stdio": "the queue's HTTP interface on stdin and stdout, for ssh",
    },
    "Tools": {
        "demo": "try it on simulated GPUs: needs neither GPU nor Docker",
        "replay": "compare schedulers on a trace of jobs",
        "mcp": "tools for coding agents, by the Model Context Protocol",
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
    "api-stdio": "serve.api_stdio",
    "attach": "run.attach",
    "completions": "completing.completions",
    "exec": "conversation.execute",
    "explain": "show.explain_command",
    "export": "cluster.export",
    "history": "queue.history",
    "logs": "wait.logs",
    "mcp": "serve.mcp",
    "metrics": "offered_files.metrics",
    "migrate": "cluster.migrate",
    "probe": "serve.probe",
    "schema": "offered_files.schema",
    "tenant": "reserve.tenant",
    "web": "serve.web",
}
"""Commands that share a module with others, by name: the module, and their name there."""
_GONE = {"remote": "serve.remote"}
"""Commands that only consoles of an older gputui run: they say that it is too old."""


class CommandGroup(click.Group):
    """Group that suggests its commands by what other programs and people call them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with a suggestion for an unknown one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            from gputui.domain.verbs import suggestion  # imported only for this error

            hint = suggestion(args[0], names) or f"{ctx.command_path} --help lists the commands"
            raise click.UsageError(f"no such command {args[0]!r} ({hint})", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and with_help(command, ctx), rest


_HELP = threading.Lock()


def with_help(command: click.Command, ctx: click.Context) -> click.Command:
    """Return the command, which from now on prints its help on the terminal of its user."""
    with _HELP:  # click makes the option when it is first asked for, which is not for several threads
        if (option := command.get_help_option(ctx)) is not None:
            option.callback = terminal.print_help
    return command


class LazyGroup(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in _GONE:
            return None
        if cmd_name in VERBS:
            from gputui.cli import verbs

            return verbs.command_of(cmd_name)
        home, _, attribute = (_HOMES | _GONE).get(cmd_name, f"{cmd_name}.command").partition(".")
        command: click.Command = getattr(importlib.import_module(f"gputui.cli.{home}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. After `--on` its words are not read here: they are for gputui on that server."""
        if not args or (args[0] not in COMMANDS and args[0] not in _GONE):
            return super().resolve_command(ctx, args)
        if ctx.params.get("servers") and not ctx.resilient_parsing:
            from gputui.cli.on_servers import RemoteCommand

            return args[0], RemoteCommand(args[0], args[1:]), []
        command = self.get_command(ctx, args[0])
        return args[0], command and with_help(command, ctx), args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any; those that make no sense in a cluster come last."""
        room = max(map(len, COMMANDS))
        engine, instead = "", dict[str, str]()
        with suppress(GputuiError):  # help tells no errors of settings
            if (caps := bootstrap.first_caps(Session().options)) is not None:
                engine, instead = caps.engine, dict(caps.commands)
        groups = {
            heading: {name: about for name, about in commands.items() if name not in instead}
            for heading, commands in GROUPS.items()
        }
        if instead:
            groups[f"Not with {engine}"] = {name: instead[name] for name in COMMANDS if name in instead}
        for heading, commands in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{room}}", about) for name, about in commands.items()])


PROGRAM = "gputui"
INTERRUPTED = 130
"""Exit code that shells report for a program ended by SIGINT."""


@click.group(
    PROGRAM,
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--state", metavar="DIR", help="State directory. [env: GPUTUI_STATE]")
@click.option("--config", metavar="FILE", help="Settings file. [env: GPUTUI_CONFIG]")
@click.option("--probe", metavar="nvml|sim:N[:MODEL]", help="Where readings of GPUs come from. [env: GPUTUI_PROBE]")
@click.option("--runtime", metavar="|".join(RUNTIMES), help="Runtime of the jobs. [env: GPUTUI_RUNTIME]")
@click.option(
    "--on",
    "servers",
    multiple=True,
    metavar="SERVER",
    shell_complete=lambda *word: importlib.import_module("gputui.cli.completing").servers(*word),
    help="Console over this server, or COMMAND on it: ssh://[user@]host[:port], a name in [[servers]], or all of them: "
    "all. May be repeated.",
)
@click.option("--read-only", is_flag=True, help="Read-only console: never schedules and changes nothing.")
@click.option(
    "--slow", is_flag=True, help="For slow connections: the console redraws every few seconds, without graphs."
)
@click.option("--view-only", is_flag=True, hidden=True, help="Console that never schedules, but may change jobs.")
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(
    ctx: click.Context,
    state: str | None,
    config: str | None,
    probe: str | None,
    runtime: str | None,
    servers: tuple[str, ...],
    read_only: bool,
    slow: bool,
    view_only: bool,
) -> int | None:
    """A console for GPU servers: every GPU live, a queue of jobs, and their logs.

    Without a command the console opens; it schedules when no other process does.
    """
    command = None if servers else ctx.invoked_subcommand
    given, key = (ctx.obj, "") if isinstance(ctx.obj, Session) else (None, ctx.obj or "")
    session = given or Session(state, config, probe, runtime, slow=slow, key=key)
    session.command = command
    ctx.obj = session
    if ctx.invoked_subcommand is not None:
        if servers and (state or probe or runtime):
            words = "--state, --probe and --runtime are for this machine: [[servers]] has the command of each server"
            raise click.UsageError(words, ctx)
        if read_only or view_only:
            flag = "--read-only" if read_only else "--view-only"
            raise click.UsageError(f"{flag} is for the console alone", ctx)
        if slow and ctx.invoked_subcommand != "demo":
            raise click.UsageError("--slow is for the console alone", ctx)
        return None
    from gputui.console.startup import terminal

    with terminal():
        options = session.options
        found: Sequence[ServerSettings] = ()
        if servers or (options.settings.servers and not options.names_queue and not view_only):
            from gputui.bootstrap.servers import chosen_servers

            found = chosen_servers(servers, options.settings)
        return _open_console(session, found, read_only=read_only, view_only=view_only and not found)


def _open_console(session: Session, servers: Sequence[ServerSettings], *, read_only: bool, view_only: bool) -> int:
    """Show the console, over these servers if there are any, until it is closed; return the exit code."""
    from gputui.console import startup

    startup.limit_frame_rate(session.options)
    kept, options = startup.preferences(), startup.read_only(session.options) if read_only else session.options
    with startup.no_collections():
        if view_only:
            startup.end_with_parent()
        with closing(startup.EarlyProbe(options, may_lead=not (view_only or servers))) as early:
            from gputui.console import console  # Textual comes with it

            return console.run(
                options, servers=servers, may_lead=not view_only, preferences=kept, probe=early, commands=owned_commands
            )


def owned_commands(
    options: Options, backend: Callable[[Caller], DirectBackend], refused: Callable[[Caller, str, str], None]
) -> RunCommand:
    from gputui.cli.owned import CommandsOfCallers  # once this process owns it

    return CommandsOfCallers(options, run, backend, refused)


def main(key: str = "") -> NoReturn:
    """Run the command line of this process, and end it; `key` as for `Session`."""
    terminal.open_standard_streams()
    ensure_home()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets its table
    code = run(sys.argv[1:], key or None)
    try:
        terminal.flush()
    except BrokenPipeError:
        terminal.discard_stdout()
    except OSError as error:
        terminal.discard_stdout()
        code = code or complain(f"standard output cannot be written to: {(error.strerror or str(error)).lower()}", 1)
    gc.freeze()  # no object that is left is collected at exit
    sys.exit(code)


def run(arguments: Sequence[str], session: Session | str | None = None, **more: Any) -> int:
    """Run a command and return its exit code. An error is printed on stderr, in one sentence.

    `session` is that of a caller elsewhere, or the key of one of this process; `more` are click's own options.
    ParseLocallyError is raised for a caller elsewhere alone.
    """
    try:
        code = cli.main(list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=session, **more)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        terminal.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        message = error.message if isinstance(error, click.NoSuchOption) else error.format_message().strip()
        message = message[:1].lower() + message[1:].rstrip(".")
        if isinstance(error, click.NoSuchOption) and error.ctx:
            hidden = {name for each in error.ctx.command.params if getattr(each, "hidden", False) for name in each.opts}
            if meant := " or ".join(name for name in error.possibilities or () if name not in hidden):
                message += f" (did you mean {meant}?)"
        if isinstance(error, click.UsageError) and error.ctx is not None and not message.endswith(")"):
            message += f" ({error.ctx.command_path} --help shows more)"
        return complain(message, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        terminal.discard_stdout()
        return 0
    except Exception as error:  # noqa: BLE001 - the border: no user should have to read a traceback
        return _explained(error)


def _explained(error: Exception) -> int:
    """Print what an error means, and return the exit code; raises it again if it is not for the user."""
    if isinstance(error, ParseLocallyError):
        raise error
    if isinstance(error, InputErrors):
        return [complain(str(each), error.exit_code) for each in error.errors][-1]
    if isinstance(error, AccessError):
        terminal.refused(error)
    if isinstance(error, GputuiError):
        return complain(str(error), error.exit_code)
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError) and present_directory() is None:
            return complain("the present directory has been deleted (cd to another one)", 1)
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}", 1)
    if terminal.environ().get("GPUTUI_DEBUG"):
        raise error
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        limits = "raise its limits: ulimit -v and -u in a shell, MemoryMax and TasksMax of a service"
        return complain(f"the system gives this process no more memory or threads ({limits})", 1)
    what = f"this should not have happened: {type(error).__name__}: {error}"
    return complain(f"{what} (run it again with GPUTUI_DEBUG=1 and report the output)", 1)


def complain(sentence: str, code: int) -> int:
    terminal.echo(f"{PROGRAM}: error: {plain(sentence)}", err=True)
    return code


def resume(asked: thin.Unanswered) -> int | None:
    """Ask an owner again who did not answer, with the same key and more patience; return the exit code.

    None: nothing was done, and the command is for this process.
    """
    from gputui.bootstrap.owner import ask_again
    from gputui.domain.access import stored_key

    try:
        options, waited = resolve(state=asked.state), time.monotonic() - asked.at
        answer = ask_again(asked.path, asked.body, asked.key, options, terminal.tell, waited)
    except ParseLocallyError:
        return None
    except GputuiError as error:
        return complain(str(error), error.exit_code)
    if answer is None:  # the owner may have done it before it ended: its jobs have the key
        main(stored_key(asked.key, "POST", "/v1/cli", {}, asked.body))
    return thin.printed(answer)
