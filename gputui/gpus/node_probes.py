"""Probes of the nodes of a cluster, all read by one thread. They end with stdin: a killed console leaves none."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType

from gputui.domain.errors import GputuiError
from gputui.domain.gpu import ProbeCode, ProbeReading
from gputui.domain.text import plain
from gputui.gpus.node_probe import NodeCommand, NodeOutput, NodeProcess, ProbeFault
from gputui.ports import Clock

log = logging.getLogger(__name__)

PAUSES = (1.0, 5.0, 15.0, 60.0, 120.0)
"""Seconds before the first consecutive restart of a node's probe, the second, and so on."""
MOST_STARTING = 8
"""Maximum number of nodes that are connected to at a time."""
ANSWER_WITHIN = 30.0
"""Seconds until the first reading after a start."""
SILENT_AFTER = timedelta(seconds=15)
"""Time without a reading, beyond the interval, after which a probe is started anew."""
ALIVE_EVERY = 20.0
"""Seconds after which probes are told that somebody reads them."""
STEADY_AFTER = 60.0
"""Seconds of life after which the next end starts the count of restarts again."""
USUAL_NODES = 32
"""Number of nodes above which each is read less often."""
_KILL_AFTER = 2.0
_NOT_FOUND = 127
_SSH_FAILED = 255


class _Followed:
    """A node, and its present process."""

    def __init__(self, name: str, output: NodeOutput) -> None:
        self.name = name
        self.output = output
        self.process: NodeProcess | None = None
        self.began_at = 0.0
        self.heard_at = 0.0
        self.due_at = 0.0
        """Second at which the next process may be started."""
        self.failures = 0

    @property
    def is_starting(self) -> bool:
        return self.process is not None and not self.output.has_begun


class SshNodeProbes:
    """NodeProbes over one process for each node. Times are seconds of the monotonic clock unless they say otherwise."""

    def __init__(
        self,
        command: NodeCommand,
        clock: Clock,
        interval: timedelta,
        *,
        pauses: tuple[float, ...] = PAUSES,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changed` is called from the probes' thread after each new reading or fault."""
        self._command = command
        self._clock = clock
        self._least = interval
        self._pauses = pauses
        self._changed = changed
        self._lock = threading.Lock()
        self._wanted: tuple[str, ...] = ()
        self._focus: tuple[str | None, str | None] = (None, None)
        self._nodes: dict[str, _Followed] = {}
        self._latest: dict[str, ProbeReading] = {}
        self._ending: list[tuple[NodeProcess, float]] = []
        self._told_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def interval(self) -> timedelta:
        """Time between two readings of a node."""
        return interval_of(self._least, len(self._wanted))

    def follow(self, nodes: Iterable[str]) -> None:
        """Read these nodes, and no others."""
        wanted = tuple(dict.fromkeys(nodes))
        with self._lock:
            if self._closed or (wanted == self._wanted and self._thread is not None):
                return
            self._wanted = wanted
            self._latest = {name: reading for name, reading in self._latest.items() if name in wanted}
            for name in wanted:
                self._latest.setdefault(name, NodeOutput(self._clock.now()).reading)
            if self._thread is None:
                self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
                self._thread = threading.Thread(target=self._run, name="node-probes", daemon=True)
                self._thread.start()
        self._wake()

    def readings(self) -> Mapping[str, ProbeReading]:
        """Return the latest reading of each node that is followed."""
        with self._lock:
            return MappingProxyType({name: self._latest[name] for name in self._wanted})

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        """Read details of this GPU of a node; None: of no GPU."""
        with self._lock:
            if (node, uuid) == self._focus:
                return
            before, self._focus = self._focus, (node, uuid)
            processes = {name: self._nodes[name].process for name in (before[0], node) if name in self._nodes}
        for name, process in processes.items():
            if process is not None:
                process.send(f"pcie {uuid or '-'}" if name == node else "pcie -")

    def close(self) -> None:
        """End all probes, at most within seconds."""
        with self._lock:
            if self._closed:
                return
            self._closed, thread = True, self._thread
        if thread is None:
            self._close_pipes()
            return
        self._wake()
        if thread is not threading.current_thread():
            thread.join(2 * _KILL_AFTER)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b"x")

    # the thread of the probes

    def _run(self) -> None:
        try:
            while not self._closed:
                self._arrange()
                for key, _ in self._selector.select(self._until_next()):
                    key.data()
                self._look_after()
        except Exception:  # the border of the thread
            log.exception("the probes of nodes have ended")
        finally:
            self._end_all()

    def _woken(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._wake_out, 1024)

    def _arrange(self) -> None:
        """Forget nodes that are no longer wanted, and start the probes of others as they are due."""
        wanted = self._wanted
        for name in self._nodes.keys() - set(wanted):
            self._stop(self._nodes[name])
            with self._lock:
                del self._nodes[name]
        for name in wanted:
            if name not in self._nodes:
                with self._lock:
                    self._nodes[name] = _Followed(name, NodeOutput(self._clock.now()))
        self._start_due(time.monotonic())

    def _start_due(self, now: float) -> None:
        room = MOST_STARTING - sum(node.is_starting for node in self._nodes.values())
        waiting = [node for node in self._nodes.values() if node.process is None and node.due_at <= now]
        for node in sorted(waiting, key=lambda node: node.due_at)[: max(0, room)]:
            self._start(node, now)

    def _start(self, node: _Followed, now: float) -> None:
        node.began_at = node.heard_at = now
        node.output.begin()
        try:
            process = NodeProcess(self._command(node.name, self.interval))
        except GputuiError as error:
            self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, f"no readings: {error}"))
            return
        except OSError as error:
            words = f"no readings: {error.filename or 'its command'}: {error.strerror}"
            self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, words))
            return
        node.process = process
        self._selector.register(process.out, selectors.EVENT_READ, lambda: self._read(node))
        self._selector.register(process.err, selectors.EVENT_READ, lambda: self._read_complaints(node))
        if node.name == self._focus[0]:
            process.send(f"pcie {self._focus[1] or '-'}")

    def _read(self, node: _Followed) -> None:
        if (process := node.process) is None:
            return
        data = process.read()
        if data is None:
            process.read_complaints()
            self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, f"no readings: {_end_words(process)}"))
            return
        now = time.monotonic()
        try:
            is_new = node.output.take(data, self._clock.now(), now)
        except ProbeFault as fault:
            self._fail(node, fault)
            return
        if is_new:
            node.heard_at = now
            if now - node.began_at > STEADY_AFTER:
                node.failures = 0
            self._publish(node)

    def _read_complaints(self, node: _Followed) -> None:
        if (process := node.process) is not None and not process.read_complaints():
            self._selector.unregister(process.err)

    def _look_after(self) -> None:
        """Give up probes that are silent, kill processes that do not end, and tell the others that they are read."""
        now, silent = time.monotonic(), (self.interval + SILENT_AFTER).total_seconds()
        for node in list(self._nodes.values()):
            patience = max(ANSWER_WITHIN, silent) if node.is_starting else silent
            if node.process is not None and now - node.heard_at > patience:
                last = _last_line(node.process)
                words = f"no answer within {patience:.0f} s" + (f": {last}" if last else "")
                self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, f"no readings: {words}"))
        if now - self._told_at > ALIVE_EVERY:
            self._told_at = now
            for node in self._nodes.values():
                if node.process is not None:
                    node.process.send("alive")
        for process, since in self._ending:
            if now - since > _KILL_AFTER:
                process.end(signal.SIGKILL)
        self._ending = [(process, since) for process, since in self._ending if process.code is None]

    def _until_next(self) -> float:
        """Return the seconds until something is due without output."""
        now = time.monotonic()
        due = [node.due_at - now for node in self._nodes.values() if node.process is None]
        has_room = sum(node.is_starting for node in self._nodes.values()) < MOST_STARTING
        soon = max(0.05, min(due, default=5.0)) if has_room else 5.0
        return min(soon, 0.5 if self._ending else 5.0)

    def _fail(self, node: _Followed, fault: ProbeFault) -> None:
        """End the process of a node, and note when to try again."""
        self._stop(node)
        pause = self._pauses[min(node.failures, len(self._pauses) - 1)]
        node.failures += 1
        node.due_at = time.monotonic() + pause
        if str(fault) != node.output.status.text:
            log.warning("node %s: %s", plain(node.name, 60), fault)
        node.output.fail(fault, self._clock.now())
        self._publish(node)

    def _stop(self, node: _Followed) -> None:
        process, node.process = node.process, None
        if process is None:
            return
        for pipe in (process.out, process.err):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(pipe)
        process.close()
        process.end()
        self._ending.append((process, time.monotonic()))

    def _publish(self, node: _Followed) -> None:
        with self._lock:
            if node.name in self._latest:
                self._latest[node.name] = node.output.reading
        self._changed()

    def _end_all(self) -> None:
        for node in self._nodes.values():
            self._stop(node)
        deadline = time.monotonic() + _KILL_AFTER
        while (left := [each for each, _ in self._ending if each.code is None]) and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in left:
            process.end(signal.SIGKILL)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._selector.close()
        os.close(self._wake_out)
        os.close(self._wake_in)


def interval_of(least: timedelta, nodes: int) -> timedelta:
    """Return the time between two readings of each of so many nodes."""
    return least * max(1.0, nodes / USUAL_NODES)


def _last_line(process: NodeProcess) -> str:
    lines = [line.strip() for line in process.complaints.decode(errors="replace").splitlines() if line.strip()]
    return plain(lines[-1], 200) if lines else ""


def _end_words(process: NodeProcess) -> str:
    """Return why the process of a node ended."""
    process.wait(0.5)  # its output has ended already
    code, last = process.code, _last_line(process)
    if code == _NOT_FOUND:
        return f"gputui is not installed there ({last or 'exit code 127'})"
    if code == 2 and "No such command" in last:
        return f"gputui there is too old: {last}"
    if code == _SSH_FAILED:
        return last or "ssh cannot connect"
    return last or ("the connection was closed" if not code else f"its command ended with exit code {code}")
