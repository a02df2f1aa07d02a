"""Interfaces (ports) that the engine needs: a store, runtimes, a GPU probe and a clock.

Adapters implement them; `gputui.bootstrap` chooses the adapters. Every call may block on disk, on the engine or on the
driver unless its docstring says otherwise, so none is made on an event loop.
"""

from gputui.ports.cluster import Cluster
from gputui.ports.machine import Clock, GpuProbe, NodeProbes, SteadyClock
from gputui.ports.monitor import NO_MONITOR, Monitor
from gputui.ports.runtime import (
    Channel,
    EngineBook,
    JobExec,
    LiveLogStream,
    LogStream,
    Permit,
    Runtime,
    StampedLogStream,
)
from gputui.ports.store import JobStore, Queue, StoreWatch, Transaction

__all__ = [
    "NO_MONITOR",
    "Channel",
    "Clock",
    "Cluster",
    "EngineBook",
    "GpuProbe",
    "JobExec",
    "JobStore",
    "LiveLogStream",
    "LogStream",
    "Monitor",
    "NodeProbes",
    "Permit",
    "Queue",
    "Runtime",
    "StampedLogStream",
    "SteadyClock",
    "StoreWatch",
    "Transaction",
]
