"""Words of bash scripts: texts quoted so that bash sees exactly these characters, and options of `docker create`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from gputui.domain import docker_args
from gputui.domain.errors import InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.settings import Settings

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSEEN = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff"
"""Characters that act on a terminal, end a line for some readers, or hide; bytes that are not UTF-8."""
_SPECIAL = re.compile(rf"[\x01-\x1f\\'{_UNSEEN}]")
_CONTROL = re.compile(rf"[\x01-\x08\x0b-\x1f{_UNSEEN}]")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Names that a variable of bash can have."""
_ELSEWHERE = frozenset(
    {
        *("cpus", "env", "labels", "log_driver", "log_opt", "memory", "no_init", "pids_limit", "publish"),
        *("security_opt", "stop_timeout", "user"),
    }
)
"""Options that are not passed on as they are."""
OPTION_NAMES = {"volumes": "volume", "mounts": "mount", "labels": "label", "ulimits": "ulimit"}
"""Options of docker by their fields, where these differ."""
_OURS = "gputui."
_PROFILE = "seccomp="


def word(text: str) -> str:
    """Return the text as one word; raises InputError if it contains a NUL, which no word can.

    Texts with control characters are written as $'…': sbatch refuses scripts with ends of line as in DOS.
    """
    if "\0" in text:
        raise InputError("a command and its options cannot contain the character NUL")
    if not _CONTROL.search(text):
        return shlex.quote(text)
    return "$'" + _SPECIAL.sub(lambda match: _ESCAPES.get(match[0]) or _bytes(match[0]), text) + "'"


def _bytes(character: str) -> str:
    """Return the character as its bytes, which every locale takes: \\u depends on it."""
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def array(name: str, words: Iterable[str]) -> str:
    lines = [f"  {each}\n" for each in words]
    return f"{name}=(\n{''.join(lines)})\n" if lines else f"{name}=()\n"


def option_words(spec: JobSpec, settings: Settings) -> Iterator[str]:
    """Yield the options that do not depend on the node; raises InputError for what the site does not allow."""
    options = spec.options
    yield from _plain(options)
    yield from (word(f"--publish={text}") for text in _published(options))
    yield from (word(f"--security-opt={text}") for text in options.security_opt if not _is_profile(text))
    yield from (word(f"--label={name}={value}") for name, value in options.labels if not name.startswith(_OURS))
    if spec.tenant:
        yield word(f"--label=user={spec.tenant}")
    own = {text.partition("=")[0] for text in options.log_opt}
    site = {"max-size": settings.runtime.log_max_size, "max-file": settings.runtime.log_max_files}
    rotation = (f"{name}={value}" for name, value in site.items() if name not in own)
    yield from (word(f"--log-opt={text}") for text in (*rotation, *options.log_opt))
    yield word(f"--log-driver={options.log_driver or 'json-file'}")
    if not options.no_init:
        yield "--init"
    if spec.interactive is not None:
        yield from ["--interactive"] if spec.interactive.stdin else []
        yield from ["--tty"] if spec.interactive.tty else []
    grace = -(-settings.scheduler.stop_grace // timedelta(seconds=1))
    yield word(f"--stop-timeout={grace if options.stop_timeout is None else options.stop_timeout}")
    limit, most = options.pids_limit, settings.runtime.pids_limit
    if limit is None or (most is not None and limit <= 0):
        limit = most
    elif most is not None:
        limit = min(limit, most)
    if limit is not None:
        yield word(f"--pids-limit={limit}")
    yield from _user(options, settings)
    if options.cpus is not None:
        yield word(f"--cpus={options.cpus:g}")
    elif settings.cluster.limit_containers:
        yield '${SLURM_CPUS_ON_NODE:+"--cpus=$SLURM_CPUS_ON_NODE"}'
    if options.memory is not None:
        yield word(f"--memory={options.memory}")
    elif settings.cluster.limit_containers:
        yield "$(allocated_memory)"


def profiles(options: ContainerOptions) -> Iterator[str]:
    return (text.removeprefix(_PROFILE) for text in options.security_opt if _is_profile(text))


def gpu_value(request: GpuRequest) -> tuple[str, str]:
    """Return what precedes and follows the UUIDs in the value of `--gpus`."""
    before = f"driver={request.driver}," if request.driver else ""
    fields = []
    if request.capabilities:
        fields.append('"capabilities=' + ",".join(request.capabilities) + '"')
    if request.driver_options:
        fields.append('"options=' + ",".join(f"{name}={value}" for name, value in request.driver_options) + '"')
    return before + '"device=', "".join(['"', *(f",{field}" for field in fields)])


def _plain(options: ContainerOptions) -> Iterator[str]:
    for field in ContainerOptions.__struct_fields__:
        value = getattr(options, field)
        if field in _ELSEWHERE or value is None or value is False:
            continue
        flag = "--" + OPTION_NAMES.get(field, field).replace("_", "-")
        if value is True:
            yield flag
        else:
            yield from (word(f"{flag}={_text(each)}") for each in (value if isinstance(value, tuple) else (value,)))


def _text(value: Any) -> str:
    """Return a value as docker's client reads it: durations in Go's notation, sizes in bytes."""
    return f"{value // timedelta(microseconds=1)}us" if isinstance(value, timedelta) else str(value)


def _published(options: ContainerOptions) -> Iterator[str]:
    for text in options.publish:
        try:
            ports = docker_args.published_ports(text)
        except ValueError as error:
            raise InputError(str(error), where="--publish") from error
        for port in ports:
            address = f"[{port.host_ip}]:" if ":" in port.host_ip else f"{port.host_ip}:" if port.host_ip else ""
            host = f"{port.host_port}:" if port.host_port or address else ""
            yield f"{address}{host}{port.key}"


def _is_profile(text: str) -> bool:
    return text.startswith(_PROFILE) and text.removeprefix(_PROFILE).lstrip().startswith("{")


def _user(options: ContainerOptions, settings: Settings) -> Iterator[str]:
    if not settings.runtime.run_as_submitter:
        yield from (word(f"--user={user}") for user in (options.user,) if user is not None)
        return
    if options.user is not None:
        raise InputError("containers of this cluster run as their submitter", where="--user", hint="leave it out")
    yield '--user="$(id -u):$(id -g)"'
    yield '$(printf -- "--group-add=%s " $(id -G))'
    yield "--security-opt=no-new-privileges"
