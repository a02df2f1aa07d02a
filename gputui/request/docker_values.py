"""Values of `docker run`'s rarer options, checked as docker checks them, before the submission."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from gputui.config import typed_path
from gputui.domain import docker_args
from gputui.domain.errors import InputError
from gputui.domain.text import parse_duration, parse_size, quoted
from gputui.request import caller
from gputui.request.job_values import any_text, one_line, token

MAX_PROFILE = 1024**2
"""Bytes of a seccomp profile."""
_GO_DURATION = r"(?a)(?:\d+(?:\.\d*)?(?:h|ms|us|µs|ns|m|s))+"  # compiled when needed, as the others below
_GO_PART = r"(?a)(\d+(?:\.\d*)?)(h|ms|us|ns|m|s)"
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_CPUS = r"(?a)\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"
_CONTAINER = r"container:[\w][\w.-]{0,127}"


def _shaped(pattern: str, noun: str, hint: str, text: str, where: str) -> str:
    if not re.fullmatch(pattern, one_line(text, where, 4096), re.ASCII):
        raise InputError(f"{quoted(text)} is not {noun}", where=where, hint=hint)
    return text


def _parsed(parse: Callable[[str], object], text: str, where: str) -> str:
    """Return a text that `parse` accepts without a ValueError."""
    try:
        parse(one_line(text, where, 8192))
    except ValueError as error:
        raise InputError(str(error), where=where) from error
    return text


publish = partial(_parsed, docker_args.published_ports)
expose = partial(_parsed, docker_args.exposed_ports)
capability = partial(_shaped, r"[A-Za-z_]{2,40}", "a capability", "write SYS_PTRACE, IPC_LOCK or ALL")
device_rule = partial(_shaped, r"[acb] (\d+|\*):(\d+|\*) [rwm]{1,3}", "a rule for devices", "write 'c 10:* rwm'")
tmpfs = partial(_shaped, r"/[^:,]*(:.+)?", "a directory for tmpfs", "write /run or /run:size=64m,mode=1777")
pid = partial(_shaped, rf"host|{_CONTAINER}", "a PID namespace", "host or container:NAME")
uts = partial(_shaped, "host", "a UTS namespace", "host")
userns = partial(_shaped, "host", "a user namespace", "host")
cgroupns = partial(_shaped, "host|private", "a cgroup namespace", "host or private")
pull = partial(_shaped, "always|missing|never", "a way to pull", "always, missing or never")
platform = partial(_shaped, r"[\w.-]+(/[\w.-]+){0,2}", "a platform", "write linux/amd64 or linux/arm64/v8")
mac_address = partial(_shaped, r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", "a MAC address", "write 02:42:ac:11:00:02")
name_value = partial(_shaped, r"[^=\s]+=.*", "NAME=VALUE", "write NAME=VALUE")
volumes_from = partial(_shaped, r"[\w][\w.-]*(:(r[ow]|[zZ])(,(r[ow]|[zZ]))*)?", "a container", "write NAME or NAME:ro")
weight_device = partial(_shaped, r"/[^:]+:\d{1,4}", "a device with its weight", "write /dev/sda:500")
device_operations = partial(_shaped, r"/[^:]+:\d{1,12}", "a device with its rate", "write /dev/sda:1000")
link = partial(_shaped, r"[\w][\w.-]*(:[\w][\w.-]*)?", "a link", "write NAME or NAME:ALIAS")


def network(text: str, where: str) -> str:
    """Return a network: a name, a mode, or `name=NAME,alias=A,ip=…`."""
    return _parsed(docker_args.network, token(text, where), where)


def hostname(text: str, where: str) -> str:
    """Return a host name; refuse a value that looks like an option, which is probably a mistake."""
    if text.startswith("-"):
        hint = "as in docker run, -h names the host; the help is --help"
        raise InputError(f"{quoted(text)} is not a host name", where=where, hint=hint)
    return token(text, where)


def device(text: str, where: str) -> str:
    _parsed(docker_args.device, text, where)
    spec = docker_args.device(text)
    if spec.cdi.startswith("nvidia.com/") or re.fullmatch(r"/dev/nvidia\d+", spec.host, re.ASCII):
        hint = "write --gpus N, --gpus all or --gpus device=0"
        raise InputError(f"{quoted(text)} is a GPU, and the scheduler assigns GPUs", where=where, hint=hint)
    return text


def device_rate(text: str, where: str) -> str:
    """Return a device with bytes per second: `/dev/sda:10mb`."""
    path, colon, rate = one_line(text, where, 4096).rpartition(":")
    if not colon or not path.startswith("/"):
        raise InputError(f"{quoted(text)} is not a device with its rate", where=where, hint="write /dev/sda:10mb")
    parse_size(rate, where=where)
    return text


def add_host(text: str, where: str) -> str:
    """Return `NAME:ADDRESS`, which newer clients also write with an equals sign."""
    name, sign, address = one_line(text, where).partition("=" if "=" in text else ":")
    address = address.removeprefix("[").removesuffix("]")
    if not name or not sign or not (address == "host-gateway" or _is_address(address)):
        hint = "write NAME:192.0.2.1 or NAME:host-gateway"
        raise InputError(f"{quoted(text)} is not a host with its address", where=where, hint=hint)
    return f"{name}:{address}"


def address(text: str, where: str) -> str:
    if not _is_address(text):
        raise InputError(f"{quoted(text)} is not an IP address", where=where)
    return text


def _is_address(text: str) -> bool:
    import ipaddress  # few lines name one

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def security(text: str, where: str) -> str:
    """Return a security option; a seccomp profile is read from its file, as docker's client reads it."""
    name, sign, value = any_text(text, where).partition("=")
    if not sign and ":" in name:
        name, _, value = name.partition(":")
    if name != "no-new-privileges" and not value:
        hint = "write no-new-privileges, seccomp=unconfined, apparmor=unconfined or label=disable"
        raise InputError(f"{quoted(text)} is not a security option", where=where, hint=hint)
    if name == "seccomp" and value not in {"unconfined", "builtin"}:
        return f"seccomp={_profile(value, where)}"
    return one_line(text, where, 4096)


def _profile(value: str, where: str) -> str:
    """Return the JSON of a profile, given as JSON or as the name of a file."""
    import json  # few jobs have a profile

    try:
        content = value if value.startswith("{") else _limited(Path(value), MAX_PROFILE).decode()
        return json.dumps(json.loads(content), separators=(",", ":"))
    except OSError as error:
        raise InputError(f"{quoted(value)} cannot be read: {error.strerror}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{quoted(value)} is not a seccomp profile in JSON", where=where) from error


def _limited(path: Path, limit: int) -> bytes:
    """Return a file's content; raises OSError, or ValueError if it is larger."""
    caller.check_here()
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError("too large")
    return content


def cpu_list(text: str, where: str) -> str:
    """Return a list of CPUs or memory nodes: `0-3,8`."""
    if not re.fullmatch(_CPUS, text):
        raise InputError(f"{quoted(text)} is not a list of CPUs", where=where, hint="write 0-3 or 0,2")
    return text


def stop_signal(text: str, where: str) -> str:
    name = text.upper().removeprefix("SIG")
    known = {each.name.removeprefix("SIG") for each in signal.Signals}
    is_number = bool(re.fullmatch(r"\d{1,2}", text, re.ASCII)) and 0 < int(text) < 65
    if not (name in known or re.fullmatch(r"RTM(IN|AX)([+-]\d{1,2})?", name) or is_number):
        raise InputError(f"{quoted(text)} is not a signal", where=where, hint="write SIGINT, TERM or 15")
    return text


def log_driver(text: str, where: str) -> str:
    if text not in {"json-file", "local"}:
        hint = "write json-file or local, or leave it out"
        raise InputError(f"gputui logs cannot show output that goes to {quoted(text)}", where=where, hint=hint)
    return text


def swap(text: str, where: str) -> int:
    """Return bytes of memory and swap together; -1: swap is not limited."""
    return -1 if text.strip() == "-1" else parse_size(text, where=where)


def go_duration(text: str, where: str) -> timedelta:
    """Return the duration of `30s`, `1m30s` or `500ms`, as Go programs write them."""
    text = text.strip().replace("µs", "us")
    if not re.fullmatch(_GO_DURATION, text) or len(text) > 40:
        return parse_duration(text, where=where)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_GO_PART, text))
    if seconds and not 0.001 <= seconds <= 10 * 365 * 86_400:
        raise InputError(f"{quoted(text)} is out of range", where=where, hint="1ms to ten years")
    return timedelta(seconds=seconds)


MAX_ENV_FILE = 1024**2
RESERVED_LABELS = ("gputui.", "user")
"""`user` is the tenant; gputui finds its containers by the others."""

_IMAGE = re.compile(r"[a-zA-Z0-9\[][a-zA-Z0-9._:/@\[\]-]*", re.ASCII)
_ULIMIT = (
    r"(?a)(?:core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)"
    r"=(-1|\d{1,18})(?::(-1|\d{1,18}))?"
)
_MODE = r"r[ow]|[zZ]|r?(?:shared|slave|private)|nocopy|cached|delegated|consistent"


def image(text: str, where: str) -> str:
    """Return an image reference: `name`, `name:tag`, `registry/name@sha256:…`."""
    one_line(text, where)
    if not _IMAGE.fullmatch(text):
        raise InputError(f"{quoted(text)} is not the name of an image", where=where)
    first, slash, rest = text.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    name = re.split(r"[:@]", rest if has_host else text)[0]
    if name != name.lower() or not name or name.startswith("/") or name.endswith("/"):
        hint = "the name before the tag is in small letters"
        raise InputError(f"{quoted(text)} is not the name of an image", where=where, hint=hint)
    return text


def image_name(reference: str) -> str:
    """Return the last part of an image's name, without registry, tag or digest."""
    return reference.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]


def pair(text: str, where: str) -> tuple[str, str | None]:
    """Return name and value of `NAME=VALUE`; for `NAME` alone the value is None."""
    name, equals, value = any_text(text, where).partition("=")
    if not name or re.search(r"\s", name) or not name.isprintable():
        raise InputError(f"{quoted(text.partition('=')[0])} is not a name", where=where, hint="write NAME=VALUE")
    return name, value if equals else None


def env_file(text: str, where: str) -> tuple[tuple[str, str | None], ...]:
    """Return the variables in a file of `NAME=VALUE` lines: `#` begins a comment line, quotes are part of the value."""
    where = f"{where} {quoted(text)}"
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        lines = _limited(Path(text), MAX_ENV_FILE).decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=where) from error
    except ValueError as error:
        raise InputError("is larger than 1 MiB", where=where) from error
    return tuple(
        pair(line.lstrip().removesuffix("\r"), f"{where}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )


def label(text: str, where: str) -> tuple[str, str | None]:
    """Return a label; the value of a name alone is empty."""
    name, value = pair(text, where)
    if name.startswith(RESERVED_LABELS[0]) or name == RESERVED_LABELS[1]:
        hint = "give --tenant instead" if name == "user" else "choose another name"
        raise InputError(f"the label {quoted(name)} is gputui's own", where=where, hint=hint)
    return name, value or ""


def label_file(text: str, where: str) -> tuple[tuple[str, str | None], ...]:
    pairs = env_file(text, where)
    return tuple(
        label(name if value is None else f"{name}={value}", f"{where} {quoted(text)}") for name, value in pairs
    )


def volume(text: str, where: str) -> str:
    """Return `source:target[:mode]` or `target`; a source that begins with a dot is made absolute."""
    parts = one_line(text, where, 8192).split(":")
    source, target = (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    if len(parts) > 3 or not target.startswith("/"):
        hint = "write SOURCE:TARGET or SOURCE:TARGET:ro, the target absolute"
        raise InputError(f"{quoted(text)} is not a volume", where=where, hint=hint)
    if len(parts) == 3 and not all(re.fullmatch(_MODE, word) for word in parts[2].split(",")):
        raise InputError(f"{quoted(parts[2])} is not a mode", where=where, hint="ro or rw")
    if source is None:
        return text
    if source.startswith("."):
        source = _absolute(source, where)
    elif not re.fullmatch(r"/.*|[a-zA-Z0-9][a-zA-Z0-9_.-]*", source):
        hint = "an absolute path, one that begins with ./, or a volume's name"
        raise InputError(f"{quoted(source)} is not a source", where=where, hint=hint)
    return ":".join((source, *parts[1:]))


def mount(text: str, where: str) -> str:
    """Return `type=bind,source=…,target=…`, checked; a bind source that begins with a dot is made absolute."""
    one_line(text, where, 8192)
    relative = r"(^|,)(source|src)=(\.[^,]*)"
    text = re.sub(relative, lambda found: f"{found[1]}{found[2]}={_absolute(found[3], where)}", text)
    try:
        docker_args.mount(text)
    except ValueError as error:
        raise InputError(str(error), where=where, hint="write type=bind,source=/path,target=/path") from error
    return text


def _absolute(path: str, where: str) -> str:
    caller.check_here()
    return str(typed_path(path, where).resolve())


def ulimit(text: str, where: str) -> str:
    match = re.fullmatch(_ULIMIT, text)
    if not match:
        hint = "write nofile=1024:4096 or memlock=-1"
        raise InputError(f"{quoted(text)} is not a limit", where=where, hint=hint)
    soft, hard = int(match[1]), int(match[2] or match[1])
    if hard != -1 and (soft == -1 or soft > hard):
        raise InputError(f"{quoted(text)}: the soft limit is above the hard one", where=where)
    return text


def ipc(text: str, where: str) -> str:
    if not re.fullmatch(r"host|private|shareable|none|container:[\w.-]{1,128}", text, re.ASCII):
        hint = "host, private, shareable, none or container:NAME"
        raise InputError(f"{quoted(text)} is not an IPC mode", where=where, hint=hint)
    return text


# one of a directory service may have blanks
group = partial(_shaped, r"[^\s:]([^:]*[^\s:])?", "a group", "write NAME or GID")


def user(text: str, where: str) -> str:
    """Return `name`, `uid` or either with `:group`; any of these may have blanks, as in `ann:domain users`."""
    if not re.fullmatch(r"[^\s:]([^:]*[^\s:])?(:[^\s:]([^:]*[^\s:])?)?", one_line(text, where, 512)):
        raise InputError(f"{quoted(text)} is not a user", where=where, hint="write NAME, UID or UID:GID")
    return text


def workdir(text: str, where: str) -> str:
    if not one_line(text, where, 4096).startswith("/"):
        raise InputError(f"{quoted(text)} is not an absolute path", where=where)
    return text


def entrypoint(text: str, where: str) -> str:
    """Return a program; empty, or a pair of quotes: none, regardless of the image."""
    return "" if text in {"''", '""'} else any_text(text, where)


def entrypoint_text(program: str) -> str:
    """Return the text of an entry point in a draft, where blank means unset."""
    return program or "''"
