"""Batch scripts: what a node of a Slurm cluster does to run a job.

A job with an image runs in a container of the node's Docker engine, by `container.sh`; the site may choose Apptainer,
or Slurm's own containers, instead. A host job is the script's own process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from gputui.cluster.bash import array, word
from gputui.cluster.docker_words import gpu_value, option_words, profiles
from gputui.cluster.slurm.directives import NO_STREAMS, STOP_SIGNALS, directives, line
from gputui.cluster.slurm.job_words import LIST_GPUS, Environment, command_words, has_gpus, own_variables, sweep_lines
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.settings import Settings

JOB_ID = """
# Written by gputui.
job=$SLURM_JOB_ID
[[ -z $SLURM_ARRAY_JOB_ID ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
"""
_NOTE = """
# Slurm forgets which GPUs a job had as soon as it ends.
echo "${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $SLURM_JOB_GPUS" 2>/dev/null >{directory}/.$job.gpus
"""


def batch_script(submission: Submission, key: str, settings: Settings, output: str = "") -> str:
    """Return the script for `sbatch`; raises InputError for a job that cannot run in this way.

    `key` identifies the submission: it is in the job's comment and on its container. `output` is the file for output
    in the notation of `sbatch --output`; empty: Slurm's default one.
    """
    spec = submission.spec
    head = [f"{line(option)}\n" for option in directives(submission, key, settings.cluster, output)]
    lines = [*sweep_lines(spec.sweep), *body(submission, key, settings)]
    return "".join(["#!/bin/bash\n", *head, JOB_ID, *_note(spec, output), *lines])


def shell_text(name: str) -> str:
    """Return a file of bash of this package."""
    return Path(__file__).with_name(name).read_text()


def gpu_note(output: str, job: str) -> str:
    """Return the path of the file in which the script of a job notes its restarts, node and GPUs."""
    return f"{_directory(output)}/.{job}.gpus"


def _note(spec: JobSpec, output: str) -> Iterator[str]:
    if output and has_gpus(spec):
        yield _NOTE.format(directory=word(_directory(output)))


def _directory(output: str) -> str:
    """Return the directory in a pattern of `sbatch --output`."""
    return output.rpartition("/")[0].replace("%%", "%")


def body(submission: Submission, key: str, settings: Settings) -> Iterator[str]:
    """Yield the part of the script that runs the job, and ends with its exit code."""
    if has_gpus(submission.spec):
        yield LIST_GPUS
    yield from _way(submission, key, settings)


def _way(submission: Submission, key: str, settings: Settings) -> Iterator[str]:
    if settings.cluster.container == "docker" and not submission.spec.is_host:
        return _container(submission, key, settings)
    from gputui.cluster.slurm import plain_scripts  # for jobs without a container of Docker

    if submission.spec.is_host:
        return plain_scripts.host(submission)
    if submission.spec.interactive is not None:
        raise InputError(NO_STREAMS, where="--interactive")
    return (
        plain_scripts.apptainer(submission)
        if settings.cluster.container == "apptainer"
        else plain_scripts.srun(submission)
    )


def _container(submission: Submission, key: str, settings: Settings) -> Iterator[str]:
    """Yield the script that runs a container of the node's Docker engine."""
    spec = submission.spec
    environment = Environment(spec)
    exported = environment.exported
    yield f"image={word(spec.image or '')}\n"
    yield array("command", command_words(spec))
    own = [f"{name}={value}" for name, value in own_variables(submission)]
    yield array("environment", [*environment.lines, *own, *_no_gpus(spec, settings)])
    yield _function("export_environment", (f"export {name}={value}" for name, value in exported.items()))
    yield f"gpus={int(has_gpus(spec))}\n"
    yield f"attached={int(spec.interactive is not None)}\n"
    yield f"warning={_warning(spec)}\n"
    yield array("profiles", map(word, profiles(spec.options)))
    shown = [*(word(f"--env={name}") for name in exported), *environment.shown]
    words = [*option_words(spec, settings), *_identity(key), *shown, *_gpus(spec, settings)]
    yield _function("set_options", ("options=(", *(f"  {each}" for each in words), ")"))
    yield shell_text("gpus.sh")
    yield shell_text("container.sh")


def _identity(key: str) -> Iterator[str]:
    """Yield the labels by which the container is found."""
    yield '"--label=gputui.job=$SLURM_JOB_ID"'
    yield word(f"--label=gputui.key={key}")
    yield '"--label=gputui.gpus=$uuids"'


def _gpus(spec: JobSpec, settings: Settings) -> Iterator[str]:
    if not has_gpus(spec):
        return
    if settings.cluster.cdi:
        yield "$(printf -- '--device=nvidia.com/gpu=%s ' ${uuids//,/ })"
    else:
        before, after = gpu_value(spec.gpus)
        yield f'{word(f"--gpus={before}")}"$uuids"{word(after)}'


def _no_gpus(spec: JobSpec, settings: Settings) -> Iterator[str]:
    """Yield the variable without which images of NVIDIA get every GPU where NVIDIA's runtime is the default."""
    if settings.cluster.cdi or not has_gpus(spec):
        yield "NVIDIA_VISIBLE_DEVICES=void"


def _warning(spec: JobSpec) -> str:
    """Return the signal that SIGURG stands for."""
    if spec.warning is None or spec.warning.number not in STOP_SIGNALS:
        return "''"
    return signal.Signals(spec.warning.number).name.removeprefix("SIG")


def _function(name: str, lines: Iterable[str]) -> str:
    body = "".join(f"  {each}\n" for each in lines) or "  :\n"
    return f"{name}() {{\n{body}}}\n"
