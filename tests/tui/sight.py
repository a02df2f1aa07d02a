"""Simulated colour vision: eyes that lack a kind of cone, and the distance of two colours to them.

The matrices are those of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency" (IEEE TVCG 15, 2009), severity 1.0, applied to linear RGB. Distances are Euclidean in OKLab (Björn Ottosson,
2020), in which about 0.02 is the least one sees.
"""

from __future__ import annotations

from gputui.tui.palette import linear

Matrix = tuple[tuple[float, float, float], ...]
SIGHTS: dict[str, Matrix] = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
Triple = tuple[float, float, float]


def distance(one: str, other: str, sight: str) -> float:
    """Return the distance of two colours to such eyes."""
    pairs = zip(_seen(one, sight), _seen(other, sight), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def _seen(colour: str, sight: str) -> Triple:
    light = _times(SIGHTS[sight], linear(colour))
    cones = _times(_CONES, (_clipped(light[0]), _clipped(light[1]), _clipped(light[2])))
    return _times(_LAB, (cones[0] ** (1 / 3), cones[1] ** (1 / 3), cones[2] ** (1 / 3)))


def _times(matrix: Matrix, vector: Triple) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))
