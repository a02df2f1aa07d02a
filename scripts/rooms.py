"""Draws docs/rooms.svg: the rooms of the package in the order of the import contract, each with what it holds.

With --check it fails if the picture is out of date.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "rooms.svg"
HOLDS = {
    "__main__": "the command",
    "cli": "a command per file, or a few of one kind",
    "console": "a console's process: start, scheduler thread",
    "web": "consoles in a browser",
    "mcp": "tools for agents",
    "client": "the queue for programs",
    "client_values": "what programs give and get",
    "tui": "screens, widgets, what they show",
    "metrics": "Prometheus: series, dashboards, rules",
    "tracing": "spans of jobs",
    "bootstrap": "the choice of adapters",
    "request": "one table of all that a job can ask for",
    "config": "settings and options",
    "engine": "scheduler, actions, hooks",
    "replay": "traces through the policy",
    "servers": "several servers as one",
    "store": "the queue on disk",
    "gpus": "readings, and the probe",
    "runtime": "Docker, host processes",
    "cluster": "Slurm, Kubernetes",
    "api": "both ends of the socket",
    "ports": "interfaces: JobStore, Runtime, GpuProbe, Cluster, Backend, Clock, Monitor",
    "domain": "values and pure functions; domain/policy decides",
    "thin": "the client of commands",
    "threads": "threads that last",
}
OURS = {"gputui", "mcp_types"} | sys.stdlib_module_names
COLOURS = 'fill="#eef3f8" stroke="#4a6785"'
WIDTH, LEFT, ROW, GAP = 1000, 10, 62, 10


def layers() -> list[list[str]]:
    """Return the rooms of each floor, the highest first, as import-linter checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    first = next(each for each in contracts["contracts"] if each["name"] == "Imports point down only")
    return [layer.split(" | ") for layer in first["layers"]]


def libraries(room: str) -> list[str]:
    """Return the third parties that a room imports."""
    place = ROOT / "gputui" / room
    found: set[str] = set()
    for path in [*place.rglob("*.py")] or [place.with_suffix(".py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return sorted(found - OURS - {"msgspec", "orjson"})


def picture() -> str:
    """Return the picture as SVG: a floor per line, imports point down only."""
    floors = layers()
    height = len(floors) * (ROW + GAP) + GAP
    font = 'font-family="DejaVu Sans, sans-serif" font-size="13"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, rooms in enumerate(floors):
        top = GAP + number * (ROW + GAP)
        width = (WIDTH - 2 * LEFT - GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            left = LEFT + place * (width + GAP)
            most = int(width / 6.4)
            words = HOLDS[room] if len(HOLDS[room]) <= most else HOLDS[room][: most - 1].rstrip() + "…"
            names = ", ".join(libraries(room))
            out += [
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{ROW}" rx="6" {COLOURS}/>',
                f'<text x="{left + 10:.0f}" y="{top + 19}" font-weight="bold">{escape(room)}</text>',
                f'<text x="{left + 10:.0f}" y="{top + 36}" font-size="11">{escape(words)}</text>',
                f'<text x="{left + 10:.0f}" y="{top + 52}" font-size="10" fill="#4a6785">{escape(names[:most])}</text>',
            ]
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    """Write the picture, or check it."""
    drawn = picture()
    if "--check" not in sys.argv:
        PICTURE.write_text(drawn, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn:
        print("docs/rooms.svg is out of date: run `nox -s docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
