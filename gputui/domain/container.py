"""Values that the engine and a runtime exchange. A host process is also called a container here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import Cause
from gputui.domain.job_spec import JobId, JobSpec, PublishedPort
from gputui.domain.telemetry import Consumption


class HeldMount(Struct, frozen=True):
    """Directory of the host that the scheduler holds open until the container has started."""

    descriptor: str
    """Path by which the engine opens the directory, whatever stands in its place meanwhile."""
    path: str
    """Its path when it was opened."""
    target: str
    is_readonly: bool


class Box(Struct, frozen=True):
    """Limits of a plain user's container, which is that user's account in a box: see `policy.admission`.

    A host job of such a user has one too, but only that user's account is around it.
    """

    pids: int
    memory: int | None = None
    cpus: float | None = None
    shm_size: int | None = None
    """Limits, unless the job asks for less; None: no limit."""
    is_image_user: bool = False
    """True if it runs as the user that the image or the job names: an operator allows that for this image."""


DEFAULT_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
"""Variables that a job has unless it sets them: without this, what Python prints is seen after 8 KiB or at its end."""


class Launch(Struct, frozen=True):
    """Request to a runtime to create one attempt."""

    store_id: str
    job_id: JobId
    attempt: int
    spec: JobSpec
    gpus: tuple[str, ...]
    """UUIDs; empty: the job must see no GPU at all."""
    array_index: int | None = None
    gpu_names: tuple[str, ...] = ()
    """Names by which the engine's CDI specifications know these GPUs; empty: their UUIDs."""
    run_as: int | None = None
    """Uid of its account. None: a host process runs as the scheduler's user, a container as in its image."""
    submitter: int | None = None
    """Uid of its proven submitter, recorded with the container; None where there is no proof."""
    box: Box | None = None
    """None: the submitter is an operator."""
    held: tuple[HeldMount, ...] = ()
    """Mounts that are no longer in the spec, because the engine must not resolve their paths again."""

    @property
    def name(self) -> str:
        """Name from store, job and attempt, so that a second creation conflicts instead of running it twice."""
        return f"gputui-{self.store_id}-{self.job_id}-{self.attempt}"

    @property
    def promised(self) -> int:
        """Bytes of each shared GPU that it may use, passed to it as GPUTUI_GPU_MEMORY; 0: the whole GPU."""
        return self.spec.gpus.promised if self.gpus else 0

    @property
    def tag(self) -> str:
        """Value of GPUTUI_ATTEMPT inside the attempt, which distinguishes its processes from foreign ones."""
        return f"{self.store_id}:{self.job_id}:{self.attempt}"


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class ContainerRecord(Struct, frozen=True):
    """A container of this store, as the runtime reports it."""

    id: str
    job_id: JobId
    attempt: int
    state: ContainerState
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it was created with."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Cause of its end; None if it succeeded or still runs."""
    pid: int | None = None
    """Process id of its first process, or of a host attempt's session leader."""
    ports: tuple[PublishedPort, ...] = ()
    is_suspended: bool = False
    """True if its processes are stopped."""
    consumption: Consumption | None = None
    """Total resources used; None while it runs, and if its control group is gone."""
    notes: tuple[str, ...] = ()
    """Sentences about an end that its cause does not tell."""
    boot: str = ""
    """Id of the boot in which it was created, of the machine of who did so; empty: not known."""


class ForeignContainer(Struct, frozen=True):
    """A running container that does not belong to this store and has requested GPUs."""

    id: str
    name: str
    user: str | None
    devices: tuple[str, ...]
    """Devices that it requested, as written: `all`, `0`, `GPU-…`, `MIG-…`, `minor:3`."""
    image: str = ""
    started_at: datetime | None = None
    store: str = ""
    """Id of another queue whose job it is; empty: it is none's."""
    guest_of: str = ""
    """Machine from which that queue uses this engine as a guest; empty: it is not known to be one."""


class RuntimeFeatures(Struct, frozen=True):
    """Features that a runtime supports. A missing feature is a value here, not an exception later."""

    images: bool = False
    limits: bool = False
    foreign: bool = False


class EngineGpus(Struct, frozen=True):
    """Ability of a container engine to give GPUs to containers. `doctor` judges it."""

    mode: str = "nvidia"
    """`nvidia` (device requests, as from `--gpus`), `cdi`, or `none`: the engine ignores requests for GPUs."""
    runtimes: tuple[tuple[str, str], ...] = ()
    """Name and path of each registered runtime, as reported by the engine."""
    cdi_devices: tuple[str, ...] | None = None
    """Device names that the engine lists; None: it lists none, or is too old to list any."""
    is_local: bool = False
    """True if the engine runs on this machine, so that its files can be read."""
    address: str = ""
    """URL of the engine."""
    machine: str = ""
    """Name of its machine, as the engine tells it."""
    owner: str = ""
    """Sign that its machine has a queue of its own, beside which this one is a guest; empty: there is none."""
    is_rootless: bool = False
    is_podman: bool = False
    warnings: tuple[str, ...] = ()
    """Sentences for the console about GPUs of this engine; `doctor` derives its own from the facts above."""

    @property
    def elsewhere(self) -> str:
        """Name of its machine if that is another one; empty: it runs on this machine."""
        return "" if self.is_local else self.machine or self.address

    @property
    def nvidia_path(self) -> str | None:
        return dict(self.runtimes).get("nvidia")


class RuntimeStatus(Struct, frozen=True):
    """State of a runtime."""

    name: str
    """Name of the runtime, as in `RUNTIMES`."""
    up: bool
    text: str
    """Description of the runtime; while it is down, the problem and its remedy."""
    version: str | None = None
    since: datetime | None = None
    warnings: tuple[str, ...] = ()
    """Sentences for `doctor` and the console, such as "live-restore is off.

    …; set …": problem, reason, and after a semicolon the fix.
    """
    capability: RuntimeFeatures = RuntimeFeatures()
    asked: bool = True
    """True if the runtime has been asked; before that, "not up" is not an error."""
    gpus: EngineGpus | None = None
    """GPUs that the engine offers; None for a runtime without containers, and while the engine does not answer."""
    data_root: str = ""
    """Directory with the engine's images and containers, on its machine; empty: unknown, or it has none."""
    hint: str = ""
    """Advice for a runtime that is not up; the text ends with it in parentheses."""
    short: str = ""
    """The text in a few words, if it answers and is not up all the same."""
    address: str = ""
    """URL of the engine; empty without one, and where it is not known."""

    @property
    def all_warnings(self) -> tuple[str, ...]:
        return (*self.warnings, *(self.gpus.warnings if self.gpus else ()))


class Created(Struct, frozen=True):
    """A container that exists: newly made, or found under its name."""

    id: str
    adopted: bool = False
    notes: tuple[str, ...] = ()
    """Sentences about adjustments that were needed to create it: cpus clamped to the host's 2."""


class ProcessRow(Struct, frozen=True):
    """A process of a job; None stands for a value that could not be read."""

    pid: int
    """Process id on the engine's host."""
    user: str
    command: str
    cpu: float | None = None
    """CPU use in cores since the last reading; on a remote engine, since the process began."""
    memory: int | None = None
    """Resident memory in bytes."""
    age: timedelta | None = None
    """Time since the process began."""
    parent: int | None = None
    ticks: int | None = None
    """Start time in clock ticks since boot."""


class ExecRequest(Struct, frozen=True):
    """A command to run inside a running attempt."""

    command: tuple[str, ...]
    stdin: bool = False
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = "xterm"
    """Type of the terminal."""
    detach_keys: str = ""
    """Keys in the notation of docker's --detach-keys; the engine must use the same keys as gputui."""


class Shell(Struct, frozen=True):
    """Command that opens a shell in a job."""

    arguments: tuple[str, ...]
    where: str
    """Description of the place where the shell opens."""
    is_remote: bool = False
    """True if gputui runs on another machine, whose terminal shows its errors too."""


COLUMNS = "pid,user:32,pcpu,rss,etimes,args"
"""Columns to ask `ps -o` for."""


def process_rows(titles: Sequence[str], table: Iterable[Sequence[str]]) -> Iterator[ProcessRow]:
    """Yield the processes of a table with these titles; a `ps` without column options, like busybox's, has fewer."""
    for row in table:
        cells = dict(zip((title.upper() for title in titles), row, strict=False))
        figures: list[float | None] = []
        for title in ("RSS", "ELAPSED", "%CPU"):
            try:
                figures.append(float(cells[title]))
            except (KeyError, ValueError):
                figures.append(None)
        memory, age, cpu = figures
        yield ProcessRow(
            pid=int(cells["PID"]),
            user=cells.get("USER", cells.get("UID", "")),
            command=cells.get("COMMAND", cells.get("CMD", "")),
            cpu=None if cpu is None else cpu / 100,
            memory=None if memory is None else int(memory) * 1024,
            age=None if age is None else timedelta(seconds=age),
        )


def parse_ps(text: str) -> tuple[ProcessRow, ...]:
    """Return the processes in the output of `ps`, whose last column is the command; lines without a pid are skipped."""
    lines = text.split("\n")
    titles = lines[0].split()
    table = (line.split(None, len(titles) - 1) for line in lines[1:])
    return tuple(process_rows(titles, (row for row in table if row and row[0].isdigit())))


_SYSTEM_SETTINGS = "/etc/docker/daemon.json"
_SYSTEM_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_OF_USER = re.compile(r"(?:/var)?/run/user/(\d+)/")


class EngineService(Struct, frozen=True):
    """Where an engine keeps its settings, and the commands that control it, as they are told to users."""

    start: str
    restart: str
    reload: str
    """Makes it read its settings again, without ending a container."""
    status: str
    settings: str = ""
    """Path of its settings file; `~` is the home directory of `uid`. Empty: it has none, or it is not known."""
    uid: int = 0
    """User to whom the settings belong, on the engine's machine."""
    machine: str = ""
    """Name of the engine's machine; empty for this one."""

    @property
    def place(self) -> str:
        """Settings file for messages, with its machine."""
        file = self.settings or "the engine's daemon.json"
        return f"{file} on {self.machine}" if self.machine else file


def service_at(address: str, uid: int, machine: str = "") -> EngineService:
    """Return the service of the engine at that address; `machine` is the name of its machine if it is another."""
    url = address.removeprefix("http+")
    if machine or url.startswith("ssh://"):
        parts = urlsplit(url)
        path = parts.path.rstrip("/") if parts.scheme == "ssh" else ""  # it is that of the socket there
        host = machine or parts.netloc.rpartition("@")[2]
        account = int(found[1]) if (found := _OF_USER.match(path)) else uid
        there = service_at(f"unix://{path or _SYSTEM_SOCKETS[0]}", account)
        words = {name: f"on {host}: {getattr(there, name)}" for name in ("start", "restart", "reload", "status")}
        return replace(there, **words, machine=host)
    path = url.removeprefix("unix://")
    if path in {"", *_SYSTEM_SOCKETS}:
        return SYSTEM
    owner = int(found[1]) if (found := _OF_USER.match(path)) else 0
    if path.endswith("/podman.sock"):
        return systemd("podman.socket", owner, uid)
    if owner and path.endswith("/docker.sock"):
        return systemd("docker.service", owner, uid, "~/.config/docker/daemon.json")
    return by_hand(address)


def systemd(unit: str, owner: int = 0, uid: int = 0, settings: str = "") -> EngineService:
    """Return a unit of systemd, or of the service manager of the user `owner`, controlled by the user `uid`."""
    name, before, look = unit.removesuffix(".service"), "sudo systemctl", "systemctl"
    if owner:
        before = look = "systemctl --user"
    if owner and owner != uid:
        before = look = f"sudo -u '#{owner}' XDG_RUNTIME_DIR=/run/user/{owner} systemctl --user"
    return EngineService(
        start=f"{before} enable --now {name}",
        restart=f"{before} restart {name}",
        reload=f"{before} reload {name}",
        status=f"{look} status {name}",
        settings=settings,
        uid=owner,
    )


def by_hand(address: str, pid: int | None = None, settings: str = "", uid: int = 0) -> EngineService:
    """Return an engine that no known service runs, for example one started in a terminal."""
    which = f"the engine at {address}" + (f", process {pid}" if pid else "")
    sudo = "" if uid else "sudo "
    return EngineService(
        start=f"start the engine at {address}, or correct the address: DOCKER_HOST, `docker context ls`",
        restart=f"restart {which}",
        reload=f"{sudo}kill -HUP {pid}" if pid else f"send dockerd the signal HUP: {which}",
        status=f"does {which} run?",
        settings=settings,
        uid=uid,
    )


SYSTEM = systemd("docker.service", settings=_SYSTEM_SETTINGS)
"""The engine at Docker's default address."""
