"""The generated tables of docs/observe.md: families, dashboards and alert rules."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.metrics.alerts import ALERTS
from gputui.metrics.dcgm import SERIES
from gputui.metrics.families import FAMILIES, GPU_LABELS, Family
from gputui.metrics.panels import DASHBOARDS

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
    """Return a row for each family."""
    yield from ("| series | type | unit | labels | meaning |", "|---|---|---|---|---|")
    for family in FAMILIES:
        yield f"| `{family.name}` | {family.kind} | {family.unit} | {_labels(family)} | {family.help} |"


def _labels(family: Family) -> str:
    own = family.labels
    if own[: len(GPU_LABELS)] == GPU_LABELS:
        return ", ".join(("GPU", *(f"`{label}`" for label in own[len(GPU_LABELS) :])))
    return ", ".join(f"`{label}`" for label in own)


def dcgm() -> Iterator[str]:
    """Return a row for each series under dcgm-exporter's names."""
    yield from ("| series | meaning |", "|---|---|")
    for family, _ in SERIES:
        yield f"| `{family.name}` | {family.help} |"


def dashboards() -> Iterator[str]:
    """Return a row for each dashboard."""
    yield from ("| dashboard | panels |", "|---|---|")
    for dashboard in DASHBOARDS:
        yield f"| {dashboard.title} | {', '.join(panel.title for panel in dashboard.panels)} |"


def alerts() -> Iterator[str]:
    """Return a row for each alert rule."""
    yield from ("| alert | after | severity | when |", "|---|---|---|---|")
    for alert in ALERTS:
        expression = alert.expression.replace("|", "\\|")
        yield f"| `{alert.name}` | {alert.lasts} | {alert.severity} | `{expression}` |"
