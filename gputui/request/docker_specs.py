"""The values of `docker run`'s own options, as docker reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gputui.domain import docker_args
from gputui.domain.errors import InputError
from gputui.domain.job import Pairs
from gputui.request.texts import any_text, one_line, quoted, token

MAX_ENV_FILE = 1024**2
RESERVED_LABELS = ("gputui.", "user")
"""`user` is the tenant; the others are how gputui finds its containers again."""

_IMAGE = re.compile(r"[a-zA-Z0-9\[][a-zA-Z0-9._:/@\[\]-]*", re.ASCII)
_ULIMIT = re.compile(
    r"(?:core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)"
    r"=(-1|\d{1,18})(?::(-1|\d{1,18}))?",
    re.ASCII,
)
_MODE = re.compile(r"r[ow]|[zZ]|r?(?:shared|slave|private)|nocopy|cached|delegated|consistent")


def image(text: str, where: str) -> str:
    """A reference to an image: `name`, `name:tag`, `registry/name@sha256:…`."""
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
    """The last part of an image's name, without registry, tag or digest."""
    return reference.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]


def pair(text: str, where: str) -> tuple[str, str | None]:
    """Name and value of `NAME=VALUE`; the value of `NAME` alone is None."""
    name, equals, value = any_text(text, where).partition("=")
    if not name or re.search(r"\s", name) or not name.isprintable():
        raise InputError(f"{quoted(text.partition('=')[0])} is not a name", where=where, hint="write NAME=VALUE")
    return name, value if equals else None


def merged_env(pairs: Iterable[tuple[str, str | None]], environ: Mapping[str, str], where: str) -> Pairs:
    """The environment, later ones over earlier; a name without a value takes this process's, or is left out."""
    env: dict[str, str] = {}
    for name, value in pairs:
        if value is None and name in environ:
            value = any_text(environ[name], f"{where} {name}")
        if value is not None:
            env[name] = value
    return tuple(env.items())


def env_file(text: str, where: str) -> tuple[tuple[str, str | None], ...]:
    """What a file of `NAME=VALUE` lines holds: `#` begins a comment line, quotes are part of the value."""
    where = f"{where} {quoted(text)}"
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        with Path(text).open("rb") as file:
            content = file.read(MAX_ENV_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    if len(content) > MAX_ENV_FILE:
        raise InputError("is larger than 1 MiB", where=where)
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=where) from error
    return tuple(_env_lines(lines, where))


def _env_lines(lines: Iterable[str], where: str) -> Iterator[tuple[str, str | None]]:
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield pair(line.lstrip(), f"{where}, line {number}")


def label(text: str, where: str) -> tuple[str, str | None]:
    """A label; the value of a name alone is empty."""
    name, value = pair(text, where)
    if name.startswith(RESERVED_LABELS[0]) or name == RESERVED_LABELS[1]:
        hint = "give --tenant instead" if name == "user" else "choose another name"
        raise InputError(f"the label {quoted(name)} is gputui's own", where=where, hint=hint)
    return name, value or ""


def label_file(text: str, where: str) -> tuple[tuple[str, str | None], ...]:
    """Return the labels in a file of `NAME=VALUE` lines."""
    pairs = env_file(text, where)
    return tuple(
        label(name if value is None else f"{name}={value}", f"{where} {quoted(text)}") for name, value in pairs
    )


def volume(text: str, where: str) -> str:
    """`source:target[:mode]` or `target`; a source that begins with a dot is made absolute here."""
    parts = one_line(text, where, 8192).split(":")
    source, target = (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    if len(parts) > 3 or not target.startswith("/"):
        hint = "write SOURCE:TARGET or SOURCE:TARGET:ro, the target absolute"
        raise InputError(f"{quoted(text)} is not a volume", where=where, hint=hint)
    if len(parts) == 3 and not all(map(_MODE.fullmatch, parts[2].split(","))):
        raise InputError(f"{quoted(parts[2])} is not a mode", where=where, hint="ro or rw")
    if source is None:
        return text
    if source.startswith("."):
        source = _absolute(source)
    elif not re.fullmatch(r"/.*|[a-zA-Z0-9][a-zA-Z0-9_.-]*", source):
        hint = "an absolute path, one that begins with ./, or a volume's name"
        raise InputError(f"{quoted(source)} is not a source", where=where, hint=hint)
    return ":".join((source, *parts[1:]))


def mount(text: str, where: str) -> str:
    """Return `type=bind,source=…,target=…`, checked; a bind source that begins with a dot is made absolute here."""
    one_line(text, where, 8192)
    text = re.sub(r"(^|,)(source|src)=(\.[^,]*)", lambda found: f"{found[1]}{found[2]}={_absolute(found[3])}", text)
    try:
        docker_args.mount(text)
    except ValueError as error:
        raise InputError(str(error), where=where, hint="write type=bind,source=/path,target=/path") from error
    return text


def _absolute(path: str) -> str:
    return str(Path(path).absolute().resolve())


def ulimit(text: str, where: str) -> str:
    """`name=soft[:hard]`."""
    match = _ULIMIT.fullmatch(text)
    if not match:
        hint = "write nofile=1024:4096 or memlock=-1"
        raise InputError(f"{quoted(text)} is not a limit", where=where, hint=hint)
    soft, hard = int(match[1]), int(match[2] or match[1])
    if hard != -1 and (soft == -1 or soft > hard):
        raise InputError(f"{quoted(text)}: the soft limit is above the hard one", where=where)
    return text


def ipc(text: str, where: str) -> str:
    """An IPC mode."""
    if not re.fullmatch(r"host|private|shareable|none|container:[\w.-]{1,128}", text, re.ASCII):
        hint = "host, private, shareable, none or container:NAME"
        raise InputError(f"{quoted(text)} is not an IPC mode", where=where, hint=hint)
    return text


def user(text: str, where: str) -> str:
    """`name`, `uid` or either with `:group`."""
    if not re.fullmatch(r"[^\s:]+(:[^\s:]+)?", token(text, where)):
        raise InputError(f"{quoted(text)} is not a user", where=where, hint="write NAME, UID or UID:GID")
    return text


def workdir(text: str, where: str) -> str:
    """An absolute path."""
    if not one_line(text, where, 4096).startswith("/"):
        raise InputError(f"{quoted(text)} is not an absolute path", where=where)
    return text


def entrypoint(text: str, where: str) -> str:
    """Return a program; empty, also as a pair of quotes: none, whatever the image says."""
    return "" if text in {"''", '""'} else any_text(text, where)


def entrypoint_text(program: str) -> str:
    """Return the text of an entry point in a draft, where blank means that nothing was said."""
    return program or "''"
