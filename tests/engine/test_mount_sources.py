"""Sources of mounts: opened step by step below the engine's root, and held where others could replace them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputui.domain.job_spec import ContainerOptions
from gputui.engine.actions.permissions import AllowedMounts, open_mounts, open_source
from tests.factories import spec

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes directories of root and of others")
OTHER = 61_234


@pytest.fixture
def until() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory of root in /tmp, which is sticky."""
    with tempfile.TemporaryDirectory(prefix="gputui-mounts-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def opened(until: ExitStack, *volumes: str, mounts: tuple[str, ...] = ()) -> AllowedMounts:
    return open_mounts(
        spec(options=ContainerOptions(volumes=volumes, mounts=mounts)), "/", lambda source, path: None, until
    )


def test_links_are_followed_below_the_given_root(tmp_path: Path, until: ExitStack) -> None:
    inside = tmp_path / "data" / "set"
    inside.mkdir(parents=True)
    for name, target in {
        "far": "/data/set",
        "near": "../data/./set/",
        "up": "/../../../data/set",
        "loop": "loop",
    }.items():
        (tmp_path / "data" / name).symlink_to(target)
    for name in ("far", "near", "up", "set", "set/../far/"):
        found = open_source(str(tmp_path), f"/data/{name}", until)
        assert (found.path, found.is_directory) == ("/data/set", True)
        assert os.path.samestat(os.fstat(found.fd), inside.stat())
    with pytest.raises(OSError, match="symbolic links"):
        open_source(str(tmp_path), "/data/loop", until)
    with pytest.raises(FileNotFoundError):
        open_source("/", f"{tmp_path}/data/far", until)


def test_links_of_proc_are_only_their_text(until: ExitStack) -> None:
    """Followed by the kernel, they lead to files that have no such path."""
    with tempfile.TemporaryFile() as file, pytest.raises(FileNotFoundError):
        open_source("/", f"/proc/self/fd/{file.fileno()}", until)


@needs_root
def test_what_only_root_can_replace_is_mounted_by_its_path(place: Path, until: ExitStack) -> None:
    (place / "file").touch()
    (place / "theirs").mkdir()
    os.chown(place / "theirs", OTHER, OTHER)
    (place / "link").symlink_to("theirs")
    found = opened(until, f"{place}/file:/f:ro", f"{place}/link:/t", mounts=(f"type=bind,src={place}/link,dst=/m",))
    assert found.held == ()
    assert found.spec.options.volumes == (f"{place}/file:/f:ro", f"{place}/theirs:/t")
    assert found.spec.options.mounts == (f"type=bind,dst=/m,source={place}/theirs",)


@needs_root
@pytest.mark.parametrize(("uid", "mode"), [(OTHER, 0o755), (0, 0o775), (0, 0o777), (OTHER, 0o1777)])
def test_a_directory_that_others_can_replace_is_held_open(place: Path, until: ExitStack, uid: int, mode: int) -> None:
    above, below = place / "above", place / "above" / "below"
    below.mkdir(parents=True)
    (above / "file").touch()
    os.chown(above, uid, 0)
    above.chmod(mode)
    found = opened(until, f"{below}:/a:ro", mounts=(f"type=bind,src={below},dst=/b",))
    assert (found.spec.options.volumes, found.spec.options.mounts) == ((), ())
    assert [(held.path, held.target, held.is_readonly) for held in found.held] == [
        (str(below), "/a", True),
        (str(below), "/b", False),
    ]
    below.rename(above / "moved")
    below.symlink_to("/etc")
    assert all(Path(held.descriptor).samefile(above / "moved") for held in found.held)
    with pytest.raises(ValueError, match="mount its directory"):
        opened(until, f"{above}/file:/f")
    with pytest.raises(ValueError, match="not with 'z'"):
        opened(until, f"{above}/moved:/f:ro,z")
    with pytest.raises(ValueError, match="not with 'rshared'"):
        opened(until, mounts=(f"type=bind,src={above}/moved,dst=/f,bind-propagation=rshared",))
