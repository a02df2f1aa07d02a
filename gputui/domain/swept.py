"""Specs of the elements of a parameter sweep, with their values filled in."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec


def spec_at(spec: JobSpec, index: int) -> JobSpec:
    """Return the spec of an element, with its values in command, environment and name.

    Raises IndexError for an index that the sweep does not have.
    """
    if not spec.sweep:
        return spec
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    found = sweeps.values_at(spec.sweep, index)
    values = {**found, sweeps.INDEX: str(index)}
    env = [(name, sweeps.filled(value, values)) for name, value in spec.options.env]
    return replace(
        spec,
        command=tuple(sweeps.filled(word, values) for word in spec.command),
        name=sweeps.shown_name(spec.name, spec.sweep, index),
        options=replace(spec.options, env=(*env, *sweeps.variables(found))),
        sweep=(),
    )


def sweep_values(job: Job) -> Mapping[str, str]:
    """Return the values of an element of a sweep by name; empty for other jobs and for an index that it lacks."""
    if not job.spec.sweep or job.runs or job.array is None:
        return {}
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    if job.array.index >= sweeps.size(job.spec.sweep):
        return {}
    return sweeps.values_at(job.spec.sweep, job.array.index)


def element_spec(job: Job) -> JobSpec:
    """Return the spec of a job; for an element of a sweep, with its values."""
    return spec_at(job.spec, job.array.index) if job.array and sweep_values(job) else job.spec
