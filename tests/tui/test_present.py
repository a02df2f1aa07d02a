"""Conversion of domain values to cells: unknown is never 0, foreign text is neutralised, long text is cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.domain.conditions import conditions, pressing
from gputui.domain.gpu import GpuState, Health, HealthCode, Holder
from gputui.domain.job_spec import GpuRequest
from gputui.domain.queue_columns import gpus_wanted
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.present.cells import DIM, PLAIN, Cell, Column, bar, changed_runs, fitted, graph, lay_out
from gputui.tui.present.detail import MASK, job_lines
from gputui.tui.present.gpu import gpu_cells, sick_words
from gputui.tui.present.gpu_rows import GPU_COLUMNS, GpuRow
from gputui.tui.present.job import JobContext, job_cells
from gputui.tui.present.status import no_gpu_words, scheduler_words, status_line
from gputui.tui.widgets.queue_rows import COLUMNS, ChosenColumns
from tests.cases import cases
from tests.factories import GIB, NOW, gpu, job, running, sample, uuid, view
from tests.tui import sample as samples

NOTHING: dict[str, Any] = dict.fromkeys(
    ("utilization", "memory_used", "temperature", "power", "sm_clock", "fan", "power_limit", "memory_total")
)


def text(cell: Cell) -> str:
    return "".join(value for value, _ in cell)


def gpu_text(row: GpuRow) -> dict[str, str]:
    return {column.key: text(gpu_cells(row, column.key, 20 if column.key == "held" else 12)) for column in GPU_COLUMNS}


@cases("room", [20, 60, 80, 100, 120, 200, 400])
@cases("columns", [GPU_COLUMNS, ChosenColumns().columns(80), ChosenColumns().columns(200)])
def test_columns_fill_the_room_without_overlap(columns: tuple[Column, ...], room: int) -> None:
    placed = lay_out(columns, room)
    for left, right in itertools.pairwise(placed):
        assert left.x + left.width + 1 == right.x
    if room >= 80:
        assert placed[-1].x + placed[-1].width <= room


def test_wider_tables_have_more_columns() -> None:
    counts = [len(lay_out(GPU_COLUMNS, room)) for room in (80, 120, 200)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert {p.column.key for p in lay_out(GPU_COLUMNS, 80)} >= {
        "index",
        "held",
        "load",
        "memory_bar",
        "time",
        "percent",
        "memory",
    }


@cases("value", ["", "short", "much too long for it", "训练大模型数据", "🚀🚀🚀🚀🚀🚀🚀"])
@cases("right", [True, False])
def test_fitted_text_has_exactly_its_width(value: str, right: bool) -> None:
    assert sum(width(piece) for piece, _ in fitted(((value, PLAIN), ("x", DIM)), 9, right=right)) == 9


def test_an_unreadable_value_is_a_dash_not_zero() -> None:
    bare = replace(gpu(0), memory_total=None, power_limit=None, model=None)
    row = GpuRow(view(0, gpu=bare, sample=sample(0, **NOTHING)))
    shown = gpu_text(row)
    for key in ("percent", "temperature", "power", "power_limit", "clock", "fan", "model"):
        assert shown[key] == "–", key
    assert shown["memory"] == "–"
    assert "0" not in shown["load"]


def test_a_gpu_without_a_sample_shows_dashes() -> None:
    shown = gpu_text(GpuRow(view(0, GpuState.UNKNOWN, sample=None, age=None)))
    assert shown["percent"] == shown["temperature"] == shown["power"] == "–"


def test_a_lost_gpu_says_so_in_words() -> None:
    lost = view(7, GpuState.UNKNOWN, health=Health(HealthCode.LOST, "fell off the bus (Xid 79)"))
    words = sick_words(GpuRow(lost), 80)
    assert words is not None
    assert text(words) == "  7 H100 LOST fell off the bus (Xid 79)"
    assert words[0][1].bgcolor is not None


def test_a_stale_reading_is_grey_and_has_its_age() -> None:
    old = view(0, GpuState.UNKNOWN, stale=True, age=timedelta(seconds=40), sample=sample(0, utilization=0.9))
    row = GpuRow(old, late=timedelta(seconds=2))
    assert gpu_text(row)["held"].startswith("42s old")
    assert {style for _, style in gpu_cells(row, "percent", 4)} == {DIM}
    assert text(gpu_cells(row, "load", 10)).strip() == ""


@cases(
    ("throttle", "told"),
    [((), ("66°", "412W")), (("too hot",), ("66°✗", "412W")), (("power cap",), ("66°", "412W!"))],
)
def test_throttling_is_marked_where_there_is_no_room_to_name_it(
    throttle: tuple[str, ...], told: tuple[str, str]
) -> None:
    here = view(0).sample
    assert here is not None
    seen = replace(here, temperature=66.0, power=412.0, throttle=throttle)
    row = GpuRow(view(0, sample=seen))
    assert (text(gpu_cells(row, "temperature", 4)), text(gpu_cells(row, "power", 5))) == told


def test_the_holder_is_named() -> None:
    held = GpuRow(view(0, GpuState.ALLOCATED, job_id=17), job(17, name="train", tenant="bob"))
    assert gpu_text(held)["held"] == "#17 train bob"
    process = Holder("process", "python", "eve", 4242)
    foreign = GpuRow(view(1, GpuState.FOREIGN, holders=(process, process)))
    assert gpu_text(foreign)["held"] == "foreign eve python pid 4242 +1"
    unseen = GpuRow(view(1, GpuState.FOREIGN, holders=(Holder("process", "pid 4242", pid=4242),)))
    assert gpu_text(unseen)["held"] == "foreign pid 4242 not seen on this host"
    box = GpuRow(view(1, GpuState.FOREIGN, holders=(Holder("container", "jupyter", "bob"),)))
    assert gpu_text(box)["held"] == "foreign jupyter bob"
    assert text(gpu_cells(box, "held", 40)) == "foreign container jupyter bob"


def test_sharers_of_a_gpu_are_named_and_counted_where_there_is_no_room() -> None:
    shared = view(0, GpuState.ALLOCATED, job_id=4, job_ids=(4, 9))
    row = GpuRow(shared, job(4, name="train", tenant="bob"), beside=(job(9, name="eval", tenant="eve"),))
    assert text(gpu_cells(row, "held", 20)) == "shared #4 #9"
    assert text(gpu_cells(row, "who", 40)) == "#4 train bob · #9 eval eve"
    assert text(gpu_cells(row, "who", 20)) == "#4 #9"
    context = JobContext(NOW, gpu_names={uuid(0): "0"}, beside={4: (9, 12)})
    assert job_text("why", running(4, on=[uuid(0)]), context) == "GPU 0 beside #9 #12"


@cases(("room", "model"), [(7, "H100"), (9, "H100 80GB"), (16, "H100 80GB HBM3")])
def test_a_model_is_shortened_by_words(room: int, model: str) -> None:
    assert text(gpu_cells(GpuRow(view(0)), "model", room)) == model


def test_bars_and_graphs_have_their_heights() -> None:
    assert text(bar(0.5, 10, PLAIN)) == "━━━━━─────"
    assert text(bar(None, 4, PLAIN)) == "╌╌╌╌"
    assert text(bar(7.0, 4, PLAIN)) == "━━━━"
    assert graph([], 3) == "   "
    assert graph([None, 0.0, 0.5, 1.0], 4) == " ▁▅█"
    assert graph([0.5] * 1000, 20) == "▅" * 20


@cases(
    ("request_", "words"),
    [
        (GpuRequest(), "-"),
        (GpuRequest(2, 2), "2"),
        (GpuRequest(2, 4), "2-4"),
        (GpuRequest(1, 1024, everything=True), "all"),
        (GpuRequest(2, 2, devices=("0", "3")), "=2"),
    ],
)
def test_requests_are_described(request_: GpuRequest, words: str) -> None:
    assert gpus_wanted(request_) == words


def job_text(key: str, the_job: object, context: JobContext | None = None) -> str:
    return text(job_cells(the_job, key, context or JobContext(NOW)))  # type: ignore[arg-type]


def test_a_row_says_on_which_gpus_why_it_waits_or_how_it_ended() -> None:
    context = JobContext(
        NOW, reasons=samples.REASONS, progress={105: "pulling, 45 %"}, gpu_names={uuid(0): "0", uuid(1): "1"}
    )
    rows = {row.id: row for row in samples.jobs()}
    assert job_text("why", rows[101], context) == "GPU 0,1"
    assert job_text("why", rows[104], context) == "1 GPU"
    assert job_text("why", rows[105], context) == "━━━──── 45 % pulling registry/vit:2"
    assert job_text("why", rows[106], context).startswith("needs 8 GPUs")
    assert job_text("why", rows[109], context) == "held"
    assert job_text("why", rows[92], context) == "exit code 1"
    assert job_text("state", rows[109], context) == "PDh"
    assert job_text("why", rows[101].evolve(cancel_requested=True), context) == "being cancelled"
    assert job_text("why", rows[101].evolve(requeue_requested=True), context) == "to be requeued"
    held = rows[106].evolve(held=True, hold_reason="20 starts failed")
    assert job_text("why", held, context) == "held: 20 starts failed"


def test_a_row_shows_elapsed_and_limit() -> None:
    started = running(1, time_limit=timedelta(hours=4))
    assert job_text("time", started) == "1m00s"
    assert job_text("limit", started) == "4h00m"
    assert job_text("time", job(2)) == ""
    context = JobContext(NOW, expected_starts={2: NOW + timedelta(minutes=5)})
    assert job_text("start", job(2), context) == "~5m"
    assert job_text("start", job(3), context) == "–"


@cases("name", samples.NAMES)
def test_names_are_neutralised(name: str) -> None:
    strange = job(1, name=name, tenant=name, image=name)
    cells = [job_cells(strange, column.key, JobContext(NOW)) for column in COLUMNS.values()]
    cells += [cell for _, cell in job_lines(strange, JobContext(NOW))]
    shown = "".join(text(cell) for cell in cells)
    assert shown.replace("\u200d", "").isprintable()


def test_markup_is_shown_as_it_was_written() -> None:
    assert job_text("name", job(1, name="[bold]x[/]")) == "[bold]x[/]"


def test_the_environment_is_masked() -> None:
    lines = job_lines(samples.secret_job(), JobContext(NOW))
    shown = "\n".join(text(cell) for _, cell in lines)
    assert "hunter2" not in shown
    assert f"WANDB_API_KEY={MASK}" in shown


def test_detail_has_attempts_with_causes() -> None:
    shown = [text(cell) for _, cell in job_lines(samples.secret_job(), JobContext(NOW))]
    first = next(line for line in shown if "Xid 79" in line)
    assert "free of charge" in first
    assert "ran 40m00s" in first


def test_the_scheduler_is_described() -> None:
    assert text(scheduler_words(EMPTY)) == "starting"
    assert "scheduling" in text(scheduler_words(samples.rich_snapshot()))
    assert "serve schedules" in text(scheduler_words(samples.viewer()))
    assert "no scheduler" in text(scheduler_words(samples.nobody_leads()))
    silent = replace(samples.viewer(), leader=replace(samples.SERVE, silent_for=timedelta(seconds=40)))
    assert text(scheduler_words(silent)) == "○ scheduler not responding for 40s"
    assert text(scheduler_words(silent, 17)) == "○ not responding"
    assert "PAUSED" in text(scheduler_words(samples.paused()))


def test_the_status_line_counts_jobs_and_gpus() -> None:
    line = text(status_line(samples.rich_snapshot(), "node1"))
    assert "    2 running     5 waiting │" in line
    assert "1 held" in line
    assert "2 of 8 GPUs free" in line


def test_notices_come_worst_first_with_a_remedy() -> None:
    both = replace(samples.no_docker(), leader=samples.SERVE, leads_here=False)
    found = conditions(both, NOW)
    assert [notice.severity for notice in found[:4]] == ["error", "error", "warning", "warning"]
    assert {notice.severity for notice in found[4:]} == {"information"}
    assert "usermod" in found[0].text
    assert "gputui serve" in conditions(samples.nobody_leads(), NOW)[0].text
    lost, *_, paused = [each for each in conditions(samples.paused(), NOW) if each.kind in {"lost", "paused"}]
    assert "fell off the bus" in lost.text
    assert "kernel update" in paused.text
    assert conditions(samples.empty_queue(), NOW) == ()


def test_an_old_snapshot_is_marked_as_old() -> None:
    [notice] = conditions(samples.empty_queue(), NOW + timedelta(seconds=30))
    assert "30s old" in notice.text


def test_without_gpus_the_status_of_the_probe_is_shown() -> None:
    words = " ".join(text(line) for line in no_gpu_words(samples.no_gpu(), 78))
    assert "libnvidia-ml.so.1" in words
    assert "start gputui again" in words
    assert all(width(text(line)) <= 78 for line in no_gpu_words(samples.no_gpu(), 78))
    assert "Reading" in text(no_gpu_words(EMPTY, 78)[0])


def test_memory_of_an_idle_gpu_is_zero_not_unknown() -> None:
    shown = gpu_text(GpuRow(view(0, sample=sample(0, memory_used=0, memory_total=80 * GIB))))
    assert shown["memory"] == "0/80G"


def test_states_are_words() -> None:
    for state in JobState:
        assert job_text("state", job(1, state=state)) == state.short


def with_warnings(snapshot: Snapshot, *warnings: str) -> Snapshot:
    node = snapshot.nodes[0]
    docker = replace(node.runtimes[0], warnings=warnings)
    return replace(snapshot, nodes=(replace(node, runtimes=(docker,)),))


def test_gpus_that_no_waiting_job_can_use_are_shown_where_there_is_room() -> None:
    stranded = samples.rich_snapshot(fragmentation=2)
    assert "1 held  2 free that no waiting job can use" in text(status_line(stranded, "node1"))
    assert "no waiting job" not in text(status_line(stranded, "node1", 80))
    assert "no waiting job" not in text(status_line(samples.rich_snapshot(), "node1"))


def test_standing_warnings_are_a_number_in_the_status_line_and_no_banner() -> None:
    warned = with_warnings(samples.empty_queue(), "live-restore is off", "cgroup v1")
    assert pressing(warned, NOW) == ()
    found = conditions(warned, NOW)
    assert text(status_line(warned, "node1", found=found, key="!")).endswith("│ ! 2 warnings  ! shows all")
    assert text(status_line(warned, "node1", found=found)).endswith("│ ! 2 warnings"), "where there are no keys"
    assert [condition.severity for condition in found] == ["warning", "warning"]


@cases("day", [samples.paused, samples.nobody_leads, samples.no_docker, samples.disk_full])
def test_problems_that_stop_all_starts_have_a_row(day: Callable[[], Snapshot]) -> None:
    assert pressing(day(), NOW)


def test_an_engine_that_was_not_asked_yet_is_not_reported() -> None:
    node = samples.no_docker().nodes[0]
    unasked = replace(node, runtimes=tuple(replace(runtime, asked=False) for runtime in node.runtimes))
    assert pressing(samples.rich_snapshot(nodes=(unasked,)), NOW) == ()


def test_an_old_snapshot_has_a_row() -> None:
    assert pressing(samples.rich_snapshot(), NOW + timedelta(minutes=1))


def test_only_changed_cells_are_sent() -> None:
    before, after = (("61G", PLAIN), ("/80G", DIM)), (("62G", PLAIN), ("/80G", DIM))
    assert changed_runs(before, after) == [(1, 2)]
    assert changed_runs((("ab", PLAIN),), (("ab", DIM),)) == [(0, 2)]
    assert changed_runs((("训a", PLAIN),), (("训b", PLAIN),)) == [(0, 3)]
