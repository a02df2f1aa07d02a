"""Scrape, read by the parser of the client library: samples by name and labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of a page."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the sample with these labels among its own; None where there is none."""
        found = [each.value for each in self._samples if each.name == name and labels.items() <= each.labels.items()]
        assert len(found) < 2, f"{name} {labels}: {found}"
        return found[0] if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each sample of that name."""
        return [each.labels for each in self._samples if each.name == name]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self._samples)


def scrape_of(registry: CollectorRegistry) -> Scrape:
    """Return what a scrape of the registry reads."""
    return Scrape(generate_latest(registry).decode())
