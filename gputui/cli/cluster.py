"""`gputui cluster`, `migrate` and `export`: what a cluster needs, and jobs of this machine in it."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from gputui import bootstrap
from gputui.bootstrap import clusters
from gputui.cli import completing, output, terminal
from gputui.cli.job_ids import JobIds, Named, check_known, flat, ids_argument
from gputui.cli.main import CommandGroup
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.cli.output import confirm, jobs_of, print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.cluster import ENGINES, parse_engine
from gputui.domain.errors import CapabilityError, GputuiError, InputError, StoreBusyError
from gputui.domain.gpu import index_ranges, short_names
from gputui.domain.job import grouped, submission_of
from gputui.domain.node_readings import NodeCheck, Verdict
from gputui.domain.runs import runs_of
from gputui.domain.runs import words as run_words
from gputui.domain.text import plain, plural
from gputui.request import job_values

if TYPE_CHECKING:
    from gputui.engine.cluster.migration import JobMove


COLUMNS = (
    output.TextColumn("NODE", 24, least=4),
    output.TextColumn("RESULT"),
    output.TextColumn("GPUS"),
    output.TextColumn("CONTAINER SAW", 60, least=13),
    output.TextColumn("DOCKER", 12),
    output.TextColumn("CLEANED"),
    output.TextColumn("FINDINGS"),
)


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Prepare and check a cluster: Slurm's nodes, or rights in Kubernetes."""


@command.command("check")
@click.option("--image", metavar="IMAGE", help="Image of the container; by default that of cluster.check_image.")
@click.option("--wait", "waits", is_flag=True, help="Check all GPUs of each node, and wait for those that are busy.")
@click.option(
    "--timeout", default="5m", metavar="DURATION", help="Cancel jobs that have not ended by then; 5m by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of nodes as JSON.")
@click.argument("nodes", nargs=-1, metavar="[NODE...]", shell_complete=completing.nodes)
@pass_session
def check(session: Session, image: str | None, waits: bool, timeout: str, as_json: bool, nodes: tuple[str, ...]) -> int:
    """Run a probe job on each node that takes jobs, which must see exactly the GPUs that Slurm gives it.

    The job asks for all GPUs of its node that are free. Its containers, one with all of these GPUs and one with each,
    must see these and no others. It also tells whether users and Docker are there as jobs need them, and leaves a
    container behind, which the epilog has to remove. Needs no rights beyond those to submit jobs.

    The exit code is 1 if a node is faulty, or none could be checked. Nodes that are down, drained or busy are not
    checked. Ctrl-C cancels the jobs.

    Of Kubernetes it prints what a job with a GPU is there, with the template of the settings, and whether the API
    server takes it; nothing runs.
    """
    patience = job_values.duration(timeout, "--timeout")
    if draft := clusters.checked_draft(session.options, nodes, image):
        terminal.write(draft)
        return 0
    checks = clusters.check_nodes(session.options, nodes, patience, image=image, waits=waits, tell=terminal.tell)
    if as_json:
        print_json([{"node": check.node, "result": str(check.verdict), **asdict(check)} for check in checks])
    else:
        known = {uuid for check in checks for uuid in (*check.expected, *(check.seen or ()))}
        names = short_names(sorted(known))
        lines = output.lines(COLUMNS, [_row(check, names) for check in checks], terminal.width())
        for check in checks:
            lines += [plain(f"{check.node}: {fault}") for fault in check.faults]
        terminal.write("\n".join(lines) + "\n")
    verdicts = {check.verdict for check in checks}
    return 0 if Verdict.OK in verdicts and Verdict.FAULTY not in verdicts else 1


def _row(check: NodeCheck, names: Any) -> tuple[str, ...]:
    has_run = bool(check.allocated)
    seen = "-" if check.seen is None else " ".join(names[uuid] for uuid in check.seen) or "no GPU"
    cleaned = "-" if check.is_cleaned is None else "yes" if check.is_cleaned else "no"
    busy = check.gpus - len(check.allocated)
    partly = f"{plural(busy, 'GPU')} busy, not checked" if busy > 0 else ""
    findings = plural(len(check.faults), "fault") if check.faults else check.why_not or partly
    gpus = index_ranges(check.allocated) if has_run else "-"
    return (check.node, str(check.verdict), gpus, seen, check.container_engine or "-", cleaned, findings)


EPILOGS = "/etc/slurm/epilog.d"
_NAME = "50-gputui"


@command.command("install")
@click.option("--dry-run", is_flag=True, help="Print the epilog and the line of slurm.conf, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--epilog-dir", default=EPILOGS, metavar="DIR", help=f"Directory of the epilogs; {EPILOGS} by default.")
@pass_session
def install(session: Session, dry_run: bool, yes: bool, epilog_dir: str) -> int:
    """Write the epilog that removes the containers of ended jobs.

    Slurm runs it on each node after each job. Without it containers stay where a batch script is killed, and on a node
    that was cut off and came back. It is needed on every node, at the same path; it never fails, so it drains no node.
    Prints the changes, asks, and prints the line of slurm.conf.
    """
    engine = parse_engine(session.options.settings.cluster.engine)
    if engine is not None and engine.kind != "slurm":  # nodes need no settings for this
        hint = "gputui cluster rbac prints the roles that users need; gputui doctor says what is missing"
        raise CapabilityError(f"{ENGINES[engine.kind]} needs nothing on its nodes: the epilog is Slurm's", hint=hint)
    wanted = {Path(epilog_dir).absolute() / _NAME: epilog()}
    if dry_run:
        terminal.echo(listing(wanted))
        terminal.echo(_lines(epilog_dir, "#"))
        return 0
    changed = changes(wanted)
    if not changed:
        terminal.echo(f"the epilog in {plain(epilog_dir)} is up to date")
        return 0
    if not agreed(changed, "cluster install", yes=yes):
        return 1
    with suppress(OSError):  # writing tells
        Path(epilog_dir).mkdir(parents=True, exist_ok=True)
    write(changed, option="--epilog-dir", mode=0o755)
    terminal.echo(_lines(epilog_dir, "now:"))
    return 0


@command.command("rbac")
@click.option("--user", metavar="NAME", help="User who gets the rights, as the cluster knows her.")
@click.option("--group", metavar="NAME", help="Group that gets the rights.")
@click.option("--service-account", metavar="NAMESPACE:NAME", help="Service account that gets the rights.")
@click.option("--namespace", metavar="NAME", help="Namespace of the jobs; that of the settings by default.")
@click.option("--operator", is_flag=True, help="Also the right to drain nodes.")
@click.option("--own-namespace", is_flag=True, help="Only the namespace: no jobs of others, no nodes and no GPUs.")
@pass_session
def rbac(
    session: Session,
    user: str | None,
    group: str | None,
    service_account: str | None,
    namespace: str | None,
    operator: bool,
    own_namespace: bool,
) -> None:
    """Print the roles that Kubernetes has to grant, with the least rights.

    An administrator reads them, and applies them: gputui cluster rbac --user ann --namespace lab | kubectl apply -f -
    They are made from the list of calls that gputui doctor checks. Users see the jobs of all namespaces and the nodes,
    and submit, cancel, hold and read the output of jobs in their own namespace.
    """
    named = {"User": user, "Group": group, "ServiceAccount": service_account}
    given = [(kind, name) for kind, name in named.items() if name]
    if len(given) != 1:
        raise click.UsageError("name one of --user, --group and --service-account")
    place = namespace or session.options.settings.cluster.namespace or ""
    terminal.echo(clusters.kubernetes_rbac(place, *given[0], is_operator=operator, is_wide=not own_namespace), nl=False)


def epilog() -> str:
    return (files("gputui") / "cluster" / "slurm" / "epilog.sh").read_text(encoding="utf-8")


def _lines(directory: str, mark: str) -> str:
    place = plain(str(Path(directory).absolute()))
    return (
        f"{mark} copy it to the same path on every node, and have this line in slurm.conf on every machine:\n"
        f"Epilog={place}/*\n"
        f"{mark} then run scontrol reconfigure"
    )


_MOST_INDICES = 24
"""Maximum number of characters of an array's indices in the table."""


class LocalJobIds(JobIds):
    is_local = True


@click.command("migrate")
@click.argument("ids", nargs=-1, type=LocalJobIds(), metavar="[ID]...")
@click.option("--dry-run", is_flag=True, help="Print which jobs would move, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of jobs as JSON.")
@click.pass_context
@pass_session
def migrate(
    session: Session, ctx: click.Context, ids: tuple[tuple[Named, ...], ...], dry_run: bool, as_json: bool
) -> None:
    """Move this server's waiting jobs, or those named, to the configured cluster, and print their old and new ids.

    A job is cancelled here only after the cluster has it. A job that the cluster cannot run stays, and so does one that
    waits for a job that stays, or that such a job waits for. If the command is interrupted, run it again: no job is
    submitted twice. The exit code is 1 if a job stays. Stop the scheduler first: it alone writes the queue while it
    runs. Running jobs go on.
    """
    if not dry_run and bootstrap.is_scheduled(local := session.options.local()):
        hint = "quit the console or stop `gputui serve`, and run gputui migrate again; running jobs go on"
        raise StoreBusyError("a scheduler has the queue and starts its jobs", where=str(local.state), hint=hint)
    with session.store(is_local=True) as store, clusters.migration(session.options, store) as migration:
        chosen = frozenset(flat(store, ids)) if ids else None
        check_known(store, chosen or ())
        moves = migration.plan(chosen) if dry_run else migration.run(chosen)
        engine = migration.cluster.caps.engine
    if as_json:
        print_json(
            [
                {
                    "id": move.words,
                    "ids": sorted(move.ids),
                    "name": move.jobs[0].spec.name,
                    "new_id": move.new_word or None,
                    "new_ids": list(move.new_ids),
                    "reason": move.why or None,
                }
                for move in moves
            ]
        )
    elif not moves:
        terminal.echo("no job waits here")
    else:
        columns = [output.TextColumn(title) for title in ("JOB", "NAME", engine.upper(), "NOTE")]
        rows = []
        for move in moves:
            note = move.why if move.new_ids or not move.why else f"stays: {move.why}"
            note = note or ("would move" if dry_run else "")
            rows.append((move.words, move.jobs[0].spec.name, _new(move), note))
        for line in output.lines(columns, rows, terminal.width()):
            terminal.echo(line)
    ctx.exit(1 if any(move.why for move in moves) else 0)


def _new(move: JobMove) -> str:
    """Return the new id, `101` or `101_[0-3]`; `-` if there is none."""
    if not move.new_ids:
        return "-"
    indices = move.new_indices
    return move.new_word + (f"_[{run_words(runs_of(0, indices), _MOST_INDICES)}]" if indices else "")


_SUFFIXES = {"slurm": "sbatch", "k8s": "yaml"}


@click.command("export")
@click.option("--to", "target", required=True, type=click.Choice(sorted(_SUFFIXES)), help="Scheduler to write for.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Write a file for each job there.")
@ids_argument
@pass_session
def export(session: Session, target: str, directory: Path | None, ids: tuple[tuple[Named, ...], ...]) -> None:
    """Print jobs as batch scripts for sbatch, or as manifests for kubectl.

    They contain the values of the job's environment. The queue is not changed. Requests without a counterpart are
    listed on stderr. An array is one batch script, and a manifest for each element. Files that exist are not replaced.
    """
    with session.backend() as backend:
        groups = list(grouped(jobs_of(backend.queue, flat(backend.queue, ids, lambda _: True))))
        name = backend.queue.store_id
    if target == "slurm" and len(groups) > 1 and directory is None:
        raise InputError("a batch script is for one job or array", where="ID", hint="add --directory DIR")
    made, told = dict[int, str](), list[str]()
    for jobs in groups:
        word, first = arrays.id_word(jobs), jobs[0].id
        try:
            made[first], notes = clusters.exported(session.options, target, submission_of(jobs), f"{name}-{first}")
        except InputError as error:
            raise InputError(f"job {word} cannot be exported: {error}") from error
        told += [f"gputui: job {word}: left out {note}" for note in notes]
    for line in told:
        confirm(line)
    if directory is None:
        terminal.write("---\n".join(made.values()))
        return
    for job_id, text in made.items():
        # write a new file that its user may read: it may contain secrets of the job's environment
        path = directory / f"gputui-{job_id}.{_SUFFIXES[target]}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        except OSError as error:
            raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
        terminal.echo(str(path))
