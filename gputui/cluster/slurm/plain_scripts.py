"""Batch scripts in which Slurm runs the job's process itself: host jobs, Apptainer, and `srun --container-image`.

Slurm knows all processes of such a job, and signals and ends them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputui.cluster.bash import NAME, array, word
from gputui.cluster.slurm.job_words import command_words, has_gpus, own_variables, text_word, variables
from gputui.domain import docker_args
from gputui.domain.container_options import ContainerOptions
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobSpec, Submission

_OPTIONS = {"volumes": "--volume", "mounts": "--mount", "ulimits": "--ulimit", "labels": "--label"}
_OF_HOSTS = frozenset({"env", "workdir", "cpus", "memory", "ulimits", "labels"})
_OF_OTHERS = frozenset({"env", "workdir", "cpus", "memory", "labels", "volumes", "mounts"})
_ULIMITS = {
    "as": "v",
    "core": "c",
    "cpu": "t",
    "data": "d",
    "fsize": "f",
    "memlock": "l",
    "nofile": "n",
    "nproc": "u",
    "rtprio": "r",
    "sigpending": "i",
    "stack": "s",
}
"""Options of bash's `ulimit`."""
_KIBIBYTES = frozenset({"as", "core", "data", "fsize", "memlock", "stack"})
"""Limits that bash counts in units of 1,024 bytes."""


def host(submission: Submission) -> Iterator[str]:
    """Yield the script of a host job, whose working directory Slurm sets."""
    spec = submission.spec
    _refuse(spec.options, _OF_HOSTS, "a host job")
    for text in spec.options.ulimits:
        yield f"{_ulimit(text)} || exit 125\n"
    yield from _exports(submission, "")
    yield array("command", command_words(spec))
    yield 'exec -- "${command[@]}"\n'


def apptainer(submission: Submission) -> Iterator[str]:
    """Yield the script that runs a container of Apptainer."""
    spec, options = submission.spec, submission.spec.options
    _refuse(options, _OF_OTHERS, "Apptainer")
    words = ["--compat"]
    words += ["--nv"] if has_gpus(spec) else []
    words += [
        word(f"--bind={source}:{target}{':ro' if is_fixed else ''}") for source, target, is_fixed in _binds(options)
    ]
    words += [word(f"--pwd={options.workdir}")] if options.workdir else []
    yield from _exports(submission, "APPTAINERENV_")
    yield "export APPTAINERENV_CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES\n"
    yield array("options", words)
    yield array("command", command_words(spec))
    yield f'exec apptainer {"exec" if spec.command else "run"} "${{options[@]}}" {word(_uri(spec))} "${{command[@]}}"\n'


def srun(submission: Submission) -> Iterator[str]:
    """Yield the script that runs a container of `srun`, as Pyxis offers them."""
    spec, options = submission.spec, submission.spec.options
    _refuse(options, _OF_OTHERS, "srun --container-image")
    if not spec.command:
        raise InputError("srun --container-image needs the command", where="--command")
    mounts = [f"{source}:{target}{':ro' if is_fixed else ''}" for source, target, is_fixed in _binds(options)]
    words = [word(f"--container-image={_enroot(spec.image or '')}"), "--no-container-mount-home"]
    words += [word(f"--container-mounts={','.join(mounts)}")] if mounts else []
    words += [word(f"--container-workdir={options.workdir}")] if options.workdir else []
    names = ",".join(name for name, _ in variables(spec))
    words += [word(f"--container-env={names}")] if names else []
    yield from _exports(submission, "")
    yield array("options", words)
    yield array("command", command_words(spec))
    yield 'exec srun --export=ALL "${options[@]}" -- "${command[@]}"\n'


def _refuse(options: ContainerOptions, known: frozenset[str], what: str) -> None:
    """Raise InputError for an option that has no counterpart."""
    for field in ContainerOptions.__struct_fields__:
        value = getattr(options, field)
        if field not in known and value not in (None, ()) and value is not False:
            raise InputError(f"{what} has no such option", where=_OPTIONS.get(field, "--" + field.replace("_", "-")))


def _exports(submission: Submission, prefix: str) -> Iterator[str]:
    spec = submission.spec
    for name, value in variables(spec):
        if not NAME.fullmatch(name):
            raise InputError(f"{name!a} cannot be the name of a variable of a shell", where="--env")
        yield f"export {prefix}{name}={text_word(value, spec.sweep)}\n"
    for name, quoted in own_variables(submission):
        yield f"export {prefix}{name}={quoted}\n"


def _binds(options: ContainerOptions) -> Iterator[tuple[str, str, bool]]:
    """Yield source and target of each mount, and whether it is read-only."""
    for text in options.volumes:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        yield _bind("--volume", source, target, "ro" in mode.split(","))
    for text in options.mounts:
        try:
            mount = docker_args.mount(text)
        except ValueError as error:
            raise InputError(str(error), where="--mount") from error
        yield _bind("--mount", mount.source if mount.kind == "bind" else "", mount.target, mount.readonly)


def _bind(option: str, source: str, target: str, is_fixed: bool) -> tuple[str, str, bool]:
    if not source.startswith("/") or not target:
        raise InputError("only directories of the node can be mounted without Docker", where=option)
    for path in (source, target):
        if any(mark in path for mark in ",:"):
            raise InputError(f"{path!a} has a comma or a colon", where=option)
    return source, target, is_fixed


def _uri(spec: JobSpec) -> str:
    """Return the image as Apptainer names it: a file, or an address."""
    image = spec.image or ""
    return image if "://" in image or image.startswith(("/", "./")) else f"docker://{image}"


def _enroot(image: str) -> str:
    """Return the image as enroot names it: `nvcr.io#nvidia/pytorch:24.01`."""
    registry, slash, rest = image.partition("/")
    is_registry = slash and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if is_registry and "#" not in image and registry not in {"", "."} else image


def _ulimit(text: str) -> str:
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    letter = _ULIMITS.get(name)
    if letter is None:
        raise InputError(f"{name!a} is not a limit that bash knows", where="--ulimit")
    soft, hard = (_limit(each, name) for each in (soft, hard or soft))
    return f"ulimit -S{letter} {soft} && ulimit -H{letter} {hard}"


def _limit(text: str, name: str) -> str:
    if text in {"-1", "unlimited"}:
        return "unlimited"
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{text!a} is not a limit", where="--ulimit")
    return str(int(text) // 1024 if name in _KIBIBYTES else int(text))
