"""Jobs that tell from inside which GPUs they have, and whether another one had them at that time."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from tests.remote.bed import Bed
from tests.remote.conftest import Far
from tests.runtime.dockerd import IMAGE, NETWORK

SCRIPT = """
for each in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do
  mkdir /out/held-$each || echo "$each" >>/out/overlaps
done
echo "$NVIDIA_VISIBLE_DEVICES" >>/out/job-$NUMBER
while [ -e /out/closed ] || [ $((SECONDS_LEFT)) -gt 0 ]; do SECONDS_LEFT=$((SECONDS_LEFT - 1)); sleep 1; done
for each in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do rmdir /out/held-$each; done
echo done
"""
"""/out is a directory of the machine with the GPUs alone, which the laptop lacks."""


class FarJobs:
    """Jobs of one queue by their numbers from 0 on, and what they left in /srv of the machine."""

    def __init__(self, bed: Bed, site: Far, place: str = "") -> None:
        """`place` is a directory that they share with the jobs of another queue."""
        self._site = site
        self.out = bed.out / (place or uuid4().hex)
        self.out.mkdir(exist_ok=True)
        self.ids: list[int] = []

    def submit(self, gpus: int, seconds: int = 1) -> int:
        """Submit a job of so many GPUs that lasts so many seconds, and longer while the gate is closed."""
        numbers = ["-e", f"NUMBER={len(self.ids)}", "-e", f"SECONDS_LEFT={seconds}"]
        settings = [*numbers, "-v", f"/srv/{self.out.name}:/out"]
        words = ["--gpus", str(gpus), "--network", NETWORK, *settings, IMAGE, "sh", "-c", SCRIPT]
        self.ids.append(self._site.submit(*words))
        return self.ids[-1]

    def close_gate(self) -> None:
        (self.out / "closed").touch()

    def open_gate(self) -> None:
        (self.out / "closed").unlink()

    def gpus_inside(self) -> list[list[list[str]]]:
        """Return the UUIDs that each job had, for each time that it was started."""
        paths = [self.out / f"job-{number}" for number in range(len(self.ids))]
        return [[line.split(",") for line in _lines(path)] for path in paths]

    def overlaps(self) -> list[str]:
        """Return the UUIDs that two jobs had at a time."""
        return _lines(self.out / "overlaps")

    def held(self) -> list[str]:
        """Return the UUIDs that jobs have now."""
        return sorted(path.name.removeprefix("held-") for path in self.out.glob("held-*"))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
