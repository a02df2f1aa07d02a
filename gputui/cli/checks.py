"""The checks of `gputui doctor`: pure functions from facts to findings. Those of the engine are in `engine_checks`.

`gputui.cli.doctor` collects the facts. A new check is a function here that returns or yields a `DoctorCheck`, and a
line there.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from textwrap import shorten

from msgspec import Struct

from gputui.domain.access import EVERYBODY
from gputui.domain.cluster import ENGINES, Capability, Caps
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Gpu, GpuSample, GpuState, HealthCode, ProbeCode, ProbeReading
from gputui.domain.kept_data import BackupRecord, KeptData
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.text import format_duration, format_limit, format_size, plural
from gputui.engine.actions.admission import check_local_zone


class CheckLevel(StrEnum):
    """Result of a check. One `fail` makes doctor exit with 1: no job, or no job with GPUs, could start."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class DoctorCheck(Struct, frozen=True):
    """Finding of a check of `gputui doctor`: subject, result, reason and fix."""

    name: str
    """Subject, in one word where possible."""
    level: CheckLevel
    text: str
    """Sentence that says what was found."""
    hint: str = ""
    """Exact commands or file content that fix it, a line each; empty when all is well."""
    why: str = ""
    """Sentence that says why it matters; empty when all is well."""


def ok(name: str, text: str) -> DoctorCheck:
    return DoctorCheck(name, CheckLevel.OK, text)


def warn(name: str, text: str, why: str, hint: str) -> DoctorCheck:
    return DoctorCheck(name, CheckLevel.WARN, text, hint, why)


def fail(name: str, text: str, why: str, hint: str) -> DoctorCheck:
    return DoctorCheck(name, CheckLevel.FAIL, text, hint, why)


_NO_READING = "Without readings no GPU counts as free, so no job with GPUs starts."
_KERNEL_LOG = "sudo dmesg | grep -iE 'NVRM|Xid|nvidia' | tail -20"
ADVICE = {
    ProbeCode.NO_LIBRARY: "Debian: sudo apt install nvidia-driver    Ubuntu: sudo ubuntu-drivers install\n"
    "To try gputui without a GPU: gputui demo",
    ProbeCode.DRIVER_MISMATCH: "sudo reboot\n"
    "or, with nothing on the GPUs: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
    ProbeCode.DRIVER_NOT_LOADED: "sudo modprobe nvidia && nvidia-smi\n"
    "After a kernel update the module may need to be built again: sudo dkms autoinstall",
    ProbeCode.NO_PERMISSION: "ls -l /dev/nvidia*    # must be readable and writable for this user\n"
    'sudo usermod -aG video "$USER"    # if they belong to the group video; then log in again',
    ProbeCode.COUNT_FAILED: f"nvidia-smi\n{_KERNEL_LOG}\nsudo reboot",
    ProbeCode.NO_GPUS: f"lspci | grep -i nvidia\n{_KERNEL_LOG}",
    ProbeCode.STARTING: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.WEDGED_AT_START: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.WEDGED: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.SLOW: f"sudo nvidia-smi -pm 1    # persistence mode\n{_KERNEL_LOG}",
    ProbeCode.DIED: f"nvidia-smi\n{_KERNEL_LOG}",
    ProbeCode.UNKNOWN_ERROR: f"nvidia-smi    # on the host, not in a container\n{_KERNEL_LOG}\n"
    "sudo reboot    # when nvidia-smi fails on the host too; else restart the container: its devices were revoked",
    ProbeCode.BLOCKED: "systemctl show -p DevicePolicy -p DeviceAllow gputui    # must allow /dev/nvidia*\n"
    "docker restart CONTAINER    # where gputui runs in one",
    ProbeCode.RESET_REQUIRED: "sudo nvidia-smi --gpu-reset    # with nothing running on the GPUs\nsudo reboot",
    ProbeCode.GPU_LOST: f"{_KERNEL_LOG}\nsudo reboot",
    ProbeCode.FAILED: f"nvidia-smi\n{_KERNEL_LOG}\nsudo reboot",
    ProbeCode.UNREACHABLE: "docker info; nvidia-smi    # both must answer at once",
}
_REPAIRS = {
    HealthCode.LOST: "sudo reboot    # a lost GPU comes back with the host, or not at all",
    HealthCode.NEEDS_RESET: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it",
    HealthCode.XID: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it; else sudo reboot",
    HealthCode.ECC: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it",
    HealthCode.REMAP_FAILED: "nvidia-smi -q -d ROW_REMAPPER -i {index}    # the board must be replaced",
    HealthCode.REMAP_PENDING: "sudo nvidia-smi --gpu-reset -i {index}    # when nothing runs on it; no hurry",
    HealthCode.UNKNOWN: "nvidia-smi -q -i {index}\n" + _KERNEL_LOG,
}

_BY_SSH = "export DOCKER_HOST=ssh://{}    # its python3, 3.8 or newer, sees them"
_NOTES = (
    (
        "persistence mode is off",
        "The driver initialises the GPUs again for every reading and job, which takes seconds.",
        "sudo nvidia-smi -pm 1\nor for good: sudo systemctl enable --now nvidia-persistenced",
        "",
    ),
    (
        "GPU processes live in another PID namespace",
        "Processes of other people cannot be told from those of jobs.",
        "",
        "run gputui on the host, or its container with --pid=host",
    ),
    ("GPU processes of", "Processes of other people cannot be told from those of jobs.", "", _BY_SSH),
    ("users of", "Foreign processes are shown with the number of their user.", "", _BY_SSH),
)
"""Beginning of a probe's note, why it matters, and what to do on the machine with the GPUs, and here."""
_USUAL = SchedulerSettings()
PATIENCE = 8.0
"""Seconds that the driver may take to answer, and a reading of all GPUs."""


def _fix(reading: ProbeReading, there: str, here: str = "") -> str:
    """Return lines for this machine, and lines for that with the GPUs, with its name if it is another."""
    named = f"on {reading.machine}:\n{there}" if reading.machine and there else there
    return "\n".join(filter(None, (here, named)))


def of_probe(reading: ProbeReading, settings: SchedulerSettings = _USUAL) -> Iterator[DoctorCheck]:
    status, where = reading.status, f" on {reading.machine}" if reading.machine else ""
    if status.code is not ProbeCode.OK:
        hint = status.hint or _fix(reading, ADVICE.get(status.code, _KERNEL_LOG))
        yield fail("driver", status.text.removesuffix(f" ({status.hint})"), _NO_READING, hint)
        return
    if not reading.gpus:
        hint = _fix(reading, ADVICE[ProbeCode.NO_GPUS])
        yield fail("driver", f"no GPUs{where}, {versions(reading)}", _NO_READING, hint)
        return
    yield ok("driver", f"{plural(len(reading.gpus), 'GPU')}{where}, {versions(reading)}")
    for note in reading.notes:
        if reading.machine and note.startswith(f"the GPUs of {reading.machine} are read"):
            yield ok("readings", note)
            continue
        text, _, rest = note.partition(": ")
        for start, why, there, here in _NOTES:
            if note.startswith(start):
                hint = _fix(reading, there, here.format(reading.machine))
                yield warn("driver", note if reading.machine else text, why, hint)
                break
        else:
            if "never identified" not in note:
                yield warn("driver", text, rest, _fix(reading, _KERNEL_LOG))
    for gpu in reading.gpus:
        if (sample := reading.samples.get(gpu.uuid)) is None or sample.health.code is HealthCode.OK:
            continue
        health, name = sample.health, f"GPU {gpu.index}"
        text, repair = f"{health.code}: {health.reason}", _REPAIRS[health.code].format(index=gpu.index)
        if health.is_schedulable:
            yield warn(name, text, "Jobs still start on it.", _fix(reading, repair))
        else:
            reason = shlex.quote(shorten(health.text, 60, placeholder=" …"))
            drain = f"gputui drain {gpu.index} --reason {reason}    # until it is repaired"
            yield fail(name, text, "No job starts on it.", _fix(reading, repair, drain))
    # report GPUs in MIG mode without instances: jobs can be given neither them nor parts of them
    parents = {gpu.mig_parent for gpu in reading.gpus}
    empty = [gpu for gpu in reading.gpus if gpu.mig_enabled and gpu.uuid not in parents]
    if empty:
        hint = "".join(
            f"sudo nvidia-smi mig -i {gpu.index} -cgi PROFILE -C    # makes one; -lgip lists the profiles\n"
            f"sudo nvidia-smi -i {gpu.index} -mig 0    # or uses the GPU as a whole\n"
            for gpu in empty
        )
        text = f"MIG mode is on without any instance on {_named(empty)}"
        level = CheckLevel.FAIL if len(empty) == len(reading.gpus) else CheckLevel.WARN
        yield DoctorCheck("MIG", level, text, _fix(reading, hint.rstrip()), "No job starts on such a GPU.")
    yield from _of_lists(reading, settings)
    yield from _of_memory(reading)


def versions(reading: ProbeReading) -> str:
    driver = f"driver {reading.driver_version}" if reading.driver_version else "driver version unknown"
    return f"{driver}, CUDA {reading.cuda_version}" if reading.cuda_version else driver


def _usable(reading: ProbeReading) -> list[tuple[Gpu, GpuSample]]:
    found = [(gpu, reading.samples.get(gpu.uuid)) for gpu in reading.gpus if not gpu.mig_enabled]
    return [(gpu, sample) for gpu, sample in found if sample and sample.health.is_schedulable]


def _named(gpus: Iterable[Gpu]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def _of_lists(reading: ProbeReading, settings: SchedulerSettings) -> Iterator[DoctorCheck]:
    """Judge the process lists: a GPU whose processes are unknown is given to a job only if the site accepts that."""
    usable = _usable(reading)
    without = [gpu for gpu, sample in usable if sample.processes is None and not sample.lists_processes]
    if without:
        text = f"the driver has no list of processes on {_named(without)}, as under WSL 2"
        if settings.need_process_lists:
            hint = "need_process_lists = false    # under [scheduler]: judge by memory and containers alone"
            yield _unjudged("processes", text, hint, "processes are", is_all=len(without) == len(usable))
        else:
            why = "They are judged by memory and containers alone: a process that uses little memory is not seen."
            text = f"{text}; accepted by scheduler.need_process_lists"
            yield warn("processes", text, why, "gputui drain N    # for work of your own")
    unread = [(gpu, sample) for gpu, sample in usable if sample.processes is None and sample.lists_processes]
    if not unread:
        return
    named = _named(gpu for gpu, _ in unread)
    if all(sample.processes_at is None for _, sample in unread):
        text, hint = f"the driver has not listed the processes on {named} in time", _KERNEL_LOG
    else:
        text = f"the driver refuses to list the processes on {named}"
        hint = "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv    # shows the driver's own error\n"
        hint += "sudo gputui doctor    # when it works for root alone: run the scheduler as root\n"
        hint += "In a container: docker run --pid=host --gpus all …"
    yield _unjudged("processes", text, _fix(reading, hint), "processes are", is_all=len(unread) == len(usable))


def _of_memory(reading: ProbeReading) -> Iterator[DoctorCheck]:
    """Judge the memory: of a GPU without any of its own it is the machine's, else an unknown figure frees no GPU."""
    usable = _usable(reading)
    if unified := [gpu for gpu, _ in usable if gpu.unified]:
        total = format_size(unified[0].memory_total)
        text = f"{_named(unified)} uses the machine's memory ({total}), which --gpu-memory compares with"
        yield ok("memory", f"{text}; processes and containers show whether it is free")
    unread = [gpu for gpu, sample in usable if sample.memory_used is None and not gpu.unified]
    if unread:
        text = f"the memory of {_named(unread)} cannot be read"
        hint = "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv    # shows the driver's own error\n"
        hint += _KERNEL_LOG
        yield _unjudged("memory", text, _fix(reading, hint), "memory is", is_all=len(unread) == len(usable))


def _unjudged(name: str, text: str, hint: str, what: str, *, is_all: bool) -> DoctorCheck:
    why = f"A GPU whose {what} unknown never counts as free, so no job starts on it."
    return DoctorCheck(name, CheckLevel.FAIL if is_all else CheckLevel.WARN, text, hint, why)


_NAMED = 5
"""Users that are named."""


def of_answer(path: str, owner: str, user: str, role: str, silent_for: timedelta) -> DoctorCheck:
    """Judge what the owner of the queue tells; `owner` as in `serve of root, pid 4711,`."""
    name = "console" if owner.startswith("console") else "service"
    if silent_for:
        why = "It answers, and starts and ends no jobs."
        hint = "journalctl --unit gputui    # what it does; sudo systemctl restart gputui ends no job"
        if name == "console":
            hint = "quit it and start it again, or: gputui serve    # neither ends a job"
        return fail(name, f"{owner} has not scheduled for {format_duration(silent_for)}", why, hint)
    text = f"{owner} answers at {path}; {user} is {'an' if role == 'operator' else 'a'} {role}"
    if role == "viewer":
        why = "Viewers see the queue and the GPUs, and can submit nothing."
        hint = f'an operator adds "{user}" to users under [access] in /etc/gputui/config.toml'
        return warn(name, text, why, hint)
    return ok(name, text)


def of_silence(error: GputuiError) -> DoctorCheck:
    why = "Only the service has the queue; nothing can be submitted."
    return fail("service", error.without_hint, why, error.hint or "")


def of_access(settings: Settings, has_socket: bool) -> DoctorCheck | None:
    """Judge the settings of a queue with users; None if nothing is wrong with them."""
    users, group = settings.access.users, settings.store.group
    if group is not None:
        why = "Its members can do everything to all jobs, past all roles."
        text = f"store.group is set: the group {group} writes the files of the queue"
        return (fail if users else warn)("access", text, why, f"{_INSTALL} --convert")
    if users and not has_socket:
        who = "all accounts" if EVERYBODY in users else ", ".join(users[:_NAMED])
        why = "Their commands find no socket that they may open."
        return warn("access", f"{who} may use the queue, but gputui.socket is not installed", why, _INSTALL)
    return None


def of_engine_group(group: str, members: Collection[str]) -> DoctorCheck | None:
    if not members:
        return None
    named = ", ".join(sorted(members)[:_NAMED])
    named += f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    why = "Whoever may use the engine's socket has root's rights on the machine, past all rules of the queue."
    return warn("access", f"in the group {group}: {named}", why, f"sudo gpasswd --delete USER {group}")


_INSTALL = "sudo gputui install --users"


BORN = datetime.fromisoformat("2025-06-01T00:00:00+00:00")
"""A time before gputui was written; a clock that shows an earlier time is wrong."""
MANY_SECONDS = timedelta(seconds=5)
CLEAN_UP = timedelta(days=1, hours=3)
"""Time for which data may stay beyond its age: files are cut once a day."""
MISSED_BACKUP = timedelta(days=2)
"""Age of the last backup from which a daily one has been missed."""
LITTLE_SPACE = 1024**3
NO_SPACE = 64 * 1024**2
FEW_INODES = 1000
_SET_CLOCK = "sudo timedatectl set-ntp true"


def of_directory(path: str, mode: int, is_writable: bool) -> DoctorCheck:
    name, shown, quoted = "state", f"{path} has mode {mode:04o}", shlex.quote(path)
    if not is_writable:
        why = "Jobs can be neither submitted nor scheduled here."
        hint = f"gputui --state OTHER_DIRECTORY …\nor as its owner or root: ls -ld {quoted}"
        return fail(name, f"{shown} and cannot be written by this user", why, hint)
    if mode & 0o022:
        why = "Others could change every job, so no queue is opened there."
        hint = f"chmod go-w {quoted}\nor one of its own: gputui --state A_DIRECTORY_OF_ITS_OWN …"
        hint += f"\nor one that a group shared: sudo gputui --state {quoted} install --users --convert"
        return fail(name, f"{shown}: others may write there", why, hint)
    if mode & 0o055:
        why = "Other users can look into the directory, where the queue is kept with the environment of its jobs."
        return warn(name, f"{shown}: it is open to other users", why, f"chmod 0700 {quoted}")
    return ok(name, shown)


def of_history(sentences: Iterable[str]) -> Iterator[DoctorCheck]:
    why = "Lists of finished jobs and replays lack them; the queue does not need them."
    hint = "upgrade gputui if a newer version wrote them, else restore the history file from a backup"
    for sentence in sentences:
        yield warn("history", sentence, why, hint)


def of_kept(data: KeptData, now: datetime) -> DoctorCheck:
    """Report data of ended jobs beside its limits; the scheduler removes what is beyond them within hours."""
    most = f", limit {format_size(data.limits.max_size)}" if data.limits.max_size is not None else ""
    least = "at least " if data.counted is not None else ""
    size = format_size(data.size) + (" bytes" if data.size < 1024 else "")
    text = f"{least}{size} in {plural(data.files, 'file')}{most}"
    if data.oldest_at is not None:
        text += f"; oldest {format_duration(now - data.oldest_at)}"
        text += f", limit {format_limit(data.limits.max_age)}" if data.limits.max_age is not None else ""
    if data.counted is not None:
        text += f"; counted for {data.counted[0]:,} of {data.counted[1]:,} jobs"
    if not data.limits.are_set:
        return ok(data.kind, f"{text}; no limit set (store.{data.kind}_max_age, store.{data.kind}_max_size)")
    if not data.is_over(now, CLEAN_UP):
        return ok(data.kind, text)
    why = "The scheduler removes what is beyond the limit, except for jobs that wait or run."
    return warn(data.kind, f"{text}: more than the limit", why, "gputui serve    # it takes an hour at most")


def of_backup(record: BackupRecord | None, now: datetime, daily_since: datetime | None = None) -> DoctorCheck | None:
    """Report the result of the last backup into a directory; None if none was made, and none is due.

    `daily_since`: time at which the unit for daily backups was installed; None: it is not.
    """
    why = "If the disk fails, what was added since the last good backup is lost."
    if daily_since is not None and now - max(daily_since, record.at if record else daily_since) > MISSED_BACKUP:
        last = f"the last one was made {format_duration(now - record.at)} ago" if record else "none was made yet"
        hint = "systemctl status gputui-backup.timer gputui-backup.service\nsudo systemctl start gputui-backup.service"
        return warn("backup", f"gputui-backup.timer makes one a day, but {last}", why, hint)
    if record is None:
        return None
    if not record.problem:
        return ok("backup", f"{record.place}, {format_duration(now - record.at)} ago")
    return fail("backup", record.sentence, why, "gputui state verify    # then: gputui state repair")


def of_damage(sentences: Iterable[str]) -> Iterator[DoctorCheck]:
    why = "Jobs may be missing from the queue."
    hint = "gputui queue --all    # compare with what you expect; restore a backup if jobs are missing\n"
    hint += "then remove the .damaged file"
    for sentence in sentences:
        yield warn("queue", sentence, why, hint)


def of_space(free_bytes: int, free_inodes: int | None, path: str = "DIRECTORY") -> DoctorCheck:
    text = f"{format_size(free_bytes)} free for the queue and logs"
    if free_inodes is not None and free_inodes < FEW_INODES:
        text += f", {free_inodes} inodes free"
    hint = f"df -h {shlex.quote(path)}; du -xh {shlex.quote(path)} | sort -h | tail"
    if free_bytes < NO_SPACE or (free_inodes is not None and free_inodes < FEW_INODES // 10):
        return fail("disk", text, "Nothing can be submitted or started on a full disk.", hint)
    if free_bytes < LITTLE_SPACE or (free_inodes is not None and free_inodes < FEW_INODES):
        return warn("disk", text, "Logs of jobs may fill the disk; then nothing can be submitted.", hint)
    return ok("disk", text)


def of_clock(now: datetime, latest: datetime | None) -> DoctorCheck:
    """Judge the clock by the latest time that the queue holds, and the time zone."""
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    why = "Start times, time limits and reservations follow the clock."
    if now < BORN:
        return fail("clock", f"{shown} is long past", why, _SET_CLOCK)
    if latest is not None and latest - now > MANY_SECONDS:
        text = f"{shown} is {format_duration(latest - now)} before the queue's last entry: the clock was set back"
        return warn("clock", text, why, _SET_CLOCK)
    try:
        check_local_zone("clock")
    except InputError as error:
        return warn("clock", error.what, "Times are shown in UTC, and times of day cannot be given.", error.hint or "")
    return ok("clock", shown)


def of_leader(leader: Leader | None) -> DoctorCheck:
    if leader is None:
        hint = "gputui serve    # or open a console: gputui"
        return warn("scheduler", "no scheduler is running", "Queued jobs wait until one runs.", hint)
    if leader.silent_for:
        silence = format_duration(leader.silent_for)
        text = f"{leader.kind} of {leader.user}, pid {leader.pid}, has not responded for {silence}"
        hint = (
            f"kill -CONT {leader.pid}    # if it is stopped\nkill -9 {leader.pid}    # if it hangs; jobs keep running"
        )
        return fail("scheduler", text, "It holds the scheduler's lock, so no job starts.", hint)
    since = f"{leader.started_at.astimezone():%Y-%m-%d %H:%M}"
    version = f", gputui {leader.version}" if leader.version else ""
    text = f"{leader.kind} of {leader.user} on {leader.host}, pid {leader.pid}{version}, since {since}"
    return ok("scheduler", text)


def of_sources(
    site: str | None, own: str | None, ignored: Iterable[tuple[str, tuple[str, ...]]]
) -> Iterator[DoctorCheck]:
    """Name the files that settings come from, and the settings that the site does not let a user change."""
    found = [f"{site} (the site's)"] if site else []
    found += [f"{own} ([console] and overridable keys)" if site else own] if own else []
    yield ok("settings", " and ".join(found) or "no settings file: the defaults hold")
    for source, keys in ignored:
        why = f"{site} sets policy, store, runtime and hooks for every scheduler."
        hint = f"remove them from {source}, or have the site allow them at the top of {site}:\n"
        quoted = ", ".join(f'"{key}"' for key in keys)
        hint += f"overridable = [{quoted}]"
        yield warn("settings", f"{source}: ignored {', '.join(keys)}", why, hint)


_STATE_NAMED = 8
_SLURM_GPUS = "declare them: NodeName=… Gres=gpu:MODEL:N in slurm.conf, gres.conf"
_PLUGIN = "install NVIDIA's device plugin on the nodes: it tells Kubernetes of nvidia.com/gpu"
_PROBE = 'probe = "ssh" in [cluster], with gputui on the nodes and ssh to them without a question'
_NO_READINGS = "no readings: "
_HINTS = {
    "gputui is not installed": "install gputui on the nodes, or set cluster.probe_command to where it is",
    "gputui there is too old": "update gputui on the nodes",
    "Permission denied": "`ssh NODE` must work without a question, from where the cluster's commands run",
    "Host key verification": "`ssh NODE` must work without a question, from where the cluster's commands run",
    "pam_slurm_adopt": "Slurm lets users only onto nodes on which they have a job: an administrator may allow more",
    "libnvidia-ml": "NVIDIA's driver is missing on the node; run gputui doctor there",
    "NVIDIA": "run gputui doctor on the node",
}
"""Advice by a part of the reason."""


def of_snapshot(name: str, caps: Caps, snapshot: Snapshot) -> Iterator[DoctorCheck]:
    yield ok("cluster", f"{caps.engine} answers: cluster {name}, {plural(len(snapshot.nodes), 'node')}")
    is_slurm = caps.engine == ENGINES["slurm"]
    without = [node.name for node in snapshot.nodes if not node.gpus]
    words = f"{plural(len(snapshot.gpus), 'GPU')} on {plural(len(snapshot.nodes) - len(without), 'node')}"
    words += f"; none on {_listed(without)}" if without else ""
    none = fail("gpus", "no node has GPUs", "No job with GPUs can start.", _SLURM_GPUS if is_slurm else _PLUGIN)
    yield ok("gpus", words) if snapshot.gpus else none
    away = [
        node.name
        for node in snapshot.nodes
        if node.gpus and all(view.state is GpuState.UNKNOWN and view.drain is None for view in node.gpus)
    ]
    if away:
        told = "sinfo -R tells why" if is_slurm else "kubectl describe node NODE tells why"
        hint = f"{told}; gputui resume NODE once it is mended"
        yield warn("nodes", f"not available: {_listed(away)}", "No job starts there.", hint)
    operators = (Capability.RAISE_PRIORITY, Capability.DRAIN_NODE) if is_slurm else (Capability.DRAIN_NODE,)
    lacking = [caps.why_not(each) for each in operators if not caps.has(each)]
    yield ok("rights", "; ".join(lacking) if lacking else "this user is an operator")


def of_readings(nodes: Iterable[Node], probe: str) -> Iterator[DoctorCheck]:
    """Judge which nodes were read; `probe` is the setting."""
    having = [node for node in nodes if node.gpus]
    if probe == "off":
        yield DoctorCheck("readings", CheckLevel.OK, "none of the nodes' GPUs: cluster.probe is off", _PROBE)
        return
    unread = [node for node in having if node.probe.code is not ProbeCode.OK]
    read = len(having) - len(unread)
    if read:
        yield ok("readings", f"of the GPUs of {plural(read, 'node')}")
    why = "Their GPUs are shown as the engine has allocated them, without load, memory and faults."
    found: dict[str, list[tuple[str, str]]] = {}
    for node in unread:  # a node's own name in the reason does not count
        words = "it is down" if node.probe.code is ProbeCode.NO_PROBE else node.probe.text.removeprefix(_NO_READINGS)
        found.setdefault(words.replace(node.name, "NODE"), []).append((node.name, words))
    reasons = {of[0][1] if len(of) == 1 else words: [name for name, _ in of] for words, of in found.items()}
    for words, names in reasons.items():
        hint = next((hint for part, hint in _HINTS.items() if part in words), "")
        yield warn("readings", f"no readings of {_listed(names)}: {words}", why, hint)


def of_settings(settings: Settings) -> Iterator[DoctorCheck]:
    """Name the settings that have no effect on a cluster as the others are."""
    if settings.scheduler.idle_gpus_end is not None and settings.cluster.probe == "off":
        why = "Nobody sees which GPUs are idle, so no job is ended for that."
        yield warn("settings", "scheduler.idle_gpus_end has no effect: cluster.probe is off", why, _PROBE)
    if settings.report.weekly and not settings.hooks.has_receivers:
        why = "Nobody gets the weekly report."
        hint = "name a command, a webhook or mail in [hooks]"
        yield warn("settings", "report.weekly has no effect: [hooks] has no receivers", why, hint)


def _listed(names: list[str]) -> str:
    more = len(names) - _STATE_NAMED
    return ", ".join(names[:_STATE_NAMED]) + (f" and {more} more" if more > 0 else "")
