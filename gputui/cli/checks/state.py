"""Checks of the state directory, its disk, the queue in it, the clock and the scheduler."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from gputui.cli.checks import CheckLevel, DoctorCheck, fail, ok, warn
from gputui.domain.cluster import ENGINES, Capability, Caps, ClusterFault
from gputui.domain.errors import InputError
from gputui.domain.gpu import GpuState, ProbeCode
from gputui.domain.kept_data import BackupRecord, KeptData
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot, Unreadable
from gputui.domain.text import format_duration, format_size, plural
from gputui.engine.actions.admission import check_local_zone

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
    """Judge the permissions of the state directory."""
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


def of_missing_directory(path: str, is_creatable: bool) -> DoctorCheck:
    """Judge a state directory that does not exist; doctor creates none."""
    if is_creatable:
        return ok("state", f"{path} does not exist yet; the first submit, serve or console creates it")
    hint = f'gputui --state OTHER_DIRECTORY …\nor: sudo install -d -o "$USER" -m 0700 {shlex.quote(path)}'
    return fail("state", f"{path} does not exist and cannot be created by this user", "No job can be stored.", hint)


def of_loss(sentence: str) -> DoctorCheck:
    """Report acknowledged changes that are missing from the files."""
    why = "Jobs or changes that were acknowledged are missing, so nothing can be stored and no job starts."
    return fail("queue", sentence, why, "gputui state repair    # lists the losses, then asks")


def of_unreadable(entries: Iterable[Unreadable]) -> Iterator[DoctorCheck]:
    why = "The scheduler neither starts nor ends it, and keeps it unchanged."
    hint = "upgrade gputui if a newer version wrote it, else correct it in queue.json"
    for entry in entries:
        yield warn("queue", entry.sentence, why, hint)


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
        text += f", limit {format_duration(data.limits.max_age)}" if data.limits.max_age is not None else ""
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
    """Report parts of the queue that could not be read."""
    why = "Jobs may be missing from the queue."
    hint = "gputui queue --all    # compare with what you expect; restore a backup if jobs are missing\n"
    hint += "then remove the .damaged file"
    for sentence in sentences:
        yield warn("queue", sentence, why, hint)


def of_space(free_bytes: int, free_inodes: int | None, path: str = "DIRECTORY") -> DoctorCheck:
    """Judge the free space for the queue and for logs."""
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


def of_older_leader(sentence: str, hint: str) -> DoctorCheck:
    return fail("scheduler", sentence, "No command and no console of this gputui can change the queue.", hint)


def of_halt(notices: Iterable[Notice]) -> Iterator[DoctorCheck]:
    """Report what the scheduler says of why it starts nothing."""
    for notice in notices:
        hint = "gputui serve    # restart it with this gputui if an older one runs"
        yield fail("scheduler", notice.text, "The scheduler says so itself; running jobs continue.", hint)


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


_NAMED = 8
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


def of_faults(faults: Iterable[ClusterFault]) -> Iterator[DoctorCheck]:
    for fault in faults:
        level = CheckLevel.FAIL if fault.stops_jobs or fault.is_grave else CheckLevel.WARN
        yield DoctorCheck(fault.name, level, fault.text, fault.hint, fault.why)


def of_snapshot(name: str, caps: Caps, snapshot: Snapshot) -> Iterator[DoctorCheck]:
    """Judge what the cluster shows."""
    yield ok("cluster", f"{caps.engine} answers: cluster {name}, {plural(len(snapshot.nodes), 'node')}")
    is_slurm = caps.engine == ENGINES["slurm"]
    yield _gpus(snapshot, is_slurm)
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
    rights = ok("rights", "; ".join(lacking) if lacking else "this user is an operator")
    yield rights


def _gpus(snapshot: Snapshot, is_slurm: bool) -> DoctorCheck:
    without = [node.name for node in snapshot.nodes if not node.gpus]
    if not snapshot.gpus:
        return fail("gpus", "no node has GPUs", "No job with GPUs can start.", _SLURM_GPUS if is_slurm else _PLUGIN)
    words = f"{plural(len(snapshot.gpus), 'GPU')} on {plural(len(snapshot.nodes) - len(without), 'node')}"
    return ok("gpus", words + (f"; none on {_listed(without)}" if without else ""))


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
    for words, names in _by_reason(unread).items():
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


def _by_reason(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of nodes by the reason why they are not read; a node's own name in it does not count."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        words = "it is down" if node.probe.code is ProbeCode.NO_PROBE else node.probe.text.removeprefix(_NO_READINGS)
        found.setdefault(words.replace(node.name, "NODE"), []).append((node.name, words))
    return {group[0][1] if len(group) == 1 else words: [name for name, _ in group] for words, group in found.items()}


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
