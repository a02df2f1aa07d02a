"""Parsers for compound values of `docker run`: ports, devices, mounts, networks.

Used both to check a submission and to create the container. Invalid values raise ValueError with a sentence. The
grammar is docker's: docs.docker.com/reference/cli/docker/container/run.
"""

from __future__ import annotations

import re

from msgspec import Struct

from gputui.domain.text import csv_field

AUTO = "auto"
"""Host port `auto`: a free port is chosen when the container starts."""
MAX_PORTS = 4096
_PROTOCOLS = ("tcp", "udp", "sctp")
_CDI = re.compile(r"[A-Za-z][\w.-]*/[A-Za-z][\w.-]*=\S+", re.ASCII)
_ALIASES = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_MOUNT_FLAGS = frozenset({"readonly", "bind-nonrecursive", "volume-nocopy"})
_SEVERAL = frozenset({"volume-label", "volume-opt"})
_MOUNT_KEYS = {
    "bind": frozenset({"bind-propagation", "bind-nonrecursive", "bind-recursive"}),
    "volume": frozenset({"volume-label", "volume-opt", "volume-driver", "volume-nocopy", "volume-subpath"}),
    "tmpfs": frozenset({"tmpfs-size", "tmpfs-mode"}),
    "image": frozenset({"image-subpath"}),
}


class PortSpec(Struct, frozen=True):
    """A published port as requested."""

    container_port: int
    protocol: str
    host_ip: str = ""
    host_port: str = ""
    """Empty: a free port; `8000-8010`: a free port of this range."""

    @property
    def key(self) -> str:
        return f"{self.container_port}/{self.protocol}"


def published_ports(text: str) -> tuple[PortSpec, ...]:
    """Return the ports of `[[IP:][HOST]:]CONTAINER[/PROTOCOL]`, of ranges of them, or of `target=…,published=…`."""
    rest, _, inside = (_short_port(text) if "=" in text else text).rpartition(":")
    ip, _, host = rest.rpartition(":")
    if host and host != AUTO and not re.fullmatch(r"\d+(-\d+)?", host, re.ASCII):
        raise ValueError(f"{host!a} is not a port of the host")
    if ip := ip.removeprefix("[").removesuffix("]"):
        import ipaddress  # rarely needed

        try:
            ipaddress.ip_address(ip)
        except ValueError as error:
            raise ValueError(f"{ip!a} is not an address") from error
    inside, slash, protocol = inside.partition("/")
    protocol = protocol.lower() if slash else "tcp"
    if protocol not in _PROTOCOLS:
        raise ValueError(f"{protocol!a} is not a protocol: tcp, udp or sctp")
    first, last = _port_range(inside)
    if not host or host == AUTO:
        return tuple(PortSpec(port, protocol, ip) for port in range(first, last + 1))
    low, high = _port_range(host, allow_zero=True)
    if first == last:
        return (PortSpec(first, protocol, ip, host if low < high else str(low) if low else ""),)
    if high - low != last - first:
        raise ValueError(f"{host} and {inside} are ranges of different length")
    return tuple(PortSpec(port, protocol, ip, str(low + port - first)) for port in range(first, last + 1))


def _short_port(text: str) -> str:
    """Return the short form of `target=80,published=8080,protocol=tcp`."""
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    if unknown := sorted(fields.keys() - {"target", "published", "protocol", "mode"}):
        raise ValueError(f"{unknown[0]!a} is not a key: target, published, protocol or mode")
    if not fields.get("target"):
        raise ValueError("has no target=PORT")
    published = f"{fields['published']}:" if fields.get("published") else ""
    return f"{published}{fields['target']}/{fields.get('protocol') or 'tcp'}"


def exposed_ports(text: str) -> tuple[str, ...]:
    """Return the engine's names for `8080`, `8000-8010` or `53/udp`."""
    if ":" in text or "=" in text:
        raise ValueError("names a port inside alone: --publish gives it one of the host's")
    return tuple(port.key for port in published_ports(text))


def _port_range(text: str, *, allow_zero: bool = False) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    if not found:
        raise ValueError(f"{text!a} is not a port")
    low, high = int(found[1]), int(found[2] or found[1])
    if not (0 if allow_zero else 1) <= low <= high <= 65_535:
        raise ValueError(f"{text!a} is not a port from 1 to 65535")
    if high - low >= MAX_PORTS:
        raise ValueError(f"{text!a} is more than {MAX_PORTS} ports")
    return low, high


class DeviceSpec(Struct, frozen=True):
    """A device of the host, or a CDI device."""

    host: str = ""
    inside: str = ""
    permissions: str = "rwm"
    cdi: str = ""


def device(text: str) -> DeviceSpec:
    """Return the device of `HOST[:INSIDE][:rwm]` or `vendor.com/class=name`."""
    if _CDI.fullmatch(text):
        return DeviceSpec(cdi=text)
    host, *rest = text.split(":")
    if len(rest) > 2 or not host.startswith("/"):
        raise ValueError(f"{text!a} is not a device: write /dev/NAME, /dev/NAME:/dev/OTHER or /dev/NAME:/dev/OTHER:rwm")
    permissions = rest.pop() if rest and (len(rest) == 2 or _is_device_mode(rest[-1])) else "rwm"
    if not _is_device_mode(permissions):
        raise ValueError(f"{permissions!a} is not a mode: letters of rwm, each once")
    inside = rest[0] if rest else host
    if not inside.startswith("/"):
        raise ValueError(f"{inside!a} is not an absolute path")
    return DeviceSpec(host, inside, permissions)


def _is_device_mode(text: str) -> bool:
    return 0 < len(text) == len(set(text)) and set(text) <= set("rwm")


class MountSpec(Struct, frozen=True):
    """A mount, as after `--mount`."""

    kind: str
    target: str
    source: str = ""
    readonly: bool = False
    fields: tuple[tuple[str, str], ...] = ()
    """Options that only this kind of mount has; flags are `true` or `false`."""

    def get(self, key: str) -> str:
        return next((value for name, value in reversed(self.fields) if name == key), "")

    def every(self, key: str) -> tuple[str, ...]:
        return tuple(value for name, value in self.fields if name == key)


def mount(text: str) -> MountSpec:
    """Return the mount of `type=bind,source=/a,target=/b,readonly`; values with commas are quoted as in CSV."""
    pairs: list[tuple[str, str]] = []
    for part in _fields(text):
        key, equals, value = part.partition("=")
        key = _ALIASES.get(key.strip().lower(), key.strip().lower())
        if not equals and key not in _MOUNT_FLAGS:
            raise ValueError(f"{part!a} is not key=value")
        pairs.append((key, value if equals else "true"))
    given = {key: value for key, value in pairs if key not in _SEVERAL}
    kind = given.get("type", "volume").lower()
    if kind not in _MOUNT_KEYS:
        raise ValueError(f"{kind!a} is not a type: {', '.join(_MOUNT_KEYS)}")
    for key, _ in pairs:
        if key not in _MOUNT_KEYS[kind] | {"type", "source", "target", "readonly", "consistency"}:
            known = any(key in keys for keys in _MOUNT_KEYS.values())
            raise ValueError(f"{kind} mounts take no {key}" if known else f"unknown key {key!a}")
    target, source = given.get("target", ""), given.get("source", "")
    if not target.startswith("/"):
        raise ValueError("has no absolute target: add target=/path")
    if kind == "bind" and not source.startswith("/"):
        raise ValueError("has no absolute source: add source=/path")
    if kind == "image" and not source:
        raise ValueError("has no source: add source=IMAGE")
    fields = tuple((key, value) for key, value in pairs if key in _MOUNT_KEYS[kind])
    return MountSpec(kind, target, source, is_true(given.get("readonly", "false")), fields)


def _fields(text: str) -> list[str]:
    import csv  # few options have such values

    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise ValueError(f"is not a list of fields: {error}") from error


def with_source(text: str, source: str) -> str:
    kept = [part for part in _fields(text) if part.partition("=")[0].strip().lower() not in {"source", "src"}]
    return ",".join(csv_field(part) for part in (*kept, f"source={source}"))


def is_true(text: str) -> bool:
    """Return whether a flag's value is true; raises ValueError for other words."""
    if text.lower() not in {"true", "1", "t", "false", "0", "f"}:
        raise ValueError(f"{text!a} is neither true nor false")
    return text.lower() in {"true", "1", "t"}


def volume_source(text: str) -> str:
    return text.partition(":")[0] if ":" in text else ""


class NetworkSpec(Struct, frozen=True):
    """A network to join, with aliases and addresses."""

    name: str
    aliases: tuple[str, ...] = ()
    ip: str = ""
    ip6: str = ""
    mac_address: str = ""
    link_local_ips: tuple[str, ...] = ()
    driver_options: tuple[tuple[str, str], ...] = ()

    @property
    def is_user_defined(self) -> bool:
        """Return whether a user created the network; False for the modes that every engine has."""
        return self.name not in {"", "default", "bridge", "host", "none"} and not self.name.startswith("container:")


def network(text: str) -> NetworkSpec:
    """Return the network of `NAME` or `name=NAME,alias=A,ip=…`."""
    if "=" not in text:
        return NetworkSpec(text)
    pairs = [part.partition("=")[::2] for part in _fields(text)]
    known = {"name", "alias", "ip", "ip6", "mac-address", "link-local-ip", "driver-opt"}
    for key, _ in pairs:
        if key not in known:
            raise ValueError(f"{key!a} is not a key: {', '.join(sorted(known))}")
    last = dict(pairs)
    if not last.get("name"):
        raise ValueError("has no name=NETWORK")
    several = {key: tuple(value for name, value in pairs if name == key) for key in known}
    driver = tuple((name, value) for name, _, value in (each.partition("=") for each in several["driver-opt"]))
    return NetworkSpec(
        last["name"],
        several["alias"],
        last.get("ip", ""),
        last.get("ip6", ""),
        last.get("mac-address", ""),
        several["link-local-ip"],
        driver,
    )
