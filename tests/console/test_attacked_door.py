"""An owner whose socket another account attacks: it schedules and answers, and nothing stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.console.test_door import PATIENCE, about, activated, owner_of
from tests.needs import need

SECONDS = 4.0
STRANGER = 61234

_ATTACK = r"""
import socket, sys, threading, time
end = time.monotonic() + float(sys.argv[2])
ways = (
    b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 20000, b"GET /" + b"a" * 200000,
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n" + b"x" * 1000000,
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"x" * 900000,
    b"GET /v1/snapshot HTTP/1.1\r\nHost: x\r\n\r\n" * 50, b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\0" * 100000, b"POST /v1/forecast HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n" + b'{"actions":[[[[[[[[[[',
)
def attack(number):
    kept = []
    while time.monotonic() < end:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(sys.argv[1])
            link.settimeout(1)
            link.sendall(ways[number % len(ways)])
            if number % 3:
                link.recv(1000)
        except OSError:
            pass
        number += 1
        kept.append(link)
        if len(kept) > 120:
            kept.pop(0).close()
threads = [threading.Thread(target=attack, args=(n,)) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def numbers(pid: int) -> tuple[int, int]:
    """Return the number of open descriptors and the bytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), pages * os.sysconf("SC_PAGE_SIZE")


def ticks(state: Path) -> float:
    """Return when the owner last told that it lives, in seconds of the monotonic clock."""
    text = (state / "scheduler.lock").read_text().partition('"alive_at":')[2]
    return float(text.partition(",")[0])


def test_another_account_cannot_keep_it_from_its_work(tmp_path: Path) -> None:
    need("root", "readers")
    state = tmp_path / "state"
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o755)
    run = Path(f"/run/gputui-test-{os.getpid()}")
    run.mkdir(0o755)
    place = run / "api.sock"
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            place.chmod(0o666)
            listener.listen(512)
            with activated(state, listener) as owner:
                assert owner_of(run) == owner.pid
                about(run)
                opened, used = numbers(owner.pid)
                attack = [sys.executable, "-S", "-c", _ATTACK, str(place), str(SECONDS)]
                wrapper = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
                with subprocess.Popen([*wrapper, *attack], cwd="/") as attacker:
                    waits, silences, most = [], [], 0
                    while attacker.poll() is None:
                        begun = time.monotonic()
                        about(state)  # where the operators ask
                        waits.append(time.monotonic() - begun)
                        silences.append(time.monotonic() - ticks(state))
                        most = max(most, numbers(owner.pid)[0])
                        time.sleep(0.05)
                deadline = time.monotonic() + PATIENCE
                while numbers(owner.pid)[0] > opened + 1:  # the journal, which refusals are written to
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                grown = numbers(owner.pid)[1] - used
                owner.send_signal(signal.SIGTERM)
                assert owner.wait(PATIENCE) == 0
    finally:
        place.unlink(missing_ok=True)
        run.rmdir()
    waits.sort()
    print(
        f"\n{len(waits)} requests beside it: median {waits[len(waits) // 2] * 1000:.0f} ms, longest {waits[-1]:.2f} s; "
        f"longest silence of the scheduler {max(silences):.1f} s; {most - opened} descriptors more, then none; "
        f"{grown / 1e6:.0f} MB more"
    )
    assert len(waits) > 5
    assert waits[-1] < 5
    assert max(silences) < 8
    assert most - opened < 60
    assert grown < 96e6
