"""Values of options: reading, refusals, and no errors but InputError."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputui.config import parse_probe
from gputui.domain.errors import InputError
from gputui.domain.job_spec import MAX_NAME, GpuRequest
from gputui.request import docker_values, job_values
from gputui.request.job_options import KEYS
from tests.cases import cases
from tests.factories import NOW
from tests.lane import examples

FUZZ = st.text(max_size=60) | st.from_regex(r"[0-9a-zA-Z=:,%+./ -]{0,40}", fullmatch=True)
BY_CODE = {getattr(key.read, "func", key.read): key for key in KEYS if not key.name.endswith("_file")}
"""Parsers built by one function differ only in a pattern or in bounds, so one of them represents all."""
READERS: Mapping[str, Callable[[str, str], object]] = {
    **{key.option: key.read for key in BY_CODE.values()},
    "ids": job_values.job_ids,
    "attempt": job_values.attempt,
    "priority change": job_values.priority_change,
    "image": docker_values.image,
    "begin": lambda text, where: job_values.begin(text, where, NOW),
    "probe": lambda text, where: parse_probe(text),
}


@settings(max_examples=examples(100))
@given(text=FUZZ)
@example("")
@example("\0")
@example("9" * 5000)
@example("-" * 5000)
@example("\ud800")
@example("٣")
@example("1e400")
@example("nan")
def test_readers_raise_only_input_errors(text: str) -> None:
    for name, read in READERS.items():
        try:
            read(text, "--option")
        except InputError as error:
            assert error.where, name  # noqa: PT017 - only some texts are refused


@given(low=st.integers(1, job_values.MAX_GPUS), more=st.integers(0, 100))
def test_a_range_of_gpus_is_formatted_and_read_back(low: int, more: int) -> None:
    high = min(job_values.MAX_GPUS, low + more)
    assert job_values.gpus(f"{low}-{high}", "--gpus") == GpuRequest(low, high)
    assert job_values.gpus(str(low), "--gpus") == GpuRequest(low, low)


@cases("text", ["device=0,1", '"device=0,1"', "'\"device=0,1\"'"])
def test_devices_are_named_as_docker_names_them(text: str) -> None:
    assert job_values.gpus(text, "--gpus") == GpuRequest(2, 2, devices=("0", "1"))


def test_gpus_are_named_by_uuid_index_or_all() -> None:
    uuid = "GPU-3f2a91c0-1111-4222-8333-444455556666"
    assert job_values.gpus(f"device={uuid}", "--gpus").devices == (uuid,)
    assert job_values.gpus("device=07,1", "--gpus").devices == ("7", "1")
    with pytest.raises(InputError, match="twice"):
        job_values.gpus("device=1,01", "--gpus")
    assert job_values.gpus("all", "--gpus").everything
    assert job_values.gpus("0", "--gpus") == GpuRequest()


@cases(
    ("text", "wanted"),
    [
        ('"device=0,1","capabilities=video"', GpuRequest(2, 2, ("0", "1"), capabilities=("video",))),
        ('\'"device=0","capabilities=compute,video"\'', GpuRequest(1, 1, ("0",), capabilities=("compute", "video"))),
        ("all,capabilities=utility", GpuRequest(1, 1024, everything=True, capabilities=("utility",))),
        ("capabilities=utility,all", GpuRequest(1, 1024, everything=True, capabilities=("utility",))),
        ("capabilities=compute,utility", GpuRequest(1, 1, capabilities=("compute", "utility"))),
        ("device=1,0,capabilities=graphics", GpuRequest(2, 2, ("1", "0"), capabilities=("graphics",))),
        ("count=3,driver=nvidia", GpuRequest(3, 3, driver="nvidia")),
        ("driver=nvidia", GpuRequest(1, 1, driver="nvidia")),
        ('2,"options=a=b,c=d"', GpuRequest(2, 2, driver_options=(("a", "b"), ("c", "d")))),
        ("count=-1,driver=nvidia", GpuRequest(1, 1024, everything=True, driver="nvidia")),
        ("device=all", GpuRequest(1, 1024, everything=True)),
        ('2-4,"capabilities=video,utility"', GpuRequest(2, 4, capabilities=("video", "utility"))),
    ],
)
def test_the_fields_of_docker_gpus_are_read_and_formatted(text: str, wanted: GpuRequest) -> None:
    assert job_values.gpus(text, "--gpus") == wanted
    assert job_values.gpus(job_values.gpus_text(wanted), "--gpus") == wanted


@cases(
    "text",
    [
        "all,2", "device=0,count=1", "capabilities=all", "capabilities=teleport", "driver=amd", "frobnicate=1",
        "device=0,device=1", 'device=0,"open', "options==x",
    ],
)  # fmt: skip
def test_fields_that_docker_or_the_engine_refuses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--gpus"):
        job_values.gpus(text, "--gpus")


@cases("text", ["", "-1", "4-2", "0-2", "2-", "1025", "two", "1.5", "device=", "device=0,0", "2-4-6"])
def test_invalid_requests_for_gpus_are_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        job_values.gpus(text, "--gpus")
    assert caught.value.where == "--gpus"


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=50), st.none() | st.integers(1, 99))
def test_an_array_is_formatted_and_read_back(indices: set[int], limit: int | None) -> None:
    text = ",".join(map(str, sorted(indices))) + (f"%{limit}" if limit else "")
    assert job_values.array(text, "--array") == job_values.Array(tuple(sorted(indices)), limit)


def test_ranges_and_steps_of_arrays() -> None:
    assert job_values.array("0-9%2", "").indices == tuple(range(10))
    assert job_values.array("1,3,5-7,6", "").indices == (1, 3, 5, 6, 7)
    assert job_values.array("0-20:5", "").indices == (0, 5, 10, 15, 20)


@cases("text", ["", "9-0", "0-9%0", "0-9%", "a", "0-9:0", "-3", "0-999999999", "0-99999,200000"])
def test_invalid_arrays_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        job_values.array(text, "--array")


def test_priorities_ids_and_cpus_are_read() -> None:
    assert job_values.priority_change("70", "") == job_values.PriorityChange(70)
    assert job_values.priority_change("+10", "") == job_values.PriorityChange(10, relative=True)
    assert job_values.priority_change("-10", "") == job_values.PriorityChange(-10, relative=True)
    assert job_values.priority_change("top", "").top
    for text in ("101", "", "up", "+101", "+-1", "1.5"):
        with pytest.raises(InputError):
            job_values.priority_change(text, "VALUE")
    assert job_values.job_ids("7", "ID") == (7,)
    assert job_values.job_ids("9,7,7-9", "ID") == (9, 7, 8)
    for text in ("", "0", "7-", "9-7", "7,,8", "x", "-7", "1-999999999"):
        with pytest.raises(InputError):
            job_values.job_ids(text, "ID")
    assert [job_values.cpus(text, "") for text in ("2", "1.5", ".5")] == [2, 1.5, 0.5]


@cases("text", ["nan", "inf", "0", "-1", "9000", "1e3", ""])
def test_invalid_numbers_of_cpus_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--cpus"):
        job_values.cpus(text, "--cpus")


@cases("name", ["训练 模型", "🚀 run", "👩‍🔬", "[bold]not markup[/bold]", "a" * MAX_NAME])
def test_names_of_any_script_are_accepted(name: str) -> None:
    assert job_values.job_name(name, "--name") == name


@cases("name", ["", "  ", "a" * 10_000, "a\nb", "\x1b[31mred", "a\u202eb", "\ud800", "a\0b", "\u200b"])
def test_deceptive_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        job_values.job_name(name, "--name")
