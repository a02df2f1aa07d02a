"""`gputui state`: maintain the state directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gputui import bootstrap
from gputui.bootstrap import upkeep
from gputui.cli import terminal
from gputui.cli.main import CommandGroup
from gputui.cli.offered_files import agrees
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.cli.terminal import print_done
from gputui.config import typed_path
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.text import format_size, plain, plural
from gputui.request.job_values import duration

_OTHER_ARCHIVES = frozenset({".bz2", ".lz4", ".tbz", ".txz", ".tzst", ".xz", ".zip", ".zst"})
"""Suffixes of archives that a backup is not: tar would not open it under such a name."""
_MOST_FINDINGS = 20
"""Findings about a new backup that are printed."""


@click.group("state", cls=CommandGroup)
@pass_session
def command(session: Session) -> None:
    """Back up, check, repair and move the state directory."""
    if session.options.asked is not None:
        hint = "a directory of your own: gputui --state DIRECTORY state …"
        raise GputuiError("the service has the queue, and its operators keep it", hint=hint)


@command.command("backup")
@click.argument("file")
@click.option("--without-logs", is_flag=True, help="Leave out the output of ended jobs.")
@click.option("--keep", metavar="DURATION", help="If FILE is a directory: remove backups in it that are older.")
@pass_session
def backup(session: Session, file: str, without_logs: bool, keep: str | None) -> int:
    """Write queue, history, audit log and logs into FILE, a compressed tar archive with checksums.

    Others may use the queue meanwhile: the backup is of one moment. FILE must not exist; it gets its name when it is
    complete, and only its owner may read it, because jobs' environments are in it. If FILE is a directory, the backup
    gets a name with the time there, and the scheduler reports the result.

    The backup is read again: if a record in it cannot be read, the exit code is 1 and --keep removes no good backup,
    but all damaged ones except the latest three. --keep never removes the latest seven good backups.
    """
    target, age = _path(file), duration(keep, "--keep") if keep is not None else None
    now = bootstrap.clock().now()
    if target.is_dir():
        return _report(upkeep.scheduled_backup(session.options, target, age, now, with_logs=not without_logs))
    if age is not None:
        raise InputError("it is for a directory of backups", where="--keep", hint=f"mkdir {plain(str(target))}")
    if target.suffix in _OTHER_ARCHIVES:
        name = target.with_name(target.name.removesuffix(target.suffix).removesuffix(".tar") + ".tar.gz")
        raise InputError(
            f"a backup is a tar archive compressed by gzip, not {target.suffix}",
            where=plain(file),
            hint=f"name it {plain(str(name))}",
        )
    made = upkeep.checked_backup(session.options, target, now, with_logs=not without_logs)
    return _report(made)


def _report(made: upkeep.BackupResult) -> int:
    print_done(f"backed up {plural(made.files, 'file')} ({format_size(made.size)}) to {plain(str(made.path))}")
    if made.removed:
        terminal.echo(f"removed {plural(made.removed, 'old damaged backup' if made.findings else 'old backup')}")
    if not made.findings:
        return 0
    for finding in made.findings[:_MOST_FINDINGS]:
        terminal.tell(finding.sentence)
    found = plural(len(made.findings), "finding")
    terminal.echo(
        f"gputui: the backup holds damaged data ({found}), so it does not count as good and no good one was removed\n"
        "  (gputui state verify lists everything; gputui state repair repairs the queue)",
        err=True,
    )
    return 1


@command.command("restore")
@click.argument("file")
@pass_session
def restore(session: Session, file: str) -> int:
    """Fill an empty or new state directory from a backup, with owners and modes; nothing is overwritten.

    A job that ended after the backup was made is waiting or running in it, and is run again. Look at `gputui queue`
    before you start a scheduler there.
    """
    for finding in upkeep.restore(session.options, _path(file)):
        terminal.tell(finding.sentence)
    print_done(f"restored to {plain(str(session.options.state))}")
    return 0


@command.command("verify")
@click.argument("backup", required=False, metavar="[BACKUP]")
@click.option("--json", "as_json", is_flag=True, help="Print an array of findings as JSON.")
@pass_session
def verify(session: Session, backup: str | None, as_json: bool) -> int:
    """Check that every record of the state directory, or of a backup, can be read, and say where one cannot.

    Checksums are compared where they exist: of each line of the journal, of the journal, of a backup and its files.
    Remains of a crash are reported as harmless. The exit code is 1 for any other finding.
    """
    path = _path(backup) if backup else session.options.state
    found = upkeep.verify(path)
    if as_json:
        print_json([{"where": each.where, "text": each.text, "harmless": each.is_harmless} for each in found])
    else:
        for finding in found:
            terminal.echo(plain(finding.sentence))
        if not found:
            terminal.echo(f"{plain(str(path))}: everything can be read")
    return 0 if all(finding.is_harmless for finding in found) else 1


@command.command("repair")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def repair(session: Session, yes: bool) -> int:
    """Repair the queue after its files have lost data, and the history and audit log.

    Prints what is recovered and what is lost, asks, and keeps what is damaged aside. For the queue, what a scheduler or
    a console still has in memory is used, so leave them running. Lines of history and audit log that cannot be read are
    moved aside only while nothing schedules.
    """
    found = bootstrap.open_repair(session.options)
    recovery = found.assess()
    damaged = upkeep.damaged_lines(session.options)
    if recovery is None and not damaged:
        terminal.echo("nothing is missing: there is nothing to repair")
        return 0
    if recovery is not None:
        terminal.echo("\n".join(map(plain, recovery.lines)))
    for sentence in damaged:
        terminal.echo(plain(sentence))
    if not yes and not agrees("state repair", "Repair it so?"):
        terminal.echo("nothing was changed", err=True)
        return 1
    now = bootstrap.clock().now()
    if recovery is not None:
        aside = found.carry_out(recovery, now, bootstrap.actor())
        print_done(f"repaired; the damaged files are in {plain(str(aside))}")
    if damaged:
        aside = upkeep.move_damaged_lines(session.options, now)
        print_done(f"repaired; the damaged lines are in {plain(str(aside))}")
    return 0


@command.command("export")
@click.argument("file", default="-")
@pass_session
def export(session: Session, file: str) -> int:
    """Write queue, history and audit log as lines of JSON into FILE, or to standard output.

    The first line names the format and its version, the last one has a checksum; docs/operations.md describes the
    others. Logs and telemetry are not in it.
    """
    now = bootstrap.clock().now()
    if file == "-":
        for line in upkeep.export(session.options, now):
            terminal.binary().write(line)
        terminal.flush()
        return 0
    target = _path(file)
    upkeep.export_to(session.options, target, now)
    print_done(f"exported to {plain(str(target))}")
    return 0


@command.command("import")
@click.argument("file", default="-")
@pass_session
def import_(session: Session, file: str) -> int:
    """Fill an empty or new state directory from an export; ids are kept, and nothing is overwritten."""
    if file == "-":
        upkeep.import_(session.options, sys.stdin.buffer, "standard input")
    else:
        path = _path(file)
        try:
            with path.open("rb") as source:
                upkeep.import_(session.options, source, str(path))
        except OSError as error:
            raise GputuiError(f"cannot be read: {error.strerror}", where=str(path)) from error
    print_done(f"imported into {plain(str(session.options.state))}")
    return 0


def _path(text: str) -> Path:
    return typed_path(text, "PATH")
