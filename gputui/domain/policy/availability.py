"""Availability of GPUs: one is free only if the store, the containers, the driver and the operator all say so.

Unknown is a separate state and never counts as free (guarantee 3 of the design).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import EngineGpus, ForeignContainer, RuntimeStatus
from gputui.domain.gpu import (
    Gpu,
    GpuProcess,
    GpuSample,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    ProbeCode,
    ProbeReading,
    Sharer,
)
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Controls, Unreadable
from gputui.domain.text import format_duration, format_size, listed


class MeasuredUse(Struct, frozen=True):
    used: int = 0
    """Memory in bytes."""
    is_known: bool = True
    """False: the driver does not report it for one of its processes."""


def measure_use(sample: GpuSample | None, owner: Callable[[GpuProcess], JobId | None]) -> dict[JobId, MeasuredUse]:
    found: dict[JobId, MeasuredUse] = {}
    for process in (sample.processes or ()) if sample else ():
        job_id = owner(process)
        if job_id is not None:
            before = found.get(job_id, MeasuredUse())
            known = before.is_known and process.memory is not None
            found[job_id] = MeasuredUse(before.used + (process.memory or 0), known)
    return found


def sharers(jobs: Iterable[Job], uses: dict[JobId, MeasuredUse]) -> tuple[Sharer, ...]:
    """Return the memory that each job counts with; empty unless all of them share."""
    held = tuple(jobs)
    if not all(job.spec.gpus.promised for job in held):
        return ()
    return tuple(Sharer(job.id, max(job.spec.gpus.promised, uses.get(job.id, MeasuredUse()).used)) for job in held)


AWAITED = "waiting for a reading taken since its last job ended"
UNANSWERED = "Docker does not answer, so other containers cannot be seen"
UNASKED = "asking for other containers"
NOT_ITS_ENGINE = "Docker here is not this queue's engine, so other containers cannot be seen"
UNCUT = "in MIG mode without instances: make some with nvidia-smi mig -cgi, or end it with nvidia-smi -mig 0"
UNLISTED = "its driver has no list of processes (scheduler.need_process_lists = false accepts that)"


class Evidence(Struct, frozen=True):
    """All facts that decide whether a GPU is free."""

    reading: ProbeReading
    store_id: str
    jobs: tuple[Job, ...] = ()
    """Jobs that hold GPUs."""
    controls: Controls = Controls()
    unreadable: tuple[Unreadable, ...] = ()
    """Jobs that cannot be read and may hold GPUs."""
    foreign: tuple[ForeignContainer, ...] | None = ()
    """Foreign containers; None: they are not known, so other users of the GPU are unknown."""
    unseen: str = UNANSWERED
    """Reason why they are not known."""
    freed_at: Mapping[str, datetime] = field(default_factory=dict)
    """Time at which each GPU was last released; an older reading still shows its last job."""
    sessions: Mapping[int, JobId] = field(default_factory=dict)
    """Session ids of host jobs, for processes whose environment cannot be read."""
    idle_since: Mapping[str, datetime] = field(default_factory=dict)
    """Time since which the jobs of each idle GPU have not used it."""


def gpu_views(evidence: Evidence, settings: SchedulerSettings, now: datetime) -> tuple[GpuView, ...]:
    """Return a view of each GPU, in the driver's order."""
    by_gpu: dict[str, tuple[Job, ...]] = {}
    for job in evidence.jobs:
        for uuid in job.gpus:
            by_gpu[uuid] = (*by_gpu.get(uuid, ()), job)
    boards = {gpu.uuid: gpu.mig_parent or gpu.uuid for gpu in evidence.reading.gpus}
    on_board: dict[str, set[JobId]] = {}
    for uuid, jobs in by_gpu.items():
        on_board.setdefault(boards.get(uuid, uuid), set()).update(job.id for job in jobs)
    claims: dict[str, tuple[ForeignContainer, ...]] = {}
    for container in evidence.foreign or ():
        for uuid in resolve_devices(container.devices, evidence.reading.gpus):
            claims[uuid] = (*claims.get(uuid, ()), container)
    rows = [
        _view(
            gpu,
            evidence,
            settings,
            now,
            by_gpu.get(gpu.uuid, ()),
            claims.get(gpu.uuid, ()),
            on_board.get(boards[gpu.uuid], set()),
        )
        for gpu in evidence.reading.gpus
    ]
    return (*rows, *(_unseen(uuid, jobs) for uuid, jobs in by_gpu.items() if uuid not in boards))


def why_unseen(runtimes: Iterable[RuntimeStatus]) -> str:
    """Return why the containers of runtimes that were asked are not known."""
    return NOT_ITS_ENGINE if any(each.short and not each.up for each in runtimes) else UNANSWERED


def _unseen(uuid: str, jobs: tuple[Job, ...]) -> GpuView:
    """Return the view of a GPU that jobs hold but the probe does not list: a missing driver must not hide it."""
    why = "the driver does not list it"
    return GpuView(
        Gpu(uuid, -1),
        GpuState.ALLOCATED,
        Health(HealthCode.UNKNOWN, why),
        why=_held_by(jobs),
        job_id=jobs[0].id,
        holders=tuple(map(_job_holder, jobs)),
        stale=True,
        job_ids=tuple(job.id for job in jobs),
        sharers=sharers(jobs, {}),
        closed=why,
    )


def _view(
    gpu: Gpu,
    evidence: Evidence,
    settings: SchedulerSettings,
    now: datetime,
    jobs: tuple[Job, ...],
    claims: tuple[ForeignContainer, ...],
    invited: Set[JobId],
) -> GpuView:
    """Return the view of a GPU; `invited` are the jobs that hold it or a part of its board."""
    sample = evidence.reading.samples.get(gpu.uuid)
    age = max(now - sample.sampled_at, timedelta(0)) if sample else None
    stale = age is None or age > settings.stale_after
    processes = (sample.processes or ()) if sample else ()
    found = ((process.pid, process_owner(process, evidence)) for process in processes)
    owners = {pid: job_id for pid, job_id in found if job_id is not None}
    at_home = {pid for pid, job_id in owners.items() if job_id in invited}
    strangers = _strangers(sample, at_home, settings)
    named = {process.pid: _named_job(owners[process.pid], evidence) for process in strangers if process.pid in owners}
    share = any(job.spec.gpus.promised for job in jobs)
    uses = measure_use(sample, lambda process: owners.get(process.pid)) if share else {}
    # for a job of unknown use, at most its promised memory
    known = ((job, uses[job.id]) for job in jobs if job.id in uses)
    used = sum(use.used if use.is_known else max(use.used, job.spec.gpus.promised) for job, use in known)
    stale_for = age if stale else None
    state, why = _judge(gpu, sample, evidence, settings, claims, strangers, named, stale_for, used)
    if sample is None or (stale and sample.health.code is HealthCode.OK):
        health = Health(HealthCode.UNKNOWN, evidence.reading.status.text or "no reading")
    else:
        health = sample.health
    view = GpuView(
        gpu=gpu,
        state=state,
        health=health,
        why=why,
        sample=sample,
        age=age,
        stale=stale,
        holders=_holders(jobs, claims, sample, strangers, named, owners, uses),
        drain=evidence.controls.drains.get(gpu.uuid),
        process_jobs=owners,
        trespassers=tuple(sorted({owners[pid] for pid in named})),
        idle_since=evidence.idle_since.get(gpu.uuid),
    )
    if not jobs:
        return view
    return replace(  # other reasons against it also close it to sharing jobs
        view,
        state=GpuState.ALLOCATED,
        why=_held_by(jobs),
        job_id=jobs[0].id,
        job_ids=tuple(job.id for job in jobs),
        sharers=sharers(jobs, uses),
        closed=next((f"job {job.shown_id} does not share it" for job in jobs if not job.spec.gpus.promised), why),
    )


def _held_by(jobs: tuple[Job, ...]) -> str:
    return f"job {jobs[0].shown_id}" if len(jobs) == 1 else f"jobs {listed(job.shown_id for job in jobs)}"


def _judge(
    gpu: Gpu,
    sample: GpuSample | None,
    evidence: Evidence,
    settings: SchedulerSettings,
    claims: tuple[ForeignContainer, ...],
    strangers: tuple[GpuProcess, ...],
    named: Mapping[int, str],
    stale_for: timedelta | None,
    accounted_for: int,
) -> tuple[GpuState, str]:
    """Return the state apart from jobs, which use `accounted_for` bytes, and why it is not FREE.

    The most important reason for an operator comes first.
    """
    if sample is not None and not sample.health.is_schedulable:
        return GpuState.DRAINED, sample.health.text
    if drain := evidence.controls.drains.get(gpu.uuid):
        return GpuState.DRAINED, f"drained by {drain.by}: {drain.reason}" if drain.reason else f"drained by {drain.by}"
    if kept := next((entry for entry in evidence.unreadable if gpu.uuid in entry.gpus), None):
        return GpuState.UNKNOWN, f"{kept.kind} {kept.key}, which cannot be read, may hold it"
    if gpu.mig_enabled:
        is_cut = any(other.mig_parent == gpu.uuid for other in evidence.reading.gpus)
        return GpuState.DRAINED, "cut into MIG instances, which are scheduled instead" if is_cut else UNCUT
    if evidence.reading.status.code is not ProbeCode.OK:
        return GpuState.UNKNOWN, evidence.reading.status.text
    if sample is None or stale_for is not None:
        return GpuState.UNKNOWN, f"its last reading is {format_duration(stale_for)} old" if sample else "not read yet"
    if claims:
        return GpuState.FOREIGN, f"in use by container {claims[0].name}"
    return _judge_use(gpu, sample, evidence, settings, strangers, named, accounted_for)


def _judge_use(
    gpu: Gpu,
    sample: GpuSample,
    evidence: Evidence,
    settings: SchedulerSettings,
    strangers: tuple[GpuProcess, ...],
    named: Mapping[int, str],
    accounted_for: int,
) -> tuple[GpuState, str]:
    if sample.processes_at is None or (sample.processes is None and sample.lists_processes):
        return GpuState.UNKNOWN, "its process list cannot be read"
    if sample.processes is None and settings.need_process_lists:
        return GpuState.UNKNOWN, UNLISTED
    freed_at = evidence.freed_at.get(sample.uuid)
    if freed_at is not None and min(sample.sampled_at, sample.processes_at) <= freed_at:
        return GpuState.UNKNOWN, AWAITED
    if strangers:
        first = strangers[0]
        if first.pid in named:
            return GpuState.FOREIGN, f"in use by {named[first.pid]}, which does not hold it (pid {first.pid})"
        return GpuState.FOREIGN, f"process {first.pid} ({first.command or 'unknown'}) of {first.user or 'unknown'}"
    if evidence.foreign is None:
        return GpuState.UNKNOWN, evidence.unseen
    if sample.memory_used is None:  # a GPU without memory of its own has no such figure
        return (GpuState.FREE, "") if gpu.unified else (GpuState.UNKNOWN, "its memory cannot be read")
    ignored = (each.memory or 0 for each in sample.processes or () if each.is_any_of(settings.ignore_processes))
    unknown = sample.memory_used - accounted_for - sum(ignored)
    if unknown > settings.memory_floor:
        return GpuState.FOREIGN, f"{format_size(unknown)} of its memory is used by an unknown process"
    return GpuState.FREE, ""


def _strangers(
    sample: GpuSample | None, at_home: Container[int], settings: SchedulerSettings
) -> tuple[GpuProcess, ...]:
    """Return compute processes of no job that holds it; graphics ones too if they use much memory together."""
    others = [
        process
        for process in (sample.processes or () if sample else ())
        if process.pid not in at_home and not process.is_any_of(settings.ignore_processes)
    ]
    drawing = sorted((process for process in others if not process.compute), key=lambda each: -(each.memory or 0))
    much = min(sum(process.memory or 0 for process in drawing), (sample.memory_used or 0) if sample else 0)
    return (*(process for process in others if process.compute), *(drawing if much > settings.memory_floor else ()))


def _named_job(job_id: JobId, evidence: Evidence) -> str:
    """Return `job 7 train`."""
    job = next((job for job in evidence.jobs if job.id == job_id), None)
    return f"job {job.shown_id} {job.name}" if job else f"job {job_id}"


def process_owner(process: GpuProcess, evidence: Evidence) -> JobId | None:
    """Return the running job that a process belongs to, by container, tag or session; None: it is foreign."""
    for job in evidence.jobs:
        attempt = job.attempt
        if attempt is None:
            continue
        if process.container_id is not None and process.container_id == attempt.container_id:
            return job.id
        # anybody may set a variable that says so
        may_be_its = job.submitted_uid is None or process.user in {None, "root", job.submitted_by}
        if process.attempt == f"{evidence.store_id}:{job.id}:{attempt.number}" and may_be_its:
            return job.id
    return evidence.sessions.get(process.session) if process.session is not None else None


def resolve_devices(devices: Iterable[str], gpus: tuple[Gpu, ...]) -> frozenset[str]:
    """Return the UUIDs for device names in containers' requests: `all`, `0`, `GPU-…`, `minor:3`.

    An index means a whole GPU with all its MIG instances; `1:0` means an instance, which only its UUID identifies here,
    so it counts as the whole GPU. An unknown name means nothing.
    """
    found: set[str] = set()
    for device in devices:
        found.update(gpu.uuid for gpu in gpus if _means(device, gpu))
    parents = found & {gpu.uuid for gpu in gpus if gpu.mig_parent is None}
    found.update(gpu.uuid for gpu in gpus if gpu.mig_parent in parents)
    found.update(gpu.mig_parent for gpu in gpus if gpu.uuid in found and gpu.mig_parent)
    return frozenset(found)


def _means(device: str, gpu: Gpu) -> bool:
    if device == "all":
        return True
    if device.startswith("minor:"):
        return gpu.mig_parent is None and str(gpu.minor) == device[6:]
    if device.partition(":")[0].isdigit():
        return gpu.mig_parent is None and str(gpu.index) == device.partition(":")[0]
    return len(device) >= 8 and gpu.uuid.startswith(device)


def _holders(
    jobs: tuple[Job, ...],
    claims: tuple[ForeignContainer, ...],
    sample: GpuSample | None,
    strangers: tuple[GpuProcess, ...],
    named: Mapping[int, str],
    owners: Mapping[int, JobId],
    uses: Mapping[JobId, MeasuredUse],
) -> tuple[Holder, ...]:
    holders = []
    for job in jobs:
        # all memory in use while it is alone there, else the figure of the process list
        memory = sample.memory_used if sample else None
        if sample is not None and len(jobs) > 1:
            use = uses.get(job.id, MeasuredUse())
            memory = use.used if use.is_known and sample.processes is not None else None
        holders.append(_job_holder(job, memory))
    holders += [
        Holder("container", c.name, c.user, container_id=c.id, image=c.image or None, since=c.started_at)
        for c in claims
    ]
    known = {c.id for c in claims}
    holders += [
        Holder(
            "process",
            named.get(p.pid) or p.command or f"pid {p.pid}",
            user=p.user,
            pid=p.pid,
            container_id=p.container_id,
            memory=p.memory,
            job_id=owners.get(p.pid),
            since=p.started_at,
        )
        for p in strangers
        if p.container_id not in known
    ]
    return tuple(holders)


def _job_holder(job: Job, memory: int | None = None) -> Holder:
    attempt = job.attempt
    container_id = attempt.container_id if attempt else None
    since = attempt.started_at if attempt else None
    return Holder("job", job.name, user=job.spec.tenant, container_id=container_id, memory=memory, since=since)


CDI_KIND = "nvidia.com/gpu"
_EVERYTHING = "all"
_GENERATE = "sudo nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"


class EngineRefusal(Struct, frozen=True):
    """Obstacle that keeps jobs with GPUs from starting in containers, and its remedy."""

    text: str
    hint: str
    """Commands or steps, a line each."""

    @property
    def sentence(self) -> str:
        return f"{self.text}; {self.hint.splitlines()[0]}"


def present_gpus(reading: ProbeReading) -> tuple[Gpu, ...]:
    """Return the GPUs of a reading except lost ones, which the engine does not know either."""
    lost = {uuid for uuid, sample in reading.samples.items() if sample.health.code is HealthCode.LOST}
    return tuple(gpu for gpu in reading.gpus if gpu.uuid not in lost)


def engine_refusal(engine: EngineGpus, gpus: Sequence[Gpu], machine: str = "") -> EngineRefusal | None:
    """Return why no container can be given any of these GPUs, of `machine` if it is another; None when they can."""
    if engine.owner:
        text = f"{engine.elsewhere} has a gputui queue of its own, which gives out its GPUs: {engine.owner}"
        scheme, _, place = engine.address.partition("://")
        host = place.partition("/")[0] if scheme == "ssh" else engine.elsewhere  # ssh may know it by another name
        hint = f"submit there: `gputui --on ssh://{host}`\nor share them: runtime.as_guest = true"
        return EngineRefusal(text, hint)
    if gpus and bool(machine) != bool(engine.elsewhere):
        here = "this machine"
        text = f"the GPUs that are read are those of {machine or here}, and the engine has those of"
        return EngineRefusal(f"{text} {engine.elsewhere or here}", "start gputui again, without --probe")
    if engine.mode == "none":
        if engine.is_podman:
            return EngineRefusal(
                "Podman before 5.4 ignores requests for GPUs", "install Podman 5.4 or newer, or Docker"
            )
        return EngineRefusal("the engine is too old to give GPUs to containers", "install Docker 19.03 or newer")
    if engine.mode == "cdi" and engine.cdi_devices is not None and gpus:
        known = _known(engine)
        missing = [gpu for gpu in _usable(gpus) if _name(gpu, known, gpus) is None]
        if not missing or _knows_only_all(engine, gpus):
            return None
        listed = ", ".join(f"{CDI_KIND}={name}" for name in sorted(known)) or "none"
        if len(missing) == 1:
            words = f"GPU {_number(missing[0])} ({missing[0].uuid}) has"
        else:
            words = f"GPUs {', '.join(map(_number, missing))} have"
        return EngineRefusal(f"{words} no CDI device that fits: the engine lists {listed}", _GENERATE)
    return None


class EngineSupport(Struct, frozen=True):
    """Ability of an engine to give GPUs to containers."""

    refusal: EngineRefusal | None = None
    """Obstacle for every job; None: there is none."""
    together: int = 0
    """Number of GPUs that the engine can only give all together; 0: it can give each one separately."""

    @property
    def is_full(self) -> bool:
        return self.refusal is None and not self.together

    def refuses(self, request: GpuRequest) -> EngineRefusal | None:
        """Return why a container cannot be given the GPUs of this request; None when it can."""
        asked = max(request.minimum, len(request.devices))
        if not asked and not request.everything:
            return None
        if self.refusal or not self.together or request.everything or asked == self.together:
            return self.refusal
        return EngineRefusal(f"the engine's CDI devices name only all {self.together} GPUs together", _GENERATE)


def engine_support(engine: EngineGpus | None, gpus: Sequence[Gpu], machine: str = "") -> EngineSupport:
    """Return the engine's ability to give these GPUs to containers; None: nothing is known about the engine."""
    if engine is None:
        return EngineSupport()
    found = engine_refusal(engine, gpus, machine)
    return EngineSupport(found, len(_whole(gpus)) if found is None and _knows_only_all(engine, gpus) else 0)


def cdi_names(engine: EngineGpus, gpus: Sequence[Gpu], given: Sequence[str]) -> tuple[str, ...]:
    """Return the CDI names of the GPUs with these UUIDs; empty if the engine does not use CDI.

    For missing names the UUIDs are returned, which the engine then refuses.
    """
    if engine.mode != "cdi" or not given:
        return ()
    if engine.cdi_devices is None:
        return tuple(given)
    known = _known(engine)
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = tuple(_name(by_uuid[uuid], known, gpus) if uuid in by_uuid else None for uuid in given)
    if None not in found:
        return tuple(name for name in found if name is not None)
    if _EVERYTHING in known and {gpu.uuid for gpu in _whole(gpus)} == set(given):
        return (_EVERYTHING,)
    return tuple(given)


def _knows_only_all(engine: EngineGpus, gpus: Sequence[Gpu]) -> bool:
    known = _known(engine)
    if engine.mode != "cdi" or engine.cdi_devices is None or _EVERYTHING not in known:
        return False
    whole = _usable(gpus) == _whole(gpus)
    return whole and any(_name(gpu, known, gpus) is None for gpu in _usable(gpus))


def _known(engine: EngineGpus) -> frozenset[str]:
    prefix = f"{CDI_KIND}="
    return frozenset(name.removeprefix(prefix) for name in engine.cdi_devices or () if name.startswith(prefix))


def _name(gpu: Gpu, known: Collection[str], gpus: Sequence[Gpu]) -> str | None:
    """Return its CDI name: its UUID, else its number, else `all` if it is the only GPU; None if it has none."""
    if gpu.uuid in known:
        return gpu.uuid
    number = _number(gpu)
    if number in known:
        # after a loss the driver renumbers, CDI does not: they agree while CDI numbers as many GPUs as there are
        here = [_number(one) for one in _usable(gpus)]
        numbered = {name for name in known if name.replace(":", "").isdigit()}
        cut = {str(one.index) for one in gpus if one.mig_enabled}
        if len(set(here)) == len(here) and numbered - cut == set(here) - cut:
            return number
    return _EVERYTHING if _EVERYTHING in known and [gpu.uuid] == [one.uuid for one in _usable(gpus)] else None


def _number(gpu: Gpu) -> str:
    return str(gpu.index) if gpu.mig_parent is None else f"{gpu.index}:{gpu.mig_index}"


def _usable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that jobs can get: whole GPUs, and instances of divided ones."""
    return [gpu for gpu in gpus if not gpu.mig_enabled]


def _whole(gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.mig_parent is None]
