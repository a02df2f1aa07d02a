"""Monitors of a scheduler: the one that is switched on, or several as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gputui.config import Options
from gputui.console.serving import monitor_opener
from gputui.domain.arrays import Entries
from gputui.domain.settings import MetricsSettings, Settings, TracesSettings
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.metrics.exporter import Exporter
from gputui.ports.monitor import Monitor, Monitors
from gputui.tracing import JobTracer
from tests.cases import cases

METRICS = MetricsSettings(enabled=True, listen="0")
TRACES = TracesSettings(enabled=True, endpoint="http://127.0.0.1:9/v1/traces")


class Recorder:
    """Monitor that keeps what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[tuple[object, ...]] = []

    def published(self, snapshot: Snapshot) -> None:
        self.told.append(("published", snapshot))

    def took(self, step: str, seconds: float) -> None:
        self.told.append(("took", step, seconds))

    def failed(self, part: str) -> None:
        self.told.append(("failed", part))

    def wrote(self, seconds: float) -> None:
        self.told.append(("wrote", seconds))

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        self.told.append(("called", runtime, call, result, seconds))

    def delivered(self, hook: str, result: str) -> None:
        self.told.append(("delivered", hook, result))

    def notices(self) -> tuple[Notice, ...]:
        return (Notice("warning", self.name),)

    def page(self) -> bytes:
        return f"{self.name}\n".encode()

    def close(self) -> None:
        self.told.append(("close",))


@cases(
    ("tell", "told"),
    [
        (lambda monitor: monitor.published(EMPTY), ("published", EMPTY)),
        (lambda monitor: monitor.took("tick", 0.5), ("took", "tick", 0.5)),
        (lambda monitor: monitor.failed("plan"), ("failed", "plan")),
        (lambda monitor: monitor.wrote(0.1), ("wrote", 0.1)),
        (lambda monitor: monitor.called("docker", "start", "ok", 2.0), ("called", "docker", "start", "ok", 2.0)),
        (lambda monitor: monitor.delivered("mail", "failed"), ("delivered", "mail", "failed")),
        (lambda monitor: monitor.close(), ("close",)),
    ],
)
def test_each_of_several_monitors_is_told(tell: Callable[[Monitor], None], told: tuple[object, ...]) -> None:
    recorders = (Recorder("one"), Recorder("two"))
    tell(Monitors.of(*recorders))
    assert [recorder.told for recorder in recorders] == [[told], [told]]


def test_several_monitors_have_the_notices_and_pages_of_all() -> None:
    monitors = Monitors.of(Recorder("one"), Recorder("two"))
    assert [notice.text for notice in monitors.notices()] == ["one", "two"]
    assert monitors.page() == b"one\ntwo\n"


@cases(
    ("settings", "kind"),
    [
        (Settings(metrics=METRICS), Exporter),
        (Settings(traces=TRACES), JobTracer),
        (Settings(metrics=METRICS, traces=TRACES), Monitors),
    ],
)
def test_settings_switch_monitors_on(settings: Settings, kind: type, tmp_path: Path) -> None:
    opener = monitor_opener(Options(tmp_path, settings=settings), "store")
    assert opener is not None
    monitor = opener(Entries({}))
    try:
        assert isinstance(monitor, kind)
        assert monitor.notices() == ()
    finally:
        monitor.close()
