"""Readings of the nodes of a cluster: the command that starts a probe there, and one reading of all nodes."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gputui import bootstrap
from gputui.config import Options
from gputui.domain.cluster import NODE, parse_engine, probe_words
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.gpu import ProbeCode, ProbeReading

if TYPE_CHECKING:
    from gputui.cluster.ssh import SshConnection
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.poll import NodeReader
    from gputui.gpus.node_probes import NodeCommand
    from gputui.ports import NodeProbes

SSH = (
    "ssh -T -oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=10 -oServerAliveCountMax=3 "
    f"-oControlMaster=no -oControlPath=none -oForwardX11=no -oForwardAgent=no -- {NODE} gputui probe"
)
"""Command for a node unless the site has its own: a connection of its own, which asks nothing and notices cuts."""
PATIENCE = 10.0
"""Seconds in which a command waits for readings."""
_LOOK_EVERY = 0.2
"""Seconds between two looks at readings that another process has made."""
_A_CONNECTION = 8
"""Sessions of each connection to a login node: sshd allows ten by default."""
_NOT_AGAIN = 10.0
"""Seconds after which a login node that refused is tried again."""
_SILENT = 90
"""Seconds without a word from its reader after which a probe ends."""


def become_probe(interval: timedelta) -> NoReturn:
    """Replace this process with a probe that writes readings to stdout until stdin ends."""
    seconds = interval.total_seconds()
    times = (seconds, 2 * seconds, max(15.0, 2 * seconds))
    words = [sys.executable, "-P", "-m", "gputui.bootstrap.node_probe", *map(str, times), "", str(_SILENT)]
    os.execv(sys.executable, words)


def is_wanted(options: Options) -> bool:
    return options.in_cluster and options.settings.cluster.probe != "off"


def make_reader(options: Options, changed: Callable[[], object] = lambda: None) -> NodeReader | None:
    """Return a reader of the nodes, which starts with its first snapshot; None if the settings want none."""
    if not is_wanted(options):
        return None
    from gputui.engine.cluster.poll import NodeReader

    probes = _shared_probes(options, changed) or _own_probes(options, changed)
    engine = parse_engine(options.settings.cluster.engine)
    return NodeReader(probes, options.settings, has_gpu_ids=engine is None or engine.kind == "slurm")


def _own_probes(options: Options, changed: Callable[[], object]) -> NodeProbes:
    from gputui.gpus.node_probes import SshNodeProbes

    interval = options.settings.cluster.probe_interval
    return SshNodeProbes(_command(options), bootstrap.clock(), interval, changed=changed)


def _shared_probes(options: Options, changed: Callable[[], object]) -> NodeProbes | None:
    """Return the probes that this user's processes share; None if there is no place for that."""
    from gputui.engine.cluster.poll import Turn
    from gputui.gpus.node_probes import SharedNodeProbes, private_directory

    settings, memory = options.settings.cluster, Path("/dev/shm")  # its files are lost with the machine
    if named := os.environ.get("XDG_RUNTIME_DIR"):
        base = Path(named, "gputui")
    elif memory.is_dir():
        base = memory / f"gputui-{os.geteuid()}"
    else:
        return None
    if not private_directory(base):
        return None
    words = (settings.engine, os.environ.get("SLURM_CONF", ""), settings.probe_command or SSH, settings.probe_interval)
    directory = base / f"probes-{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}"
    if not private_directory(directory):
        return None
    make, turn = partial(_own_probes, options), Turn(directory / "duty")
    return SharedNodeProbes(directory, turn, make, bootstrap.clock(), settings.probe_interval, changed)


class NodeWatch:
    """Readings of nodes for a command, which waits for the first ones; none if the settings want none."""

    def __init__(self, options: Options) -> None:
        self._came = threading.Event()
        self._reader = make_reader(options, self._came.set)
        self._has_waited = False

    def joined(self, snapshot: Snapshot, patience: float = PATIENCE) -> Snapshot:
        """Return the snapshot with readings of its nodes, as far as they answer in time."""
        reader = self._reader
        if reader is None:
            return snapshot
        joined = reader.joined(snapshot, bootstrap.clock().now())
        if self._has_waited:
            return joined
        self._has_waited, deadline = True, time.monotonic() + patience
        while not all(map(_is_whole, reader.readings().values())) and (left := deadline - time.monotonic()) > 0:
            self._came.wait(min(left, _LOOK_EVERY))
            self._came.clear()
        return reader.joined(snapshot, bootstrap.clock().now())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def read_once(options: Options, snapshot: Snapshot, patience: float = PATIENCE) -> Snapshot:
    """Return the snapshot with one reading of its nodes, as far as they answer in time; unchanged if none is wanted."""
    with closing(NodeWatch(options)) as watch:
        return watch.joined(snapshot, patience)


def _is_whole(reading: ProbeReading) -> bool:
    """Return whether a node was read with all that matters, or is known not to answer."""
    if reading.status.code is not ProbeCode.OK:
        return reading.status.code is not ProbeCode.STARTING
    return all(sample.processes_at is not None for sample in reading.samples.values())


def _command(options: Options) -> NodeCommand:
    settings = options.settings.cluster
    template, engine = settings.probe_command or SSH, parse_engine(settings.engine)

    def here(node: str, interval: timedelta) -> Sequence[str]:
        return [*probe_words(template, node), "--every", f"{interval.total_seconds():g}"]

    if engine is None or engine.host is None:
        return here
    connections = LoginConnections(engine.host, engine.port)
    return lambda node, interval: connections.argv(node, f"exec {shlex.join(here(node, interval))}")


class LoginConnections:
    """Connections to a login node for probes: commands have another, and each takes only so many sessions."""

    def __init__(self, host: str, port: int | None) -> None:
        self._host = host
        self._port = port
        self._places: dict[str, int] = {}
        self._connections: list[SshConnection] = []
        self._fault, self._failed_at = "", 0.0

    def argv(self, node: str, script: str) -> Sequence[str]:
        """Return the command that runs lines of sh for a node; raises ClusterUnavailableError. May block for seconds.

        A node always has the same connection.
        """
        if self._fault and time.monotonic() - self._failed_at < _NOT_AGAIN:
            raise ClusterUnavailableError(self._fault)
        place = self._places.setdefault(node, len(self._places)) // _A_CONNECTION
        from gputui.cluster.ssh import SshConnection, runtime_directory

        while len(self._connections) <= place:
            name = f"-{os.getpid()}-{len(self._connections)}"
            self._connections.append(SshConnection(self._host, self._port, runtime_directory(os.environ), name))
        connection = self._connections[place]
        self._fault, self._failed_at = connection.opened(), time.monotonic()
        if self._fault:
            raise ClusterUnavailableError(self._fault)
        return connection.argv(script)
