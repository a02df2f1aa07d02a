"""A page of samples under construction; unknown values are omitted, never written as 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from gputui.metrics.families import Family

SeriesValue: TypeAlias = float | int | bool | datetime | timedelta | None
NO_LABELS: Mapping[str, str] = {}


class SeriesPage:
    """Samples by family, in the order in which the families are first named."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, family: Family, value: SeriesValue, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Add a sample; None adds nothing. Times become seconds since 1970, durations seconds."""
        if value is None:
            return
        if isinstance(value, datetime):
            value = value.timestamp()
        elif isinstance(value, timedelta):
            value = value.total_seconds()
        metric = self._metrics.get(family.name)
        if metric is None:
            name = family.name.removesuffix("_total")
            metric = self._metrics[family.name] = Metric(name, family.help, family.kind)
        metric.samples.append(Sample(family.name, dict(labels), float(value)))

    def metrics(self) -> Iterable[Metric]:
        """Return the families that have samples."""
        return self._metrics.values()
