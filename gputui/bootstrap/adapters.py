"""Choice of the adapters to GPUs and runtimes by the options of a command."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import Options
from gputui.domain.container import ForeignContainer, RuntimeStatus
from gputui.domain.errors import RuntimeFault
from gputui.domain.gpu import ProbeReading
from gputui.domain.snapshot import Node, Snapshot

if TYPE_CHECKING:
    from gputui.gpus.remote_probe import Machine
    from gputui.gpus.simulated import SimulatedProbe
    from gputui.ports import EngineBook, GpuProbe, JobExec, Queue, Runtime
    from gputui.runtime.docker.endpoint import Endpoint


def engine_book(options: Options) -> EngineBook:
    """Return the record of the queue's engine, whose address counts for this process where nothing names another."""
    from gputui.engine.files import ENGINE_RECORD, EngineFile
    from gputui.runtime.docker.endpoint import use_recorded

    book = EngineFile(options.state / ENGINE_RECORD)
    with suppress(OSError):
        # only one that no other user could have prepared: images are pulled there with credentials
        is_own = {options.state.stat().st_uid, book.path.lstat().st_uid} <= {0, os.geteuid()}
        if is_own and not options.settings.runtime.docker_host and (engine := book.read()):
            use_recorded(engine, book.path)
    return book


def make_runtimes(options: Options, store_id: str) -> tuple[Runtime, ...]:
    """Return the runtimes of this machine, the one for containers first."""
    settings = options.settings
    runtimes: list[Runtime] = []
    if options.runtime == "docker":
        from gputui.runtime.docker.runtime import DockerRuntime

        runtimes.append(DockerRuntime(store_id, settings.runtime, bootstrap.clock(), engine_book(options)))
    if options.runtime == "process" or settings.scheduler.host_jobs:
        from gputui.runtime.process.runtime import ProcessRuntime

        runtimes.append(ProcessRuntime(store_id, options.state, settings.runtime, bootstrap.clock()))
    return tuple(runtimes)


def make_job_execs(options: Options, store_id: str) -> dict[str, JobExec]:
    from gputui.runtime.docker.job_exec import DockerExec
    from gputui.runtime.process.job_exec import ProcessExec

    found: dict[str, JobExec] = {"process": ProcessExec(store_id, options.state)}
    if options.runtime == "docker":
        found["docker"] = DockerExec(options.settings.runtime, engine_book(options))
    return found


def local_images(options: Options) -> tuple[str, ...]:
    """Return the names of the engine's images; empty when no engine answers."""
    if options.runtime != "docker":
        return ()
    from gputui.runtime.docker.runtime import DockerRuntime

    engine = DockerRuntime("", options.settings.runtime, bootstrap.clock(), engine_book(options))
    with closing(engine), suppress(RuntimeFault):
        return engine.images()
    return ()


_READ_WITHIN = 8.0
"""Seconds for the first reading by a command; more if the driver is slow."""
_HASTE = timedelta(seconds=5)
"""Time after which somebody who waits does without what the driver or the engine does not answer."""


def in_haste(options: Options) -> Options:
    """Return the options of a command that somebody waits for."""
    settings = options.settings
    runtime = replace(settings.runtime, docker_timeout=min(_HASTE, settings.runtime.docker_timeout))
    gpus = replace(settings.gpus, hang_after=min(_HASTE, settings.gpus.hang_after))
    return replace(options, settings=replace(settings, runtime=runtime, gpus=gpus))


def make_probe(options: Options, store_id: str = "", *, once: bool = False) -> GpuProbe:
    """Return the probe that `--probe` names, not started; `once` is for one reading that somebody waits for."""
    if options.probe.simulated is not None:
        return simulated_probe(options, store_id)
    from gputui.gpus.supervisor import NvmlProbe

    options = in_haste(options) if once else options
    settings = options.settings.gpus
    if machine := _machine_of_engine(options):
        from gputui.gpus.remote_probe import remote_probe

        return remote_probe(machine, settings, bootstrap.clock())
    return NvmlProbe(settings, bootstrap.clock())


def _endpoint(options: Options) -> Endpoint | None:
    """Return the engine's address; None without a usable one."""
    if options.runtime != "docker":
        return None
    from gputui.runtime.docker.endpoint import find_endpoint

    engine_book(options)
    with suppress(RuntimeFault):
        return find_endpoint(options.settings.runtime)
    return None


def engine_url(options: Options) -> str:
    return endpoint.url if (endpoint := _endpoint(options)) else ""


def _machine_of_engine(options: Options) -> Machine | None:
    """Return the machine of the engine if it may be another one; None without an engine."""
    endpoint = _endpoint(options)
    if endpoint is None or not endpoint.may_be_elsewhere:
        return None
    from gputui.runtime.docker.engine_machine import EngineMachine

    return EngineMachine(endpoint, options.settings.runtime)


def simulated_probe(options: Options, store_id: str) -> SimulatedProbe:
    from gputui.gpus.simulated import DEFAULT, SimulatedProbe

    model = (options.probe.model or DEFAULT).upper()
    count, machine = options.probe.simulated or 0, options.probe.machine
    return SimulatedProbe(count, model, clock=bootstrap.clock(), seed=machine, store_id=store_id)


def silence_probe_log() -> None:
    """Keep the probe's log records off stderr: the command itself reports what is wrong."""
    import logging

    logging.getLogger("gputui").addHandler(logging.NullHandler())


def check_probe(options: Options) -> None:
    """Raise InputError for an unknown model or an impossible number of simulated GPUs."""
    if options.probe.simulated is not None:
        from gputui.gpus.simulated import parse_simulated

        parse_simulated(str(replace(options.probe, machine=0)))


def read_gpus(options: Options, patience: float, probe: GpuProbe | None = None) -> ProbeReading:
    """Return one complete reading of the GPUs, or the latest one after `patience` seconds; closes the probe."""
    from gputui.gpus.supervisor import first_reading

    return first_reading(probe or make_probe(options, once=True), patience)


def measured_snapshot(options: Options, store: Queue, probe: GpuProbe | None = None) -> Snapshot:
    """Return a snapshot from a reading by this process (with `probe` if given), for use when no scheduler runs."""
    from gputui.domain.policy.availability import Evidence, gpu_views, why_unseen

    probe = probe or make_probe(options, once=True)
    probe.start()  # it reads while the runtimes are asked
    foreign, down = _foreign(options, store.store_id) if options.probe.simulated is None else ((), ())
    reading = read_gpus(options, _READ_WITHIN, probe)
    evidence = Evidence(
        reading=reading,
        store_id=store.store_id,
        jobs=tuple(job for job in store.jobs().values() if job.gpus),
        controls=store.controls(),
        unreadable=store.unreadable(),
        foreign=foreign,
        unseen=why_unseen(down),
    )
    now = bootstrap.clock().now()
    rows = gpu_views(evidence, options.settings.scheduler, now)
    machine = reading.machine
    node = Node(machine, rows, reading.status, reading.driver_version, down, reading.host, is_elsewhere=bool(machine))
    return Snapshot(taken_at=now, nodes=(node,), controls=evidence.controls)


def _foreign(options: Options, store_id: str) -> tuple[tuple[ForeignContainer, ...] | None, tuple[RuntimeStatus, ...]]:
    """Return the foreign containers, None if any runtime cannot list them, and the status of each that cannot."""
    found: list[ForeignContainer] = []
    down: list[RuntimeStatus] = []
    for runtime in make_runtimes(in_haste(options), store_id):
        with closing(runtime):
            status = runtime.check()
            try:
                found += runtime.foreign() if status.up else ()
            except RuntimeFault as error:  # also an engine that answers with an error
                status = replace(status, up=False, text=str(error), hint=error.hint or "")
        if not status.up:
            down.append(status)
    return None if down else tuple(found), tuple(down)
