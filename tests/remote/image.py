"""The image with Python: this host's interpreter and its standard library, as the image of the probe has them."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tests.needs import need
from tests.runtime.rootfs import archive

PYTHON_IMAGE = "gputui-python:latest"
PYTHON = Path("/usr/bin/python3")
"""The host's interpreter: it needs none of this checkout's packages."""
_LEFT_OUT = frozenset({"test", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "tkinter", "distutils", "unittest"})


def multiarch() -> str:
    """Return the directory of libraries that the dynamic linker searches without being told."""
    need("gcc")
    told = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, check=True).stdout.strip()
    return f"usr/lib/{told}" if told else "usr/lib"


def python_archive() -> bytes:
    """Return the image as a tar archive: busybox and its commands, `python3`, its library, and what both link to."""
    packed = io.BytesIO(archive())
    interpreter = PYTHON.resolve()
    library = Path("/usr/lib") / interpreter.name
    with tarfile.open(fileobj=packed, mode="a") as tar:
        tar.add(interpreter, f"usr/bin/{interpreter.name}")
        for name, to in {"usr/bin/python3": interpreter.name, "lib": "usr/lib", "lib64": "usr/lib64"}.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, to
            tar.addfile(link)
        tar.add(library, str(library)[1:], filter=_needed)
        for path in _linked(interpreter, *library.glob("lib-dynload/_ctypes.*")):
            tar.add(path.resolve(), f"usr/{str(path)[1:].removeprefix('usr/')}")
    return packed.getvalue()


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts[3:]  # behind usr/lib/python3.x
    is_left_out = bool(parts) and (parts[0] in _LEFT_OUT or parts[0].startswith("config-"))
    return None if is_left_out or not (entry.isfile() or entry.isdir()) else entry


def _linked(*programs: Path) -> set[Path]:
    """Return the libraries that programs link to, the linker too."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    return {Path(word) for word in told.split() if word.startswith("/") and not word.endswith(":")}
