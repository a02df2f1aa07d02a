"""`gputui doctor`: checks what jobs need, and suggests fixes. `gputui.cli.checks` judges the facts collected here."""

from __future__ import annotations

import gc
import grp
import os
import shlex
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from msgspec.structs import asdict, replace

from gputui import bootstrap
from gputui.bootstrap import adapters, upkeep
from gputui.cli import checks, terminal
from gputui.cli import engine_checks as engine
from gputui.cli.checks import CheckLevel, DoctorCheck, fail, ok, warn
from gputui.cli.engine_checks import INSTALL, EngineHost
from gputui.cli.install import SOCKET_UNIT, UNITS
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.container import SYSTEM, RuntimeStatus, service_at
from gputui.domain.errors import GputuiError, NoOwnerError, StoreDamagedError, StoreError
from gputui.domain.gpu import ProbeCode, ProbeReading
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.policy.availability import present_gpus
from gputui.domain.text import format_duration, plain, plural, user_name
from gputui.ports import JobStore

_INDENT = " " * 18


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print an array of checks as JSON.")
@click.option("--fix", is_flag=True, help="Register NVIDIA's runtime in the Docker engine's daemon.json.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@pass_session
def command(session: Session, as_json: bool, fix: bool, yes: bool) -> int:
    """Check driver, toolkit, runtimes, permissions, clock and disk, and say what to do.

    The exit code is 1 when any check fails: then no job, or no job with GPUs, could start, or an ended one could keep
    its GPUs.

    --fix shows how it would change daemon.json, asks, keeps a backup and all other settings, and prints the command
    after which the engine knows them; it restarts nothing. Then the exit code is 0 when the runtime is registered.
    """
    if fix or yes:
        if not fix:
            raise click.UsageError("--yes is for --fix")
        if as_json:
            raise click.UsageError("--fix writes no JSON")
        return register(session.options, ask=not yes)
    adapters.silence_probe_log()
    found = []
    for check in examine(adapters.in_haste(session.options)):
        found.append(check)
        if not as_json:
            terminal.echo(lines(check), nl=False)  # what follows may take a while
    if as_json:
        print_json([{**asdict(check), "level": str(check.level)} for check in found])
    return 1 if any(check.level is CheckLevel.FAIL for check in found) else 0


def lines(check: DoctorCheck) -> str:
    written = [f"{check.level:<5} {plain(check.name):<11} {plain(check.text)}"]
    if check.why:
        written.append(f"{_INDENT}why: {plain(check.why)}")
    for number, line in enumerate(check.hint.splitlines()):
        written.append(f"{_INDENT}{'     ' if number else 'fix: '}{plain(line)}")
    return "\n".join(written) + "\n"


def examine(options: Options) -> Iterator[DoctorCheck]:
    site, own = (str(path) if path else None for path in (options.site, options.config))
    yield from checks.of_sources(site, own, options.ignored)
    if not bootstrap.may_schedule(options):
        yield from _guarded("cluster", _of_cluster(options))
        return
    yield from _guarded("service", _of_service(options))
    if not options.sockets.in_process:  # engine and driver are the service's
        return
    yield from _guarded("state", _of_state(options))
    found: list[ProbeReading] = []

    def of_probe() -> Iterator[DoctorCheck]:
        begun = time.monotonic()
        found.append(adapters.read_gpus(options, checks.PATIENCE))
        seconds = time.monotonic() - begun
        if found[0].status.code is ProbeCode.OK and not found[0].notes and seconds > checks.PATIENCE:
            stale_after = format_duration(options.settings.scheduler.stale_after)
            why = f"A GPU whose last reading is older than {stale_after} takes no job."
            yield warn("driver", f"it took {seconds:.0f} s to read the GPUs", why, checks.ADVICE[ProbeCode.SLOW])
        yield from checks.of_probe(found[0], options.settings.scheduler)

    yield from _guarded("driver", of_probe())
    yield from _guarded(options.runtime, _of_runtimes(options, found[0] if found else ProbeReading()))


def _guarded(name: str, area: Iterator[DoctorCheck]) -> Iterator[DoctorCheck]:
    """Yield the checks of an area; an error becomes the last of them."""
    try:
        yield from area
    except (GputuiError, OSError) as error:
        yield _failed(name, error)


def _of_service(options: Options) -> Iterator[DoctorCheck]:
    sockets, users = options.sockets, options.settings.access.users
    if found := checks.of_access(options.settings, (Path(UNITS) / SOCKET_UNIT).exists()):
        yield found
    if sockets.in_process and not users:
        return
    from gputui.bootstrap import owner as asked

    try:
        told = asked.about(options)
    except NoOwnerError:
        if not sockets.in_process:
            yield checks.of_silence(asked.unanswered(sockets.paths[0]))
    except GputuiError as error:
        yield checks.of_silence(error)
    else:
        owner = f"{told.owner.kind} of {told.owner.user}, pid {told.owner.pid},"
        silence = timedelta(seconds=told.owner.silent_for)
        yield checks.of_answer(sockets.paths[-1], owner, told.caller.user, told.caller.role, silence)
    if not sockets.in_process and (options.state / "queue.json").exists():
        with closing(bootstrap.open_store(options)) as store:
            if live := sum(not job.state.is_terminal for job in store.jobs().values()):
                why = "The service does not start them, "
                why += "and a scheduler of yours would take GPUs that the service thinks free."
                text = f"{plural(live, 'live job')} in {options.state}, a queue of your own"
                yield warn("queue", text, why, f"gputui --state {options.state} queue")
    with suppress(KeyError):
        if sockets.in_process and (found := checks.of_engine_group("docker", grp.getgrnam("docker").gr_mem)):
            yield found


def _of_cluster(options: Options) -> Iterator[DoctorCheck]:
    """Check the cluster; nothing of this machine but its commands matters then."""
    from gputui.bootstrap import clusters

    with closing(clusters.open_backend(options)) as backend:
        cluster = backend.queue.cluster
        found = cluster.faults()
        for fault in found:
            level = CheckLevel.FAIL if fault.stops_jobs or fault.is_grave else CheckLevel.WARN
            yield DoctorCheck(fault.name, level, fault.text, fault.hint, fault.why)
        if not any(fault.stops_jobs for fault in found):
            snapshot = backend.queue.read()
            yield from checks.of_snapshot(cluster.name, cluster.caps, snapshot)
            yield from checks.of_readings(clusters.read_once(options, snapshot).nodes, options.settings.cluster.probe)
            yield from checks.of_settings(options.settings)


def _of_state(options: Options) -> Iterator[DoctorCheck]:
    """Check the state directory without creating a directory or a queue."""
    if not options.state.exists():
        parent = next(parent for parent in options.state.parents if parent.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            yield ok("state", f"{options.state} does not exist yet; the first submit, serve or console creates it")
        else:
            text = f"{options.state} does not exist and cannot be created by this user"
            hint = f'sudo install -d -o "$USER" -m 0700 {shlex.quote(str(options.state))}'
            yield fail("state", text, "No job can be stored.", f"gputui --state OTHER_DIRECTORY …\nor: {hint}")
        yield from _without_queue(parent)
        return
    if not bootstrap.has_queue(options):
        yield _directory(options)
        yield from _without_queue(options.state)
        return
    if (directory := _directory(options)).level is CheckLevel.FAIL:
        yield directory
        return
    store = bootstrap.open_store(options)
    try:
        yield directory
        yield from _of_store(options, store)
    finally:
        store.close()


def _without_queue(place: Path) -> Iterator[DoctorCheck]:
    yield _space(place)
    yield checks.of_clock(bootstrap.clock().now(), None)
    yield checks.of_leader(None)


def _directory(options: Options) -> DoctorCheck:
    is_writable = os.access(options.state, os.W_OK | os.X_OK)
    return checks.of_directory(str(options.state), stat.S_IMODE(options.state.stat().st_mode), is_writable)


def _of_store(options: Options, store: JobStore) -> Iterator[DoctorCheck]:
    yield _space(options.state)
    yield from checks.of_damage(store.damage())
    latest = max((job.submitted_at for job in store.jobs().values()), default=None)
    for entry in store.unreadable():
        hint = "upgrade gputui if a newer version wrote it, else correct it in queue.json"
        yield warn("queue", entry.sentence, "The scheduler neither starts nor ends it, and keeps it unchanged.", hint)
    gc.disable()  # a year of jobs is millions of objects, none of which is in a cycle
    try:
        deque(store.past(), maxlen=0)
    except StoreError as error:
        yield _failed("history", error)
    yield from checks.of_history(store.history_damage())
    yield from (checks.of_kept(data, bootstrap.clock().now()) for data in upkeep.kept_data(options))
    from gputui.engine.files import read_backup_record

    timer, daily_since = Path(UNITS) / "gputui-backup.timer", None
    with suppress(OSError):  # it is not installed
        if f"--state {options.state} " in timer.with_suffix(".service").read_text():
            daily_since = datetime.fromtimestamp(timer.stat().st_mtime, UTC)
    if found := checks.of_backup(read_backup_record(options.state), bootstrap.clock().now(), daily_since):
        yield found
    yield checks.of_clock(bootstrap.clock().now(), latest)
    with closing(bootstrap.ask_backend(options)) as backend:
        snapshot = backend.snapshots().read()
    yield checks.of_leader(snapshot.leader)
    try:
        bootstrap.check_leader(options)
    except StoreError as error:
        why = "No command and no console of this gputui can change the queue."
        yield fail("scheduler", error.what, why, error.hint or "")
    try:
        store.check()
    except StoreDamagedError as error:
        why = "Jobs or changes that were acknowledged are missing, so nothing can be stored and no job starts."
        hint = "gputui state repair    # lists the losses, then asks"
        yield fail("queue", f"{error.where}: {error.what}", why, hint)
    else:
        for notice in (notice for notice in snapshot.notices if notice.halts):
            hint = "gputui serve    # restart it with this gputui if an older one runs"
            yield fail("scheduler", notice.text, "The scheduler says so itself; running jobs continue.", hint)


def _space(path: Path) -> DoctorCheck:
    space = os.statvfs(path)
    return checks.of_space(space.f_bavail * space.f_frsize, space.f_favail if space.f_files else None, str(path))


def _of_runtimes(options: Options, reading: ProbeReading) -> Iterator[DoctorCheck]:
    gpus, store_id, away = present_gpus(reading), "0" * 12, ""
    if bootstrap.has_queue(options):  # its own jobs are no guests
        with suppress(StoreError), closing(bootstrap.open_store(options)) as store:
            store_id = store.store_id
    for runtime in adapters.make_runtimes(options, store_id):
        try:
            status = runtime.check()
            if status.up and status.capability.foreign:
                runtime.foreign()  # after which it knows of the jobs of other queues
                status = runtime.status()
        finally:
            runtime.close()
        host = engine.look(status.gpus) if status.gpus else None
        away = status.gpus.elsewhere if status.gpus else away
        if away and RUNTIMES.get(status.name):
            words = f"no host jobs: they are processes of this machine, and this queue's jobs run on {away}"
            status = replace(status, text=words)
        service = host.service if host else service_at(status.address, os.geteuid(), away)
        yield from engine.of_runtime(status, bool(gpus) and not reading.machine, service)
        if limited := engine.of_mounts(options.settings.policy.allow, status):
            yield limited
        if status.gpus and (refused := engine.of_gpus(status.gpus, gpus, reading.machine)):
            yield refused
        elif status.gpus and options.probe.simulated is None:
            yield engine.of_gpu_access(status.gpus, host, service)


def _failed(name: str, error: GputuiError | OSError) -> DoctorCheck:
    if isinstance(error, GputuiError):
        return DoctorCheck(name, CheckLevel.FAIL, error.without_hint, error.hint or "")
    return DoctorCheck(name, CheckLevel.FAIL, f"{error.filename}: {error.strerror}" if error.filename else str(error))


def register(options: Options, *, ask: bool) -> int:
    host = _host(options)
    change = engine.registration(host.settings_file)
    if change is None:
        terminal.echo(f"{host.settings_file}: runtime nvidia is registered already; nothing to change")
        _say_what_is_left(host)
        return 0
    for line in change.diff:
        terminal.echo(plain(line))
    if ask:
        if not terminal.is_tty(terminal.IN):
            raise GputuiError("cannot ask: standard input is not a terminal", hint="--yes writes it without asking")
        if not click.confirm(f"Write this to {host.settings_file}?"):
            terminal.echo("nothing was changed")
            return 1
    backup = engine.write(change, bootstrap.clock().now())
    terminal.echo(f"wrote {change.path}" + (f"; the file as it was: {backup}" if backup else ""))
    _say_what_is_left(host)
    return 0


def _host(options: Options) -> EngineHost:
    """Return the engine's machine; raises GputuiError where it is uncertain whose settings file is meant.

    An engine at Docker's default address that does not answer is assumed to be the one of this machine's service.
    """
    status = _docker_status(adapters.in_haste(options))
    environ = terminal.environ()
    is_named = environ.get("DOCKER_HOST") or environ.get("DOCKER_CONTEXT") or options.settings.runtime.docker_host
    uid = None if is_named or os.geteuid() else bootstrap.sudo_uid(environ)
    if uid is not None and (own := engine.own_engine(uid)):  # sudo drops DOCKER_HOST, and root has contexts of its own
        name = user_name(uid, "uid ")
        hint = f"for {name}'s: gputui doctor --fix, without sudo\n"
        hint += "for the machine's: sudo DOCKER_HOST=unix:///var/run/docker.sock gputui doctor --fix"
        raise GputuiError(f"{name} uses the engine {own}, and root the one of the machine", hint=hint)
    if status.gpus is None:
        service = service_at(status.address, os.geteuid())
        if not status.address or service != SYSTEM:
            what = "the engine does not answer, so its settings file is not known"
            raise GputuiError(what, where=status.address or status.text, hint=status.hint or service.start)
        process = engine.process_behind(status.address)
        toolkit = engine.toolkit_of(process)
        return EngineHost(toolkit, settings_file=process.settings_file, service=process.service(status.address))
    if status.gpus.is_podman:
        hint = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        raise GputuiError("Podman has no daemon.json", hint=hint)
    host = engine.look(status.gpus)
    if host is None and status.gpus.is_local:
        hint = "run gputui doctor --fix as the user who runs the engine, or as root"
        raise GputuiError("the engine's process cannot be seen from here", where=status.gpus.address, hint=hint)
    if host is None:
        hint = f"on {status.gpus.elsewhere}: gputui doctor --fix, or sudo nvidia-ctk runtime configure --runtime=docker"
        raise GputuiError("the engine runs on another machine", where=status.gpus.address, hint=hint)
    if host.service.uid not in {0, os.geteuid()}:
        owner = user_name(host.service.uid, "uid ")
        hint = f"run gputui doctor --fix as {owner}, without sudo"
        raise GputuiError(f"the engine and its settings belong to {owner}", where=status.gpus.address, hint=hint)
    return host


def _docker_status(options: Options) -> RuntimeStatus:
    for runtime in adapters.make_runtimes(options, "0" * 12):
        try:
            if runtime.name == "docker":
                return runtime.check()
        finally:
            runtime.close()
    raise GputuiError("--fix is for Docker engines", where="--runtime", hint="gputui --runtime docker doctor --fix")


def _say_what_is_left(host: EngineHost) -> None:
    if not any(path.endswith("/nvidia-container-runtime") for path in host.toolkit):
        terminal.echo(f"nvidia-container-runtime is not installed yet: {INSTALL}")
    terminal.echo(f"to have the engine read its settings: {host.apply}")
    if not host.knows_hook:
        terminal.echo("(gputui runs the jobs of ended containers again)")
