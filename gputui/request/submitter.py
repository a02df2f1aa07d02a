"""Builds a submission from parsed options or a job file, and reads options as `docker run` does.

Options of a command line end at the first word that is not an option, which is the image, or at `--`. All errors are
reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.config import present_directory
from gputui.domain.errors import InputError, InputErrors
from gputui.domain.job_spec import (
    MAX_NAME,
    ContainerOptions,
    GpuRequest,
    Inherited,
    JobSpec,
    Pairs,
    Submission,
)
from gputui.domain.text import plain, quoted
from gputui.request import docker_values, job_values
from gputui.request.caller import is_taken_over, not_utf8
from gputui.request.job_options import BY_NAME, DOCKER_KEYS, KEYS, JobOption, OptionKind

_DURATION = re.compile(r"(\d+[dhms])+|\d+(:\d\d){1,2}")
"""The value of Slurm's `-t`; no image has such a name."""
_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Tidied(Struct):
    """The words for click, and the findings on the way."""

    words: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    """Docker's options that change nothing here."""
    strays: list[str] = field(default_factory=list)
    """Options of the command that the job gets as its own arguments, because they follow the image."""
    faults: list[InputError] = field(default_factory=list)

    @property
    def note(self) -> str:
        """Return in one line what the ignored and the stray options mean; empty if there is nothing to say."""
        by_words: dict[str, list[str]] = {}
        for option in dict.fromkeys(self.taken):
            if words := TAKEN[option]:
                by_words.setdefault(words, []).append(option)
        told = [f"{', '.join(options)}: {words}" for words, options in by_words.items()]
        if self.strays:
            what = f"{', '.join(self.strays)} after the image or command: passed to the job"
            told.append(f"{what}; options of gputui go before it, and -- before it silences this note")
        return "; ".join(told)


def tidy(arguments: Sequence[str], options: Mapping[str, bool]) -> Tidied:
    """Return the words without docker's own options.

    `options` are those of the command, with whether each takes a value.
    """
    others = dict.fromkeys((*TAKEN, *REFUSED), True)
    reader = _Reader({**others, **dict.fromkeys(WITHOUT_VALUE, False), **options}, options)
    place = 0
    while place < len(arguments) and (word := arguments[place]).startswith("-") and word not in {"-", "--"}:
        place += reader.take(arguments[place], arguments[place + 1 :])
    rest = arguments[place:]
    command = [] if rest[:1] == ["--"] else rest[1:]
    names = {word.partition("=")[0]: None for word in command if word.startswith("--")}
    before = {word.partition("=")[0] for word in reader.found.words}
    reader.found.strays = [name for name in names if name in options and name not in before]
    reader.found.words += arguments[place:]
    if "-t" in reader.found.taken and place < len(arguments) and _DURATION.fullmatch(arguments[place]):
        hint = f"write --time-limit {arguments[place]}; -t is docker's terminal"
        reader.found.faults.append(InputError("takes no time", where="-t", hint=hint))
    return reader.found


class _Reader(Struct):
    """Takes one option after the other."""

    _options: Mapping[str, bool]
    """All options, with whether each takes a value."""
    _own: Mapping[str, bool]
    """Options of the command itself, with the same."""
    found: Tidied = field(default_factory=Tidied)

    def take(self, word: str, rest: Sequence[str]) -> int:
        if not word.startswith("--"):
            return self._short(word[1:], rest)
        name, equals, value = word.partition("=")
        if name not in self._options:
            self._unknown(name)
            # the next word may look like the value of an unknown option, rather than the image
            is_value = len(rest) > 1 and not rest[0].startswith("-") and rest[1].startswith("-")
            return 2 if not equals and is_value and not set(rest[0]) & {"/", ":"} else 1
        if not self._options[name]:
            self._flag(name, value if equals else None)
        elif equals:
            self._value(name, [word])
        else:
            return self._separate(name, rest)
        return 1

    def _short(self, letters: str, rest: Sequence[str]) -> int:
        """Process short options: `-dit`, `-p80:80`, `-itp 80:80`, `-d=true`."""
        while letters:
            name, letters = f"-{letters[0]}", letters[1:]
            if name not in self._options:
                self._unknown(name)
                return 1
            if self._options[name]:
                if not letters:
                    return self._separate(name, rest)
                self._value(name, [name + letters])
                return 1
            if letters.startswith("="):
                self._flag(name, letters[1:])
                return 1
            self._flag(name, None)
        return 1

    def _separate(self, name: str, rest: Sequence[str]) -> int:
        if not rest:
            hint = "as in docker run, -h names the host; the help is --help" if name == "-h" else None
            self.found.faults.append(InputError("needs a value", where=name, hint=hint))
            return 1
        self._value(name, [name, rest[0]])
        return 2

    def _value(self, name: str, words: list[str]) -> None:
        if name in self._own:
            self.found.words += words
        else:
            self._others(name, words[-1].removeprefix(f"{name}="))

    def _flag(self, name: str, value: str | None) -> None:
        truth = True if value is None else _TRUTH.get(value.lower())
        if truth is None:
            self.found.faults.append(InputError(f"{quoted(value or '')} is neither true nor false", where=name))
        elif name == "--init" and not truth:
            self.found.words += ["--no-init"] if "--no-init" in self._own else []
        elif truth and name in self._own:
            self.found.words.append(name)
        elif truth:
            self._others(name, "")

    def _others(self, name: str, value: str) -> None:
        if name in REFUSED:
            hint = REFUSED[name]
            self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))
        elif not (name == "--restart" and value == "no"):
            self.found.taken.append(name)

    def _unknown(self, name: str) -> None:
        import difflib  # rarely needed

        near = difflib.get_close_matches(name, [each for each in self._own if each.startswith("--")], 1, 0.75)
        hint = f"did you mean {near[0]}?" if near else "gputui submit --help lists the options"
        self.found.faults.append(InputError("is not an option of submit", where=name, hint=hint))


def raised(faults: Iterable[InputError]) -> None:
    """Raise the errors: one as it is, several together."""
    found = tuple(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InputErrors(found)


_DETACHED = "every job runs in the background"
_KEPT = "output is kept: gputui logs -f ID follows it"
_NO_INPUT = "a job has no input: gputui run -i gives it one"
_NO_TERMINAL = f"a job has no terminal: gputui run -t gives it one; {_KEPT}"
SILENT = ""

TAKEN = MappingProxyType(
    {
        "-d": _DETACHED,
        "--detach": _DETACHED,
        "--rm": "a job's container is removed once its log is saved",
        "--restart": "gputui restarts no container; --retries N runs a failed job again",
        "-i": _NO_INPUT,
        "--interactive": _NO_INPUT,
        "-t": _NO_TERMINAL,
        "--tty": _NO_TERMINAL,
        "-a": _KEPT,
        "--attach": _KEPT,
        "--detach-keys": _NO_TERMINAL,
        "--sig-proxy": "gputui cancel ID ends a job",
        "--init": SILENT,
        "-q": SILENT,
        "--quiet": SILENT,
        "--disable-content-trust": SILENT,
    }
)
"""Options that change nothing about a job, each with its meaning here; empty: as in docker."""

ANYHOW = frozenset({"-d", "--detach", "--rm"})
"""Ignored options that describe every job anyway, so that nothing is lost."""

_WINDOWS = "only Windows containers have it"
_SLURM = "sbatch's option"

REFUSED = MappingProxyType(
    {
        "--cidfile": "gputui show ID --json names the container",
        "--kernel-memory": "engines no longer support it: --memory bounds all memory",
        "--use-api-socket": "write -v /var/run/docker.sock:/var/run/docker.sock",
        "--isolation": _WINDOWS,
        "--cpu-count": f"{_WINDOWS}: write --cpus N",
        "--cpu-percent": f"{_WINDOWS}: write --cpus N",
        "--io-maxbandwidth": f"{_WINDOWS}: write --device-write-bps",
        "--io-maxiops": f"{_WINDOWS}: write --device-write-iops",
        "--env-from-file": "write --env-file FILE",
        "--time": f"{_SLURM}: write --time-limit DURATION",
        "--gres": f"{_SLURM}: write --gpus N",
        "--dependency": f"{_SLURM}: write --after ID or --after-any ID",
    }
)
"""Options that cannot be honoured, each with its replacement."""

WITHOUT_VALUE = frozenset(
    {
        *("-d", "--detach", "--rm", "-i", "--interactive", "-t", "--tty", "--sig-proxy", "--init"),
        *("-q", "--quiet", "--disable-content-trust", "--use-api-socket"),
    }
)
"""Ignored and refused options without a value."""


MAX_ARGUMENTS = 1024**2
"""Maximum bytes of a whole command; the kernel allows about twice that, environment included."""


class Submitter(Struct, frozen=True):
    """User who submits, with directory, environment and time."""

    user: str
    now: datetime
    directory: Path | None = None
    """None: the present one of this process."""
    environ: Mapping[str, str] = os.environ
    inherited: Inherited | None = None
    """What its host jobs take over from it; None: nothing."""


def submission(
    values: Mapping[str, Any],
    image: str | None,
    command: tuple[str, ...],
    submitter: Submitter,
    where: Callable[[str], str],
) -> Submission:
    """Return the submission for parsed `values`, by the names of KEYS.

    `where` returns the name of a key for errors.
    """
    if sum(len(job_values.any_text(argument, where("command"))) for argument in command) > MAX_ARGUMENTS:
        raise InputError("is longer than 1 MiB", where=where("command"))
    if image is None:
        if not command or not command[0]:
            raise InputError("a host job needs a command", where=where("command"))
        for key in KEYS:
            if key.container and values.get(key.name) not in (None, ()) and values[key.name] is not False:
                raise InputError("a host job has no container to give that to", where=where(key.name))
    else:
        docker_values.image(image, where("image"))
        if values.get("env_all"):
            raise InputError("is for host jobs", where=where("env_all"), hint=f"name variables by {where('env')}")
    elements: job_values.Array = values.get("array") or job_values.Array(())
    if not elements.indices and values.get("sweep"):
        count = job_values.check_sweep(values["sweep"], where("sweep"))
        elements = job_values.Array(tuple(range(count)), values.get("sweep_limit"))
    elif not elements.indices and "sweep_limit" in values:
        raise InputError("has no effect without a sweep", where=where("sweep_limit"), hint=f"add {where('sweep')}")
    spec = _spec(values, image, command, submitter, where)
    if spec.sweep:
        _check_places(spec, values, where)
    return Submission(spec=spec, held=bool(values.get("hold")), array=elements.indices, array_limit=elements.limit)


def _check_places(spec: JobSpec, values: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Raise InputError for names in braces that the sweep does not have; taken-over variables are not checked."""
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    if values.get("array"):
        raise InputError("a sweep is an array itself", where=where("array"), hint=f"use {where('sweep_limit')} for %N")
    in_files = (pair for file in values.get("env_file", ()) for pair in file)
    texts_of = {
        "command": spec.command,
        "name": (spec.name,),
        "env": tuple(value for _, value in (*in_files, *values.get("env", ())) if value is not None),
    }
    for key, given in texts_of.items():
        for text in given:
            try:
                sweeps.check_text(text, spec.sweep)
            except InputError as error:
                raise InputError(error.what, where=where(key), hint=error.hint) from error


_UNCHANGED = ("priority", "nice", "time_limit", "idle_timeout", "retries", "backoff", "gpu_memory_step", "comment")
"""Fields of JobSpec that take the value of their key unchanged."""


def _spec(
    values: Mapping[str, Any],
    image: str | None,
    command: tuple[str, ...],
    submitter: Submitter,
    where: Callable[[str], str],
) -> JobSpec:
    source = docker_values.image_name(image) if image else Path(command[0]).name
    usual = "".join(filter(str.isprintable, source))[:MAX_NAME].strip() or "job"
    return JobSpec(
        image=image,
        command=command,
        name=values.get("name") or usual,
        tenant=values.get("tenant") or submitter.user,
        gpus=_gpus(values, where),
        retry_on=tuple(dict.fromkeys(chain.from_iterable(values.get("retry_on", ())))),
        warning=values.get("signal"),
        after=tuple(dict.fromkeys(chain.from_iterable(values.get("after", ())))),
        after_any=tuple(dict.fromkeys(chain.from_iterable(values.get("after_any", ())))),
        begin_at=job_values.begin(values["begin"], where("begin"), submitter.now) if "begin" in values else None,
        preemptible=bool(values.get("preemptible")),
        inherited=submitter.inherited if image is None else None,
        options=_options(values, image is None, submitter, where),
        sweep=tuple(values.get("sweep", ())),
        **{name: values[name] for name in _UNCHANGED if name in values},
    )


def _gpus(values: Mapping[str, Any], where: Callable[[str], str]) -> GpuRequest:
    wanted: GpuRequest = values.get("gpus", GpuRequest())
    for key in ("retry_on", "gpu_memory_step"):
        if key in values and not values.get("retries"):
            raise InputError("has no effect without retries", where=where(key), hint=f"add {where('retries')}")
    for key in ("gpu_memory", "gpu_memory_step", "gpu_model"):
        if key in values and not wanted.minimum:
            raise InputError("has no effect without GPUs", where=where(key), hint=f"add {where('gpus')}")
    memory, model, share = values.get("gpu_memory"), values.get("gpu_model"), bool(values.get("share"))
    if share and not memory:
        raise InputError("has no effect without GPU memory", where=where("share"), hint=f"add {where('gpu_memory')}")
    return replace(wanted, memory=memory, model=model, share=share)


def _options(
    values: Mapping[str, Any], is_host: bool, submitter: Submitter, where: Callable[[str], str]
) -> ContainerOptions:
    in_files = tuple(pair for file in values.get("env_file", ()) for pair in file)
    everything = bool(values.get("env_all"))
    taken = [name for name in submitter.environ if is_taken_over(name, everything=everything)] if is_host else []
    odd = not_utf8(submitter.environ) if taken else frozenset()
    inherited = tuple((name, None) for name in taken if name not in odd)
    given = (*inherited, *in_files, *values.get("env", ()))
    labels = (*(pair for file in values.get("label_file", ()) for pair in file), *values.get("label", ()))
    fields = {key.field: values[key.name] for key in DOCKER_KEYS if key.field and key.name in values}
    if is_host and not fields.get("workdir"):
        hint = f"go to another one, or name one by {where('workdir')}"
        path = submitter.directory or present_directory()
        if path is None:
            raise InputError("a host job runs in the present directory, which has been deleted", hint=hint)
        try:
            fields["workdir"] = job_values.any_text(str(path), where("workdir"))
        except InputError as error:
            what = f"a host job runs in the present directory, {plain(str(path), 200)}, whose name {error.what}"
            raise InputError(what, hint=hint) from error
    if values.get("network") == "host" and any("auto:" in text for text in values.get("publish", ())):
        hint = "with the host's network a job listens on the host's own ports: choose one by the job's own option"
        raise InputError("cannot choose a port", where=where("publish"), hint=hint)
    return ContainerOptions(
        env=merged_env(given, submitter.environ, where("env")), labels=tuple(dict(labels).items()), **fields
    )


def merged_env(pairs: Iterable[tuple[str, str | None]], environ: Mapping[str, str], where: str) -> Pairs:
    """Return the environment, where later ones override; a name alone copies this process's value, if any."""
    env: dict[str, str] = {}
    for name, value in pairs:
        if value is None and name in environ:
            value = job_values.any_text(environ[name], f"{where} {name}")
        if value is not None:
            env[name] = value
    return tuple(env.items())


_TIDIED = "gputui.request.tidied"


class SubmitCommand(click.Command):
    """Parses options as docker run does, up to the image, and reports all errors together."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {
            name: not parameter.is_flag
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in parameter.opts
        }
        found = ctx.meta[_TIDIED] = tidy(args, options)
        if found.faults and (not found.words and [fault.where for fault in found.faults] == ["-h"]):
            raise found.faults[0]
        return super().parse_args(ctx, found.words)


def tidied(ctx: click.Context) -> Tidied:
    found = ctx.meta.get(_TIDIED)
    return found if isinstance(found, Tidied) else Tidied()


def with_options(
    function: Callable[..., Any], completers: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Callable[..., Any]:
    """Return the function with an option for every key; `completers` complete their values in a shell, by key."""
    for key in reversed(KEYS):
        names, completer = (*key.short, key.option, key.name), completers.get(key.name)
        if key.kind is OptionKind.FLAG:
            option = click.option(*names, is_flag=True, help=key.help)
        else:
            several, metavar = key.kind is not OptionKind.ONE, key.metavar
            option = click.option(*names, multiple=several, metavar=metavar, help=key.help, shell_complete=completer)
        function = option(function)
    return function


def submission_of(
    given: dict[str, Any], arguments: tuple[str, ...], host: bool, by: Submitter, found: Tidied | None = None
) -> Submission:
    """Return the submission for options and arguments; raises InputError, or InputErrors with all errors."""
    faults = list(found.faults) if found else []
    image, rest = (None, arguments) if host else (arguments[0] if arguments else "", arguments[1:])
    if image == "" and not faults:
        faults.append(InputError("is missing", where="IMAGE", hint="gputui submit [OPTIONS] IMAGE [COMMAND...]"))
    values: dict[str, object] = {}
    for name, value in given.items():
        if value not in (None, (), False):
            try:
                key = BY_NAME[name]
                if key.kind is OptionKind.FLAG:
                    values[name] = value
                elif key.kind is OptionKind.ONE:
                    values[name] = key.read(unsigned(key, value), key.option)
                else:
                    values[name] = tuple(key.read(unsigned(key, text), key.option) for text in value)
            except InputError as error:
                faults.append(error)
    raised(faults)
    return submission(values, image, rest, by, lambda key: BY_NAME[key].option if key in BY_NAME else key.upper())


def unsigned(key: JobOption, text: str) -> str:
    """Return the value of `-m=16g` or `-e=A=1` without its first sign, as docker does; no value begins with one."""
    has_letter = any(len(name) == 2 for name in key.short)
    if not has_letter or (key.kind is OptionKind.PAIRS and "=" not in text[1:]):
        return text
    return text.removeprefix("=")
