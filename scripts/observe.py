"""Writes the generated tables of docs/observe.md from the code, the dashboards and the alert rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from gputui.cli.offered_files import DASHBOARDS, dashboard_text, rules_text
from gputui.metrics.collector import SERIES
from gputui.metrics.families import FAMILIES, GPU_LABELS

END = "<!-- end -->"


def updated(text: str) -> str:
    """Return the document with its generated tables up to date."""
    for name, table in (("families", families), ("dcgm", dcgm), ("dashboards", dashboards), ("alerts", alerts)):
        begin = f"<!-- {name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = before + begin + "\n\n" + "\n".join(table()) + "\n\n" + END + after
    return text


def families() -> Iterator[str]:
    yield from ("| series | type | unit | labels | meaning |", "|---|---|---|---|---|")
    for family in FAMILIES:
        of_gpu = family.labels[: len(GPU_LABELS)] == GPU_LABELS
        own = [f"`{label}`" for label in family.labels[len(GPU_LABELS) if of_gpu else 0 :]]
        labels = ", ".join(["GPU", *own] if of_gpu else own)
        yield f"| `{family.name}` | {family.kind} | {family.unit} | {labels} | {family.help} |"


def dcgm() -> Iterator[str]:
    yield from ("| series | meaning |", "|---|---|")
    for family, _ in SERIES:
        yield f"| `{family.name}` | {family.help} |"


def dashboards() -> Iterator[str]:
    yield from ("| dashboard | panels |", "|---|---|")
    for key in DASHBOARDS:
        found = json.loads(dashboard_text(key))
        yield f"| {found['title']} | {', '.join(panel['title'] for panel in found['panels'])} |"


def alerts() -> Iterator[str]:
    yield from ("| alert | after | severity | when |", "|---|---|---|---|")
    for rule in yaml.safe_load(rules_text())["groups"][0]["rules"]:
        expression = rule["expr"].replace("|", "\\|")
        yield f"| `{rule['alert']}` | {rule['for']} | {rule['labels']['severity']} | `{expression}` |"


if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "observe.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
