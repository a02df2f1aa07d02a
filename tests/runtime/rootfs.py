"""The images of the test engine: a static busybox under the names of its commands."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import docker

_COMMANDS = "sh ash sleep echo env cat true false test printf seq yes head tail dd kill ls id pwd date touch wc grep tr"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nalice:x:1000:\n",
    "bin/not-a-program": "this is no program\n",
}


_DOCKERFILE = """FROM {plain}
ENV NVIDIA_VISIBLE_DEVICES=all
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/env"]
"""


def import_images(host: str, plain: str, nvidia: str) -> None:
    """Import both images into the engine, unless it has them from before a restart."""
    client = docker.APIClient(base_url=host)
    try:
        if not client.images(plain):
            repository, tag = plain.split(":")
            client.import_image_from_data(archive(), repository=repository, tag=tag)
            dockerfile = io.BytesIO(_DOCKERFILE.format(plain=plain).encode())
            for line in client.build(fileobj=dockerfile, tag=nvidia, rm=True, decode=True):
                assert "error" not in line, line
    finally:
        client.close()


def archive(programs: Mapping[str, str] = MappingProxyType({}), more: str = "") -> bytes:
    """Return the image as a tar archive, with further programs by path, and further commands of busybox."""
    found = shutil.which("busybox")
    assert found is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in ("bin", "etc", "tmp", "root", "proc", "sys", "dev"):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755))
        _add(tar, "bin/busybox", Path(found).read_bytes(), 0o755)
        for name, text in _FILES.items():
            _add(tar, name, text.encode(), 0o644)
        for name, text in programs.items():
            _add(tar, name, text.encode(), 0o755)
        for command in (*_COMMANDS.split(), *more.split()):
            tar.addfile(_entry(f"bin/{command}", tarfile.SYMTYPE, link="busybox"))
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = _entry(name, tarfile.REGTYPE, mode=mode)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _entry(name: str, kind: bytes, *, mode: int = 0o777, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname = kind, mode, link
    return entry
