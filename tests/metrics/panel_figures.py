"""Expected figures of each panel of the dashboards for a real run, from the recount and the driver's readings.

A panel is looked at in three scrapes: while preemptible jobs hold all GPUs (`full`), while a GPU is lost (`lost`), and
at the end (`end`).
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from gputui.metrics.exporter import BUCKETS
from tests.gpus.standin import uuid
from tests.metrics.real_run import CORRECTED, GPUS, HELD, LIMIT, POWER_LIMIT, TENANTS, readings
from tests.metrics.recounted import Ran, Recount
from tests.metrics.witness import FILES, Bounds, Seen, Witness

Labels = frozenset[tuple[str, str]]
Values = dict[Labels, float]
INTERVAL = 1.0
"""Seconds between two scrapes, and between two readings of the GPUs."""
BEFORE = 2.0
"""Seconds before the run at which the range of a query begins."""
HOUR = 3600.0
EXTRAPOLATED = 0.05
"""Part by which a percentile may be off: `rate` extends the growth of each bucket to the ends of its range."""
SLOWED, WITHOUT_LIVE_RESTORE = 1, 1
"""Problems beside failed jobs: a GPU that is slowed down, and an engine whose restart would end all containers."""


class Expected(NamedTuple):
    """Expected values by their distinguishing labels, with tolerances."""

    moment: str
    values: Values
    within: float = 0.0
    low: Values | None = None
    """Minimum values, if they are not the values less `within`."""


def values(by: Mapping[Any, float], *names: str) -> Values:
    """Return the values with these labels; keys are the label, or all labels of a value."""
    return {
        frozenset(zip(names, (key,) if isinstance(key, str) else key, strict=True)): value for key, value in by.items()
    }


def one(value: float) -> Values:
    return {frozenset(): value}


Increases = Callable[[str], Mapping[float, float]]
"""Returns what the buckets of a histogram grew by, by their upper bounds, from its samples as they are stored."""


class PanelFigures:
    """Expected values of all queries, by `DASHBOARD: PANEL LEGEND`."""

    def __init__(
        self, recount: Recount, moments: Mapping[str, float], lost: int, told: int, machine: tuple[Witness, Increases]
    ) -> None:
        self._recount = recount
        self._witness, self._increases = machine
        self._moments = moments
        self._lost = uuid(lost)
        self._told = told
        self._all = {gpu: uuid(gpu) for gpu in range(GPUS)}
        self._left = {gpu: name for gpu, name in self._all.items() if gpu != lost}

    def expected(self) -> dict[str, list[Expected]]:
        return {
            **self._server(),
            **self._machine(),
            **self._durations(),
            **self._queue(),
            **self._tenant(),
            **self._job(),
            **self._health(),
        }

    def _of_gpus(self, name: str, moment: str = "end", scale: float = 1.0) -> Expected:
        """Return the readings of all GPUs that answer."""
        gpus = self._left if moment == "lost" else self._all
        found = {each: readings(gpu)[name] * scale for gpu, each in gpus.items()}
        return Expected(moment, values(found, "UUID"), 1e-9 * max(found.values()))

    def _sum(self, name: str, moment: str) -> float:
        return sum(self._of_gpus(name, moment).values.values())

    def _server(self) -> dict[str, list[Expected]]:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        states = dict.fromkeys(("ALLOCATED", "DRAINED", "FOREIGN", "FREE", "UNKNOWN"), 0.0)
        size = 85520809984.0
        held = [Expected("full", one(1)), Expected("end", one(0))]
        failed = sum(self._recount.state_of(job) == "FAILED" for job in self._recount.submitted)
        calls = {("docker", "create", "ok"): self._recount.created, ("docker", "start", "ok"): len(self._recount.ran)}
        span = round(self._moments["end"] - self._moments["begin"] + BEFORE)
        rates = {key: count / span for key, count in calls.items()}
        up = {"docker": 1.0, "process": 1.0}
        return {
            "server: GPUs held {{instance}}": held,
            "server: Jobs running {{instance}}": [
                Expected(each, one(len(self._recount.holding(self._moments[each])))) for each in ("full", "end")
            ],
            "server: Jobs eligible {{instance}}": [Expected("full", one(3)), Expected("end", one(0))],
            "server: Age of readings {{instance}}": [
                Expected(each, one(2 * INTERVAL), 2 * INTERVAL) for each in ("full", "end")
            ],
            "server: Problems {{instance}}": [Expected("end", one(failed + SLOWED + WITHOUT_LIVE_RESTORE))],
            "server: Paused {{instance}}": [Expected("end", one(0))],
            "server: GPUs by state {{state}}": [
                Expected("full", values(states | {"ALLOCATED": 8}, "state")),
                Expected("end", values(states | {"FREE": 8}, "state")),
            ],
            "server: Utilization mean": [
                Expected("lost", one(self._sum("utilization", "lost") / 7), 1e-9),
                Expected("end", one(self._sum("utilization", "end") / 8), 1e-9),
            ],
            "server: Utilization held by jobs": held,
            "server: Power {{instance}}": [
                Expected(each, one(self._sum("power", each)), 1e-6) for each in ("lost", "end")
            ],
            "server: GPU memory used": [Expected(each, one(self._sum("memory", each))) for each in ("lost", "end")],
            "server: GPU memory size": [Expected("lost", one(size * 7)), Expected("end", one(size * 8))],
            "server: Memory size": [Expected("end", one(memory))],
            "server: Commands to engines {{runtime}} {{call}} {{result}}": [
                Expected("end", values(rates, *_CALL), 1e-3)
            ],
            "server: Engines and driver {{runtime}}": [Expected("end", values(up, "runtime"))],
            "server: Engines and driver driver": [Expected("end", one(1))],
            "server: Hooks {{hook}} {{result}}": [
                Expected("end", values({("on_job_end", "ok"): self._told}, "hook", "result"), 1)
            ],
        }

    def _machine(self) -> dict[str, list[Expected]]:
        """Return what the second reader of the machine saw around each moment."""
        found: dict[str, list[Expected]] = defaultdict(list)
        for moment in ("full", "end"):
            at, witness = self._moments[moment], self._witness
            busy, memory = witness.processors(at), witness.values(at, lambda seen: seen.memory)
            found["Processors {{instance}}"].append(_between(moment, {frozenset(): busy}, 0.05))
            found["Memory used"].append(_between(moment, {frozenset(): memory}, 256 * 2.0**20))
            for name, of in (("received", lambda seen: seen.received), ("sent", lambda seen: seen.sent)):
                rate = witness.rate(at, of)
                found[f"Network {name}"].append(_between(moment, {frozenset(): rate}, 0.1 * rate.most + 10_000))
            disks = {_label("role", role): witness.values(at, partial(_disk, role)) for role in witness.roles}
            found["Disks: free {{role}} {{mount}}"].append(_between(moment, disks, 0.001))
            files = {_label("file", kind): witness.values(at, partial(_file, kind)) for kind in FILES}
            found["Files of the queue {{file}}"].append(_between(moment, files, 4096.0))
        return {f"server: {title}": expected for title, expected in found.items()}

    def _durations(self) -> dict[str, list[Expected]]:
        """Return the percentiles of durations, recounted from the stored samples: only the scheduler measures them."""
        names = {"tick": "tick_duration", "plan": "plan_duration", "write": "store_write_duration"}
        found = {}
        for legend, name in names.items():
            value = _quantile_of(0.95, self._increases(f"gputui_{name}_seconds"))
            found[f"server: Scheduler: 95th percentile {legend}"] = [Expected("end", one(value), EXTRAPOLATED * value)]
        return found

    def _queue(self) -> dict[str, list[Expected]]:
        count = self._recount
        jobs = len(count.submitted)
        first = min(count.submitted[each] for each in sorted(count.submitted)[4 + HELD : 4 + HELD + 3])
        causes = Counter(each.cause for each in count.ran)
        states = Counter(count.state_of(job) for job in count.submitted)
        return {
            "queue: Longest wait {{instance}}": [Expected("full", one(self._moments["full"] - first), INTERVAL)],
            "queue: Backlog {{instance}}": [Expected("full", one(3 * LIMIT / HOUR)), Expected("end", one(0))],
            "queue: Stranded GPUs {{instance}}": [Expected("full", one(0)), Expected("end", one(0))],
            "queue: Halted {{instance}}": [Expected("end", one(0))],
            "queue: Jobs in the queue {{instance}}": [Expected("full", one(4 + HELD + 3)), Expected("end", one(jobs))],
            "queue: Free GPUs {{instance}}": [Expected("full", one(0)), Expected("end", one(GPUS))],
            "queue: Eligible jobs {{tenant}}": [Expected("full", values({"alice": 0, "bob": 3}, "tenant"))],
            "queue: Waiting for something else {{reason}}": [
                Expected("full", values({"JobHeldUser": HELD}, "reason")),
                Expected("end", {}),
            ],
            "queue: Backlog in GPU-hours {{tenant}}": [
                Expected("full", values({"alice": 0, "bob": 3 * LIMIT / HOUR}, "tenant"))
            ],
            "queue: Jobs submitted": [Expected("end", one(jobs), _EXACT)],
            "queue: Jobs started": [Expected("end", one(len(count.ran)), _EXACT)],
            "queue: Jobs ended": [Expected("end", one(jobs), _EXACT)],
            "queue: Ends {{state}}": [Expected("end", values(dict(states), "state"), _EXACT)],
            "queue: Why attempts end {{cause}}": [Expected("end", values(dict(causes), "cause"), _EXACT)],
            "queue: Retries and preemptions {{cause}}": [
                Expected("end", values(dict(count.retries()), "cause"), _EXACT)
            ],
            "queue: Retries and preemptions preempted": [Expected("end", one(causes["Preempted"]), _EXACT)],
            **self._quantiles(),
        }

    def _quantiles(self) -> dict[str, list[Expected]]:
        waits = [each.seconds for each in self._recount.waits()]
        runs = [each.end - each.start for each in self._recount.ran]
        kinds = {"Wait until the first start": ("gputui_job_wait_seconds", waits)}
        kinds["Duration of attempts"] = ("gputui_job_run_seconds", runs)
        bounds = {family.name: edges for family, edges in BUCKETS.items()}
        return {
            f"queue: {title} {legend}": [
                Expected(
                    "end",
                    one(_quantile(share, [each + INTERVAL for each in seconds], bounds[name])),
                    _EXACT,
                    one(_quantile(share, [each - INTERVAL for each in seconds], bounds[name])),
                )
            ]
            for title, (name, seconds) in kinds.items()
            for legend, share in (("median", 0.5), ("95th percentile", 0.95))
        }

    def _tenant(self) -> dict[str, list[Expected]]:
        sums = self._recount.grouped("tenant")
        hours = {name: each.allocated / HOUR for name, each in sums.items()}
        least = {name: sum(each.least.values()) / HOUR for name, each in sums.items()}
        share = {name: 2.0 ** -(2 * each / sum(hours.values())) for name, each in hours.items()}
        full = self._recount.holding(self._moments["full"])
        jobs = Counter((each.tenant, "RUNNING") for each in full)
        waiting = {("alice", "PENDING"): HELD / 2, ("bob", "PENDING"): HELD / 2 + 3}
        held = {name: sum(len(each.gpus) for each in full if each.tenant == name) for name in TENANTS}
        used = {
            name: sum(readings(gpu)["utilization"] for gpu, _ in self._holds(full, name)) / held[name]
            for name in TENANTS
        }
        return {
            "tenant: GPU-hours held {{tenant}}": [
                Expected("end", values(hours, "tenant"), GPUS * INTERVAL / HOUR, values(least, "tenant"))
            ],
            "tenant: GPUs held {{tenant}}": [Expected("full", values(held, "tenant"))],
            "tenant: GPUs held {{tenant}} cap": [Expected("end", values({"alice": 7}, "tenant"))],
            "tenant: Jobs {{tenant}} {{state}}": [
                Expected("full", values(dict(jobs) | waiting, "tenant", "state")),
                Expected("end", values(dict(self._recount.states()), "tenant", "state")),
            ],
            "tenant: Backlog in GPU-hours {{tenant}}": [
                Expected("full", values({"alice": 0, "bob": 3 * LIMIT / HOUR}, "tenant"))
            ],
            "tenant: Use that fair share counts {{tenant}}": [
                Expected("end", values(hours, "tenant"), GPUS * INTERVAL / HOUR, values(least, "tenant"))
            ],
            "tenant: Fair share {{tenant}}": [Expected("end", values(share, "tenant"), 0.02)],
            "tenant: Mean wait {{tenant}}": [
                Expected("end", values({name: each.wait_mean for name, each in sums.items()}, "tenant"), INTERVAL)
            ],
            "tenant: Ends {{tenant}} {{state}}": [
                Expected("end", values(dict(self._recount.states()), "tenant", "state"), _EXACT)
            ],
            "tenant: Utilization of the GPUs held {{tenant}}": [Expected("full", values(used, "tenant"), 1e-9)],
        }

    def _holds(self, running: list[Ran], tenant: str = "") -> list[tuple[int, Ran]]:
        """Return the GPUs of these attempts."""
        chosen = [each for each in running if not tenant or each.tenant == tenant]
        return [(gpu, each) for each in chosen for gpu, name in self._all.items() if name in each.gpus]

    def _job(self) -> dict[str, list[Expected]]:
        full = self._holds(self._recount.holding(self._moments["full"]))
        legend = "{{job_id}} {{job_name}} ({{tenant}}), {{UUID}}"
        labels = ("UUID", "job_id", "tenant")
        titles = {"Utilization": "utilization", "Memory": "memory", "Power": "power"}
        titles |= {"Temperature": "temperature", "Clock": "clock"}
        table = {(uuid(gpu), str(ran.job), ran.tenant): 1.0 for gpu, ran in full}
        return {
            "job: Jobs on GPUs ": [Expected("full", values(table, *labels)), Expected("end", {})],
            **{
                f"job: {title} {legend}": [
                    Expected(
                        "full",
                        values({(uuid(g), str(ran.job), ran.tenant): readings(g)[name] for g, ran in full}, *labels),
                        1e-6,
                    )
                ]
                for title, name in titles.items()
            },
        }

    def _health(self) -> dict[str, list[Expected]]:
        legend = "{{hostname}} GPU {{gpu}}"
        up = {each: float(each != self._lost) for each in self._all.values()}
        errors = {(each, kind): 0.0 for each in self._all.values() for kind in ("corrected", "uncorrected")}
        errors[uuid(CORRECTED), "corrected"] = 5.0
        states = [Expected("lost", values(up, "UUID")), Expected("end", values(dict.fromkeys(up, 1.0), "UUID"))]
        return {
            f"gpu-health: GPUs up {legend}": states,
            f"gpu-health: GPUs fit for jobs {legend}": states,
            "gpu-health: Health {{code}}": [
                Expected("lost", values({"Ok": 7, "Lost": 1}, "code")),
                Expected("end", values({"Ok": 8}, "code")),
            ],
            **{
                f"gpu-health: {title} {legend}": [self._of_gpus(name, each, scale) for each in ("lost", "end")]
                for title, name, scale in _READ
            },
            "gpu-health: Slowed down GPUs": [Expected("end", one(1))],
            f"gpu-health: ECC errors {legend} {{{{type}}}}": [Expected("end", values(errors, "UUID", "type"), 0.1)],
            "gpu-health: GPUs ": [Expected("end", values(dict.fromkeys(up, 1.0), "UUID"))],
        }


_EXACT = 0.01
"""Rounding error of Prometheus' sums of whole numbers."""
_CALL = ("runtime", "call", "result")
_READ = (
    ("Temperature", "temperature", 1.0),
    ("Power of its limit", "power", 1 / POWER_LIMIT),
    ("Clock", "clock", 1.0),
    ("Work of the multiprocessors", "sm_activity", 1.0),
)


def _quantile(share: float, seconds: list[float], bounds: tuple[float, ...]) -> float:
    """Return the quantile that Prometheus interpolates from buckets of these values."""
    rank, low, below = share * len(seconds), 0.0, 0
    for bound in bounds:
        upto = sum(each <= bound for each in seconds)
        if upto >= rank:
            return low + (bound - low) * (rank - below) / (upto - below) if upto > below else bound
        low, below = float(bound), upto
    return low


def _quantile_of(share: float, buckets: Mapping[float, float]) -> float:
    """Return what Prometheus makes of these counts up to each bound."""
    rank, low, below = share * buckets[math.inf], 0.0, 0.0
    for bound, upto in sorted(buckets.items()):
        if upto >= rank:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (upto - below)
        low, below = bound, upto
    raise AssertionError("the last bucket holds less than the others")


def _between(moment: str, bounds: Mapping[Labels, Bounds], within: float) -> Expected:
    low = {labels: each.least for labels, each in bounds.items()}
    return Expected(moment, {labels: each.most for labels, each in bounds.items()}, within, low)


def _label(name: str, value: str) -> Labels:
    return frozenset({(name, value)})


def _disk(role: str, seen: Seen) -> float:
    return seen.disks[role]


def _file(kind: str, seen: Seen) -> float:
    return seen.files[kind]


def differences(key: str, expected: Expected, found: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """Return the differences between samples and expected values; unexpected samples of 0 are correct."""
    left = dict(expected.values)
    wrong = []
    for labels, value in found:
        match = next((each for each in left if each <= labels.items()), None)
        if match is None:
            wrong += [f"{key} {dict(labels)}: {value} is not expected"] * bool(value and not _may_have_more(key))
            continue
        most = left.pop(match) + expected.within
        least = most - 2 * expected.within if expected.low is None else expected.low[match] - expected.within
        if not least <= value <= most:
            wrong.append(f"{key} {expected.moment} {dict(match)}: {value}, not {least} to {most}")
    return wrong + [f"{key} {expected.moment} {dict(each)}: missing, not {value}" for each, value in left.items()]


def _may_have_more(key: str) -> bool:
    return key.startswith("server: Commands")
