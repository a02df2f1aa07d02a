"""Models of simulated GPUs, and parsing of `--probe`."""

from __future__ import annotations

from msgspec import Struct

from gputui.domain.errors import InputError

MIB = 1024**2
MOST = 256
DEFAULT = "H100"


class Model(Struct, frozen=True):
    """Properties of a GPU model, from its data sheet; power in watts, clocks in MHz."""

    name: str
    memory: int
    """Memory in bytes as the driver reports it."""
    idle_power: float
    power_limit: float
    idle_clock: int
    boost_clock: int
    memory_clock: int
    lanes: int = 0
    """NVLink lanes to each neighbour."""
    pairs: bool = False
    """True if NVLink bridges join pairs of GPUs instead of a whole board of eight."""
    has_fan: bool = False
    has_counters: bool = False
    """True if the driver reports the activity of multiprocessors and memory; from Hopper on."""


MODELS = {
    "H100": Model("NVIDIA H100 80GB HBM3", 81559 * MIB, 70, 700, 345, 1980, 2619, lanes=18, has_counters=True),
    "H200": Model("NVIDIA H200", 143771 * MIB, 76, 700, 345, 1980, 3201, lanes=18, has_counters=True),
    "A100": Model("NVIDIA A100-SXM4-80GB", 81920 * MIB, 60, 400, 210, 1410, 1593, lanes=12),
    "L40S": Model("NVIDIA L40S", 46068 * MIB, 35, 350, 210, 2520, 9001),
    "A6000": Model("NVIDIA RTX A6000", 49140 * MIB, 22, 300, 210, 1800, 8001, lanes=4, pairs=True, has_fan=True),
    "RTX4090": Model("NVIDIA GeForce RTX 4090", 24564 * MIB, 20, 450, 210, 2520, 10501, has_fan=True),
}


class SimulatedGpus(Struct, frozen=True):
    """Simulated GPUs as requested by `sim:N[:MODEL]`."""

    count: int
    model: str = DEFAULT
    """Key of MODELS."""


def parse_simulated(text: str, *, where: str = "--probe") -> SimulatedGpus | None:
    """Return the GPUs to simulate; None for `nvml`, the real GPUs. Raises InputError."""
    kind, *rest = text.strip().split(":")
    if kind.lower() == "nvml" and not rest:
        return None
    if kind.lower() != "sim" or not 1 <= len(rest) <= 2:
        raise InputError(f"{_quoted(text)} is not a probe", where=where, hint="write nvml, sim:8 or sim:8:H200")
    return SimulatedGpus(_count(rest[0], where), _model(rest[1], where) if len(rest) == 2 else DEFAULT)


def _count(text: str, where: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= count <= MOST:
        raise InputError(f"{_quoted(text)} is not a number of GPUs", where=where, hint=f"1 to {MOST}, as in sim:8")
    return count


def _model(text: str, where: str) -> str:
    named = text.strip().upper()
    if named not in MODELS:
        raise InputError(f"{_quoted(text)} cannot be simulated", where=where, hint=f"one of {', '.join(MODELS)}")
    return named


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
