"""GPUs that drop out, come back, are plugged in or cut into instances."""

from __future__ import annotations

import pytest

from gputui.domain.gpu import HealthCode
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import is_whole, sample_of

pytestmark = pytest.mark.nvml


def test_a_gpu_lost_before_the_start_keeps_its_place(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 2 lost 1", gpus=4)
    reading = watch().until(lambda reading: len(reading.samples) == 4)
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [
        (0, uuid(0)),
        (1, uuid(1)),
        (2, "GPU-unknown-2"),
        (3, uuid(3)),
    ]
    lost = reading.samples["GPU-unknown-2"]
    assert lost.health.code is HealthCode.LOST
    assert (lost.utilization, lost.memory_used, lost.processes) == (None, None, None)
    assert any("GPU 2" in note and "GPU-unknown-2" in note for note in reading.notes)


def test_a_gpu_lost_before_the_start_is_identified_once_it_answers(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 1 lost 1", gpus=2)
    watcher = watch()
    watcher.until(lambda reading: "GPU-unknown-1" in reading.samples)
    standin.write(gpus=2)
    reading = watcher.until(lambda reading: uuid(1) in reading.samples)
    assert [gpu.uuid for gpu in reading.gpus] == [uuid(0), uuid(1)]
    assert set(reading.samples) == {uuid(0), uuid(1)}
    assert reading.notes == ()


def test_a_gpu_lost_later_keeps_identity_facts_and_last_sample(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 1 used 5000", gpus=3)
    watcher = watch()
    before = watcher.until(is_whole)
    standin.change("gpu 1 lost 1")
    reading = watcher.until(lambda reading: sample_of(reading, 1).health.code is HealthCode.LOST)
    again = watcher.next()  # and after the GPUs were listed anew
    for _ in range(5):
        again = watcher.next()
    for now in (reading, again):
        assert [gpu.uuid for gpu in now.gpus] == [uuid(0), uuid(1), uuid(2)]
        assert now.gpus[1].model == before.gpus[1].model
        assert now.samples[uuid(1)].memory_used == 5000
        assert now.samples[uuid(1)].sampled_at < now.samples[uuid(0)].sampled_at
    assert again.samples[uuid(1)].sampled_at == reading.samples[uuid(1)].sampled_at


def test_a_lost_gpu_is_still_known_to_the_next_probe_process(standin: StandIn, watch: Start) -> None:
    watcher = watch()
    watcher.until(is_whole)
    standin.change("gpu 3 lost 1", "init 9")
    watcher.until(lambda reading: sample_of(reading, 3).health.code is HealthCode.LOST)
    standin.change("count_error 999", without=("init",))
    watcher.until(lambda reading: reading.status.code == "CountFailed")
    standin.change(without=("count_error",))
    reading = watcher.until(lambda reading: reading.status.code == "Ok")
    assert [gpu.uuid for gpu in reading.gpus] == [uuid(index) for index in range(8)]
    assert sample_of(reading, 3).health.code is HealthCode.LOST


def test_a_recovered_gpu_is_healthy(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    standin.change("gpu 1 lost 1")
    watcher.until(lambda reading: sample_of(reading, 1).health.code is HealthCode.LOST)
    standin.change(without=("gpu 1 lost",))
    reading = watcher.until(lambda reading: sample_of(reading, 1).health.code is HealthCode.OK)
    assert [gpu.uuid for gpu in reading.gpus] == [uuid(0), uuid(1)]


def test_a_hot_plugged_gpu_is_found(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=6)
    watcher = watch()
    assert len(watcher.until(is_whole).gpus) == 6
    standin.count(8)
    reading = watcher.until(lambda reading: len(reading.samples) == 8)
    assert [gpu.index for gpu in reading.gpus] == list(range(8))


def test_an_unlisted_gpu_is_lost_and_the_others_keep_their_numbers(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=3)
    watcher = watch()
    watcher.until(is_whole)
    standin.write(f"gpu 1 uuid {uuid(2)}", gpus=2)  # the driver closes ranks
    reading = watcher.until(lambda reading: sample_of(reading, 1).health.code is HealthCode.LOST)
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, uuid(0)), (1, uuid(1)), (2, uuid(2))]
    assert "no longer lists" in reading.samples[uuid(1)].health.text


MIG = (
    "gpu 1 mig 1",
    "gpu 1 instance 0 3 0 MIG-aaaa 3g.40gb 42949672960",
    "gpu 1 instance 1 5 0 MIG-bbbb 1g.10gb 10737418240",
    "gpu 1 process 1 1000 C 5 0",
)


def test_mig_instances_are_gpus_of_their_own(standin: StandIn, watch: Start) -> None:
    standin.write(*MIG, gpus=3)
    reading = watch().until(is_whole)
    parent, first, second = reading.gpus[1:4]
    assert (parent.uuid, parent.mig_enabled) == (uuid(1), True)
    assert [(gpu.uuid, gpu.mig_parent, gpu.mig_profile) for gpu in (first, second)] == [
        ("MIG-aaaa", uuid(1), "3g.40gb"),
        ("MIG-bbbb", uuid(1), "1g.10gb"),
    ]
    assert (first.index, first.memory_total) == (1, 40 * 1024**3)
    assert [gpu.mig_index for gpu in (parent, first, second)] == [None, 0, 1]
    assert first.model == parent.model
    assert reading.samples[uuid(1)].utilization is None  # as on hardware: never 0
    assert reading.samples["MIG-aaaa"].processes == ()
    (process,) = reading.samples["MIG-bbbb"].processes or ()
    assert (process.pid, process.memory) == (1, 1000)


def test_a_new_mig_partition_is_followed(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    standin.write(*MIG, gpus=2)
    watcher.until(lambda reading: "MIG-aaaa" in reading.samples)
    standin.write(gpus=2)
    reading = watcher.until(lambda reading: len(reading.gpus) == 2)
    assert not reading.gpus[1].mig_enabled
    assert set(reading.samples) == {uuid(0), uuid(1)}
