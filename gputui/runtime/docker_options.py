"""Options of `docker run` in the words of the engine's API: --mount, --volume, --ulimit."""

from __future__ import annotations

from typing import Any

from gputui.domain import docker_args
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import InputError
from gputui.domain.units import parse_size
from gputui.runtime.docker_faults import bad_spec


def mount(text: str) -> dict[str, Any]:
    """Return the API's Mount of `type=bind,source=/a,target=/b,readonly`."""
    try:
        spec = docker_args.mount(text)
        special = _SPECIAL[spec.kind](spec)
    except ValueError as error:
        raise bad_spec("--mount", f"{text!r}: {error}") from error
    made: dict[str, Any] = {"Type": spec.kind, "Target": spec.target}
    if spec.source:
        made["Source"] = spec.source
    if spec.readonly:
        made["ReadOnly"] = True
    if special:
        made[f"{spec.kind.capitalize()}Options"] = special
    return made


def _bind(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if propagation := spec.get("bind-propagation"):
        options["Propagation"] = propagation
    recursive = spec.get("bind-recursive")
    if docker_args.is_true(spec.get("bind-nonrecursive") or "false") or recursive == "disabled":
        options["NonRecursive"] = True
    options |= {"ReadOnlyNonRecursive": True} if recursive == "writable" else {}
    options |= {"ReadOnlyForceRecursive": True} if recursive == "readonly" else {}
    if recursive not in {"", "enabled", "disabled", "writable", "readonly"}:
        raise ValueError(f"bind-recursive is enabled, disabled, writable or readonly, not {recursive!a}")
    return options


def _volume(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if docker_args.is_true(spec.get("volume-nocopy") or "false"):
        options["NoCopy"] = True
    if labels := spec.every("volume-label"):
        options["Labels"] = _pairs(labels)
    if subpath := spec.get("volume-subpath"):
        options["Subpath"] = subpath
    driver: dict[str, Any] = {}
    if name := spec.get("volume-driver"):
        driver["Name"] = name
    if own := spec.every("volume-opt"):
        driver["Options"] = _pairs(own)
    return options | ({"DriverConfig": driver} if driver else {})


def _tmpfs(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    try:
        if size := spec.get("tmpfs-size"):
            options["SizeBytes"] = parse_size(size)
    except InputError as error:
        raise ValueError(f"tmpfs-size: {error}") from error
    if mode := spec.get("tmpfs-mode"):
        if not mode.isascii() or not mode.isdigit() or set(mode) & {"8", "9"}:
            raise ValueError("tmpfs-mode is an octal number")
        options["Mode"] = int(mode, 8)
    return options


def _image(spec: MountSpec) -> dict[str, Any]:
    return {"Subpath": spec.get("image-subpath")} if spec.get("image-subpath") else {}


_SPECIAL = {"bind": _bind, "volume": _volume, "tmpfs": _tmpfs, "image": _image}


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def is_anonymous(volume: str) -> bool:
    """Whether a `--volume` names only where it is mounted."""
    return ":" not in volume


def bind(volume: str) -> str:
    """A `--volume` with a source, checked: the engine takes absolute paths and volume names."""
    source = volume.partition(":")[0]
    if not source or source.startswith((".", "~")):
        raise bad_spec("--volume", f"the source is an absolute path or a volume's name, not {source!r}")
    return volume


def ulimit(text: str) -> dict[str, Any]:
    """The API's Ulimit of `name=soft[:hard]`."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    try:
        low = int(soft)
        return {"Name": name, "Soft": low, "Hard": int(hard) if hard else low}
    except ValueError as error:
        raise bad_spec("--ulimit", f"{text!r} is not name=soft[:hard]") from error
