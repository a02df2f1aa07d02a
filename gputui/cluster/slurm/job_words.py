"""The part of a batch script that differs between jobs: command and environment, with the values of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gputui.cluster.bash import NAME, array, word
from gputui.domain.container_options import Pairs
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobSpec, Submission

_LONGEST_LINE = 60_000
"""Bytes of a line of an environment file that docker's client reads."""
_GPU_CHOICE = frozenset({"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
_NOT_IN_FILE = re.compile(r"[\n\r]|\A[\s#\ufeff]")
_OF_BASH = (
    r"BASH.*|SHELLOPTS|POSIXLY_CORRECT|UID|EUID|PPID|IFS|PATH|HOME|ENV|PWD|OLDPWD|TMPDIR|_"
    r"|LD_.*|DOCKER_.*|GO.*|.*_PROXY|.*_proxy|SSL_.*|XDG_.*|SLURM_.*|GPUTUI_.*|gputui_.*|sweep_.*"
)
"""Variables with a meaning to bash or to docker's client."""


def text_word(text: str, sweep: Pairs) -> str:
    """Return the text as a word, in which the element's values take the place of the sweep's names."""
    if not sweep:
        return word(text)
    from gputui.domain import sweep as sweeps  # few jobs have one

    names = {name for name, _ in sweep} | {sweeps.INDEX}
    parts = []
    for literal, name in sweeps.pieces(text, names):
        parts += [word(literal)] if literal else []
        parts += [f'"$sweep_{name}"'] if name else []
    return "".join(parts) or "''"


def sweep_lines(sweep: Pairs) -> Iterator[str]:
    """Yield the lines that set `$sweep_NAME` to the values of the element; the last name varies fastest."""
    if not sweep:
        return
    from gputui.domain import sweep as sweeps

    yield f"sweep_{sweeps.INDEX}=$SLURM_ARRAY_TASK_ID\n"
    yield f"(( sweep_{sweeps.INDEX} < {sweeps.size(sweep)} )) || exit 2\n"
    yield f"rest=$sweep_{sweeps.INDEX}\n"
    for name, text in reversed(sweep):
        yield array("values", map(word, sweeps.values(text)))
        yield f"sweep_{name}=${{values[rest % {sweeps.size(((name, text),))}]}}\n"
        yield f"(( rest /= {sweeps.size(((name, text),))}, 1 ))\n"


class Environment:
    """Environment of a job, by the way in which each variable reaches its container.

    An environment file keeps values off the list of processes, but carries neither line ends nor very long values.
    Those are exported to docker's client, unless their names mean something to it; the others are on its command line.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.lines: list[str] = []
        self.exported: dict[str, str] = {}
        self.shown: list[str] = []
        swept = "".join(text for _, text in spec.sweep)
        for name, value in variables(spec):
            self._add(name, value + swept if "{" in value else value, text_word(value, spec.sweep))

    def _add(self, name: str, value: str, quoted: str) -> None:
        pair = f"{name}={value}"
        if (
            not _NOT_IN_FILE.search(pair)
            and not re.search(r"\s", name)
            and len(pair.encode("utf-8", "surrogateescape")) < _LONGEST_LINE
        ):
            self.lines.append(word(f"{name}=") + quoted)
        elif NAME.fullmatch(name) and not re.fullmatch(_OF_BASH, name):
            self.exported[name] = quoted
        else:
            self.shown.append(word(f"--env={name}=") + quoted)


def variables(spec: JobSpec) -> Iterable[tuple[str, str]]:
    """Return the job's own variables, without a choice of GPUs, each once; raises InputError for names with `=`."""
    found = {name: value for name, value in spec.options.env if name not in _GPU_CHOICE}
    for name in found:
        if not name or "=" in name:
            raise InputError(f"{name!a} cannot be the name of an environment variable", where="--env")
    if spec.sweep:
        from gputui.domain.sweep import VARIABLE

        found |= {f"{VARIABLE}{name.upper()}": f"{{{name}}}" for name, _ in spec.sweep}
    return found.items()


def command_words(spec: JobSpec) -> list[str]:
    """Return the words of the command."""
    return [text_word(each, spec.sweep) for each in spec.command]


def has_gpus(spec: JobSpec) -> bool:
    """Return whether the job asks for GPUs."""
    return bool(spec.gpus.minimum or spec.gpus.everything)


LIST_GPUS = 'read -ra job_gpus <<<"${SLURM_JOB_GPUS//,/ }"\n'
"""Line that lists the job's GPUs in an array, for `own_variables`; it starts no process."""


def own_variables(submission: Submission) -> Iterator[tuple[str, str]]:
    """Yield names and quoted values of the variables that gputui sets in each job."""
    yield "GPUTUI_JOB_ID", '"$job"'
    yield "GPUTUI_ATTEMPT", '"$SLURM_CLUSTER_NAME:$job:$(( ${SLURM_RESTART_COUNT:-0} + 1 ))"'
    yield "GPUTUI_GPUS", '"${#job_gpus[@]}"' if has_gpus(submission.spec) else "0"
    if submission.array:
        yield "GPUTUI_ARRAY_INDEX", '"$SLURM_ARRAY_TASK_ID"'
