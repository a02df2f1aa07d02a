"""`gputui ps`: the processes on the GPUs, and signals to foreign ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial

import click

from gputui import bootstrap
from gputui.bootstrap.backend import no_store, open_foreign_use
from gputui.cli import completing, output, terminal
from gputui.cli.gpus import picture
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.as_json import attributes
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import find_gpu, index_of
from gputui.domain.gpu_processes import (
    GpuProcessRow,
    gpu_words,
    local_pids,
    parse_process_filter,
    process_rows,
    process_target,
    tree_of,
    with_host_values,
)
from gputui.domain.text import format_duration, format_size, plain
from gputui.engine.actions.foreign_use import ForeignUse, parse_signal

Row = GpuProcessRow
COLUMNS: tuple[tuple[output.TextColumn, Callable[[Row], str]], ...] = (
    (output.TextColumn("PID", right=True), lambda row: "-" if row.pid is None else str(row.pid)),
    (output.TextColumn("USER", 16, least=6), lambda row: row.user or "-"),
    (output.TextColumn("GPU"), lambda row: gpu_words(row.gpus) or "-"),
    (output.TextColumn("JOB OR CONTAINER", 40, least=10), lambda row: row.what or "-"),
    (output.TextColumn("AGE", right=True), lambda row: "-" if row.age is None else format_duration(row.age)),
    (output.TextColumn("SM", right=True), lambda row: _percent(row.sm)),
    (output.TextColumn("GPU MEM", right=True), lambda row: format_size(row.gpu_memory)),
    (output.TextColumn("MEM", right=True), lambda row: format_size(row.memory)),
    (output.TextColumn("CPU", right=True), lambda row: _percent(row.cpu)),
    (output.TextColumn("COMMAND"), lambda row: "  " * row.depth + (row.command or "-")),
)
_ALWAYS = {"PID", "USER", "GPU", "JOB OR CONTAINER", "COMMAND"}


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print an array of processes as JSON.")
@click.option(
    "--gpu", "gpus", multiple=True, metavar="GPU", shell_complete=completing.gpus, help="Only processes on this GPU."
)
@click.option(
    "--filter", "words", default="", metavar="TEXT", help="Only processes that match: `kind:foreign user:alice`."
)
@click.option("--tree", is_flag=True, help="Children below their parents.")
@click.option("-s", "--signal", "name", metavar="SIGNAL", help="Send INT, TERM or KILL to the processes named.")
@click.option("--stop", "container", metavar="NAME", help="Stop this container, as `docker stop` does; never a job's.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a signal or a stop.")
@click.argument("pids", nargs=-1, metavar="[PID]...")
@pass_session
def command(
    session: Session,
    as_json: bool,
    gpus: tuple[str, ...],
    words: str,
    tree: bool,
    name: str | None,
    container: str | None,
    yes: bool,
    pids: tuple[str, ...],
) -> int:
    """List the processes on the GPUs: of jobs, of other containers, and foreign ones."""
    wanted = parse_process_filter(words)
    with ExitStack() as until:
        is_own = bootstrap.may_open(session.options)
        own = until.enter_context(session.store()) if is_own else None
        use = until.enter_context(closing(open_foreign_use(session.options, (lambda: own) if own else no_store)))
        if container is not None:
            return _stop(use, container, yes=yes)
        with session.backend() as backend:
            snapshot = picture(backend)
        rows = process_rows(snapshot)
        seen = use.rows(local_pids(rows), with_parents=tree)
        rows = with_host_values(rows, seen)
        if name is not None:
            return _send(use, parse_signal(name, "--signal"), rows, pids, yes=yes)
        uuids = [view.gpu.uuid for view in snapshot.gpus]
        only = {find_gpu(uuids, name) for name in gpus}
        labels, numbers = {index_of(view) for view in snapshot.gpus if view.gpu.uuid in only}, _numbers(pids)
        shown = tuple(
            row
            for row in rows
            if wanted.matches(row) and (not gpus or labels.intersection(row.gpus)) and (not pids or row.pid in numbers)
        )
        shown = tree_of(shown, seen) if tree else shown
    if as_json:
        print_json(
            [
                {
                    **attributes(row, "pid kind user command gpus job_id"),
                    "job": row.job.partition(" ")[0].removeprefix("#") or None,
                    "container_id": row.container_id,
                    "container": row.container or None,
                    "image": row.image or None,
                    **attributes(row, "gpu_memory sm memory cpu age parent computes"),
                    "visible": row.is_visible,
                }
                for row in shown
            ]
        )
    else:
        terminal.write("\n".join(lines(shown, terminal.width())) + "\n")
    return 0


def _numbers(pids: Sequence[str]) -> frozenset[int]:
    for text in pids:
        if not (text.isascii() and text.isdigit()):
            raise InputError(f"{plain(text, 40)!r} is not a process id", where="PID")
    return frozenset(map(int, pids))


def _send(use: ForeignUse, name: str, rows: Sequence[Row], pids: Sequence[str], *, yes: bool) -> int:
    wanted = sorted(_numbers(pids))
    if not wanted:
        raise InputError("--signal wants the pids of processes", where="PID", hint="gputui ps lists them")
    found = {row.pid: target for row in rows if row.pid in wanted and (target := process_target(row)) is not None}
    if lost := next((pid for pid in wanted if pid not in found), None):
        raise NotFoundError(f"pid {lost} is on no GPU", hint="gputui ps lists those that are")
    targets = [found[pid] for pid in wanted]
    for target in targets:
        if target.job_id is not None:
            raise GputuiError(target.refusal[0], hint=target.refusal[1])
    _ask(f"Send {name} to:", [target.sentence for target in targets], yes=yes)
    outcomes = [_outcome(partial(use.signal, target, name)) for target in targets]
    return int(not all(outcomes))


def _stop(use: ForeignUse, name: str, *, yes: bool) -> int:
    try:
        detail = use.container(name)
    except GputuiError:
        return int(not _outcome(partial(use.stop, name)))  # refused for the same reason, and audited
    sentence = f"{detail.sentence}; it is killed after {detail.stop_timeout} s"
    _ask("Stop:", [sentence], yes=yes or bool(detail.store))  # a container of a job is refused anyway
    return int(not _outcome(lambda: use.stop(detail.id)))


def _outcome(act: Callable[[], str]) -> bool:
    """Run it and print the result or the refusal; return whether the process or container has ended."""
    try:
        sentence = act()
    except GputuiError as error:
        terminal.tell(str(error))
        return False
    terminal.echo(plain(sentence))
    return ": still " not in sentence


def _ask(question: str, named: Sequence[str], *, yes: bool) -> None:
    if yes:
        return
    if not terminal.is_tty(terminal.IN):
        raise InputError("a confirmation is needed, and there is no terminal", where="--yes", hint="add --yes")
    terminal.echo("\n".join([question, *(f"  {plain(each)}" for each in named)]), err=True)
    if not click.confirm("Continue?", err=True):
        raise GputuiError("cancelled; nothing was sent")


def lines(rows: Sequence[Row], total: int | None) -> list[str]:
    cells = [[get(row) for _, get in COLUMNS] for row in rows]
    kept = [
        place
        for place, (column, _) in enumerate(COLUMNS)
        if column.title in _ALWAYS or any(row[place] != "-" for row in cells)
    ]
    return output.lines([COLUMNS[place][0] for place in kept], [[row[place] for place in kept] for row in cells], total)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}%"
