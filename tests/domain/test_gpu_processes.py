"""Rows of the process view: whose a process is, its GPUs, its values from the host, trees and filters."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.container import ProcessRow
from gputui.domain.errors import InputError
from gputui.domain.gpu import GpuProcess, GpuState, Holder
from gputui.domain.gpu_processes import (
    PROCESS_FIELDS,
    GpuProcessRow,
    gpu_words,
    local_pids,
    parse_process_filter,
    process_rows,
    process_target,
    tree_of,
    with_host_values,
)
from tests.cases import cases
from tests.factories import GIB, running, sample, snapshot, uuid, view

JUPYTER = "f00d" * 16


def _rows() -> tuple[GpuProcessRow, ...]:
    ours = GpuProcess(100, 2 * GIB, "alice", "train.py", "c7", ticks=10)
    inside = GpuProcess(200, GIB, "carol", "notebook", JUPYTER, ticks=20, sm=0.4)
    foreign = GpuProcess(300, 3 * GIB, "bob", "python eval.py", ticks=30)
    gone = GpuProcess(400, visible=False)
    holder = Holder("container", "jupyter", "carol", container_id=JUPYTER, image="lab:2")
    idle = Holder("container", "idle", "dave", container_id="1d1e" * 16)
    views = (
        view(0, GpuState.ALLOCATED, job_id=7, sample=sample(0, processes=(ours,)), process_jobs={100: 7}),
        view(1, GpuState.FOREIGN, sample=sample(1, processes=(inside, foreign)), holders=(holder,)),
        view(2, GpuState.FOREIGN, sample=sample(2, processes=(foreign, gone)), holders=(idle,)),
    )
    return process_rows(snapshot((running(7, on=(uuid(0),), name="sft"),), gpus=views))


def test_each_process_is_one_row_with_its_job_or_container_and_all_its_gpus() -> None:
    ours, inside, foreign, gone, idle = _rows()
    assert (ours.kind, ours.job_id, ours.what) == ("job", 7, "#7 sft")
    assert (inside.kind, inside.what, inside.sm) == ("container", "jupyter (lab:2)", 0.4)
    assert (foreign.kind, foreign.gpus, foreign.gpu_memory) == ("foreign", ("1", "2"), 6 * GIB)
    assert (gone.is_visible, gone.gpu_memory) == (False, None)
    assert (idle.pid, idle.what, idle.gpus, process_target(idle)) == (None, "idle", ("2",), None)


def test_processes_of_another_machine_are_not_looked_up_here_and_get_no_signal() -> None:
    assert local_pids(_rows()) == (100, 200, 300)
    rows = tuple(replace(row, machine="gpu1") for row in _rows())
    assert local_pids(rows) == ()
    target = process_target(rows[2])
    assert target is not None
    assert target.refusal[0].startswith("pid 300 is a process of gpu1")


def test_values_of_the_host_belong_to_a_process_only_if_it_began_at_that_time() -> None:
    seen = {
        100: ProcessRow(100, "alice", "python train.py", 1.5, GIB, timedelta(hours=1), 1, 10),
        200: ProcessRow(200, "mallory", "another one by now", 9.0, GIB, timedelta(0), 1, 21),
    }
    ours, inside, *_ = with_host_values(_rows(), seen)
    assert (ours.cpu, ours.memory, ours.command) == (1.5, GIB, "python train.py")
    assert (inside.cpu, inside.user) == (None, "carol")


def test_protected_processes_say_why_they_cannot_be_signalled() -> None:
    refused = [target.refusal[0] for row in _rows() if (target := process_target(row))]
    assert refused[0] == "pid 100 belongs to job 7"
    assert refused[1:3] == ["", ""]
    assert "another PID namespace" in refused[3]
    nameless = process_target(replace(_rows()[2], ticks=None))
    assert nameless is not None
    assert "start time" in nameless.refusal[0]
    target = process_target(_rows()[2])
    assert target is not None
    assert target.sentence == "pid 300 of bob on GPU 1,2: python eval.py"


@cases(
    ("labels", "words"),
    [((), ""), (("3",), "3"), (("0", "1", "2", "3", "6"), "0-3,6"), (("0m1", "0m2", "4", "5"), "0m1,0m2,4,5")],
)
def test_labels_of_gpus_are_ranges(labels: tuple[str, ...], words: str) -> None:
    assert gpu_words(labels) == words


def _row(pid: int, parent: int | None = None) -> GpuProcessRow:
    return GpuProcessRow(pid, "foreign", ticks=pid, parent=parent)


def test_a_tree_has_children_below_their_parents_which_are_added() -> None:
    seen = {pid: ProcessRow(pid, "bob", f"p{pid}", parent=pid - 1, ticks=pid) for pid in (2, 3, 4, 5)}
    rows = (_row(9), _row(5, 4), _row(8), _row(6, 3))
    shown = [(row.pid, row.depth, row.kind) for row in tree_of(rows, seen)]
    assert shown == [
        (9, 0, "foreign"),
        (2, 0, "parent"),
        (3, 1, "parent"),
        (4, 2, "parent"),
        (5, 3, "foreign"),
        (6, 2, "foreign"),
        (8, 0, "foreign"),
    ]


def test_a_tree_ends_where_parents_form_a_loop_or_a_long_chain() -> None:
    assert {row.pid for row in tree_of((_row(2, 3), _row(3, 2)), {})} == {2, 3}
    chain = tree_of((_row(1500, 1499),), {n: ProcessRow(n, "", "", parent=n - 1, ticks=n) for n in range(2, 1500)})
    assert (len(chain), chain[-1].pid) == (1499, 1500)


@cases(
    ("text", "pids"),
    [
        ("", [100, 200, 300, 400, None]),
        ("kind:foreign", [200, 300, 400, None]),
        ("kind:job", [100]),
        ("gpu:2", [300, 400, None]),
        ("-user:bob gpu:1", [200]),
        ("image~lab", [200]),
        ("gpumem>1g", [100, 300]),
        ("sm>30%", [200]),
        ("eval", [300]),
        ('command:"python eval.py"', [300]),
        ("job:7", [100]),
        ("user!=alice pid:300,400", [300, 400]),
    ],
)
def test_a_filter_shows_matching_processes(text: str, pids: list[int | None]) -> None:
    wanted = parse_process_filter(text)
    assert [row.pid for row in _rows() if wanted.matches(row)] == pids


@cases("text", ["colour:red", "gpu:", "age>soon", "user>bob", "command~(", "gpumem~3"])
def test_a_wrong_filter_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as told:
        parse_process_filter(text)
    assert told.value.hint


def test_every_example_of_a_field_can_be_read() -> None:
    for field in PROCESS_FIELDS.values():
        assert parse_process_filter(field.example)
