"""Memory of a busy moment returns to the system, although small objects made meanwhile stay."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.engine import loop
from tests.cases import cases
from tests.engine.test_host import Seat, real
from tests.engine.world import World

MOMENT = """
import ctypes, os, sys, threading

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

{settle}
before, small = resident(), []

def moment():
    large = []
    for _ in range(500):
        large.append(bytearray(100_000))
        small.append(bytearray(1000))

moment()
for _ in range(3):
    thread = threading.Thread(target=moment)
    thread.start()
    thread.join()
print(resident() - before, file=open({told!r}, "w"))
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fopen({heaps!r}.encode(), b"w"))
libc.malloc_info(0, stream)
libc.fclose(stream)
"""


def _kept(directory: Path, settle: str) -> tuple[int, int]:
    """Return the bytes that a process keeps after four busy moments, a tenth of them in use, and its heaps."""
    told, heaps = directory / "told", directory / "heaps"
    code = MOMENT.format(settle=settle, told=str(told), heaps=str(heaps))
    subprocess.run([sys.executable, "-c", code], check=True)
    return int(told.read_text()), heaps.read_text().count("<heap nr=")


def test_freed_memory_returns_to_the_system_and_threads_share_one_heap(tmp_path: Path) -> None:
    kept, heaps = _kept(tmp_path, "from gputui.engine import loop; loop.configure_malloc()")
    assert (kept < 20_000_000, heaps) == (True, 1), f"{kept} bytes in {heaps} heaps"


def test_glibc_keeps_freed_memory_by_default(tmp_path: Path) -> None:
    """Without this, the tuning would not be needed."""
    kept, _ = _kept(tmp_path, "")
    assert kept > 50_000_000


@cases("may_lead", [True, False])
async def test_leaders_and_viewers_tune_malloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_lead: bool) -> None:
    world = World(tmp_path)
    seen: list[bool] = []
    monkeypatch.setattr(loop, "configure_malloc", lambda: seen.append(True))
    seat = Seat(real(world), SystemClock(), "console", may_lead=may_lead)
    running = asyncio.create_task(seat.host.run())
    await seat.until(lambda: bool(seen))
    seat.host.stop()
    await asyncio.wait_for(running, 60)
