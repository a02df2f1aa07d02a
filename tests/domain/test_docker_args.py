"""Compound values of `docker run`: ports, devices, mounts and networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputui.domain import docker_args
from gputui.domain.docker_args import DeviceSpec, NetworkSpec, PortSpec
from tests.cases import cases


@cases(
    ("text", "ports"),
    [
        ("80", [PortSpec(80, "tcp")]),
        ("auto:80/UDP", [PortSpec(80, "udp")]),
        ("0:80", [PortSpec(80, "tcp")]),
        ("[::1]:8000-8010:80", [PortSpec(80, "tcp", "::1", "8000-8010")]),
        ("127.0.0.1:8000-8001:80-81", [PortSpec(80 + n, "tcp", "127.0.0.1", f"{8000 + n}") for n in range(2)]),
        ("target=80", [PortSpec(80, "tcp")]),
        ("target=53, published=5353, protocol=udp, mode=host", [PortSpec(53, "udp", host_port="5353")]),
    ],
)
def test_ports_are_read(text: str, ports: list[PortSpec]) -> None:
    assert list(docker_args.published_ports(text)) == ports


def test_ports_and_mounts() -> None:
    # exposed ports have the names of the engine
    assert docker_args.exposed_ports("8000-8001/udp") == ("8000/udp", "8001/udp")
    # a mount has the fields of its kind
    found = docker_args.mount("dst=/v,src=data,ro,volume-label=a=1,volume-label=b,volume-driver=x,volume-driver=local")
    assert (found.kind, found.target, found.source, found.readonly) == ("volume", "/v", "data", True)
    assert found.every("volume-label") == ("a=1", "b")
    assert (found.get("volume-driver"), found.get("volume-subpath")) == ("local", "")
    # another source leaves the rest of a mount
    changed = docker_args.with_source('type=bind,src=/a,"target=/b,c",readonly', '/with "quotes"')
    before, after = docker_args.mount('type=bind,src=/a,"target=/b,c",readonly'), docker_args.mount(changed)
    assert after.source == '/with "quotes"'
    assert (after.kind, after.target, after.readonly) == (before.kind, before.target, before.readonly)


@cases(
    ("text", "device"),
    [
        ("/dev/fuse", DeviceSpec("/dev/fuse", "/dev/fuse")),
        ("/dev/fuse:r", DeviceSpec("/dev/fuse", "/dev/fuse", "r")),
        ("/dev/fuse:/dev/f", DeviceSpec("/dev/fuse", "/dev/f")),
        ("/dev/fuse:/dev/f:mr", DeviceSpec("/dev/fuse", "/dev/f", "mr")),
        ("nvidia.com/gpu=0", DeviceSpec(cdi="nvidia.com/gpu=0")),
    ],
)
def test_devices_are_read(text: str, device: DeviceSpec) -> None:
    assert docker_args.device(text) == device


@cases(("text", "source"), [("data:/d", "data"), ("/a:/b:ro", "/a"), ("/d", "")])
def test_the_source_of_a_volume_is_found(text: str, source: str) -> None:
    assert docker_args.volume_source(text) == source


@cases(
    ("text", "network", "is_user_defined"),
    [
        ("host", NetworkSpec("host"), False),
        ("container:web", NetworkSpec("container:web"), False),
        ("lab", NetworkSpec("lab"), True),
        ("name=lab,alias=a,alias=b,ip=10.0.0.2", NetworkSpec("lab", ("a", "b"), "10.0.0.2"), True),
        (
            "name=lab,ip6=2001:db8::2,mac-address=02:42:ac:11:00:02,link-local-ip=169.254.1.1,driver-opt=mtu=9000",
            NetworkSpec("lab", (), "", "2001:db8::2", "02:42:ac:11:00:02", ("169.254.1.1",), (("mtu", "9000"),)),
            True,
        ),
    ],
)
def test_networks_are_read(text: str, network: NetworkSpec, is_user_defined: bool) -> None:
    assert docker_args.network(text) == network
    assert network.is_user_defined is is_user_defined


@cases(
    ("read", "text", "sentence"),
    [
        (docker_args.published_ports, "80/icmp", "'icmp' is not a protocol"),
        (docker_args.published_ports, "web", "'web' is not a port"),
        (docker_args.published_ports, "0", "not a port from 1 to 65535"),
        (docker_args.published_ports, "90-80", "not a port from 1 to 65535"),
        (docker_args.published_ports, "1-5000", "more than 4096 ports"),
        (docker_args.published_ports, "http:80", "'http' is not a port of the host"),
        (docker_args.published_ports, "10.0.0:8000:80", "'10.0.0' is not an address"),
        (docker_args.published_ports, "8000-8002:80-81", "ranges of different length"),
        (docker_args.published_ports, "target=80,what=1", "'what' is not a key"),
        (docker_args.published_ports, "published=80", "has no target=PORT"),
        (docker_args.exposed_ports, "8000:80", "--publish gives it one"),
        (docker_args.device, "fuse", "'fuse' is not a device"),
        (docker_args.device, "/dev/a:/dev/b:rr", "'rr' is not a mode"),
        (docker_args.device, "/dev/a:b", "'b' is not an absolute path"),
        (docker_args.mount, '"target=/b', "is not a list of fields"),
        (docker_args.mount, "type=image,target=/b", "has no source: add source=IMAGE"),
        (docker_args.mount, "type=tmpfs,target=/b,volume-nocopy", "tmpfs mounts take no volume-nocopy"),
        (docker_args.mount, "target=/b,readonly=maybe", "'maybe' is neither true nor false"),
        (docker_args.network, '"name=lab', "is not a list of fields"),
        (docker_args.network, "name=lab,what=1", "'what' is not a key"),
        (docker_args.network, "alias=a", "has no name=NETWORK"),
    ],
)
def test_invalid_values_are_refused_with_a_sentence(read: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(text)
