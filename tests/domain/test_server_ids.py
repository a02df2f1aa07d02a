"""Ids of jobs on several servers."""

from __future__ import annotations

from gputui.domain.arrays import elements_in_history, id_word
from gputui.domain.cluster import element_id
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import MOST_SERVERS, own_id, server_of, shared_id, shown_id, without_server
from tests.cases import cases
from tests.factories import array, job


@cases("name", ["gpu1", "a", "a-long.name_of-24-letter"])
@cases("own", [1, 17, 2**50])
@cases("number", [1, MOST_SERVERS])
def test_server_and_own_id_can_be_read_from_an_id(number: int, name: str, own: int) -> None:
    found = shared_id(number, name, own)
    assert (server_of(found), own_id(found), shown_id(found)) == (name, own, f"{name}:{own}")


def test_jobs_of_several_servers() -> None:
    # the ids of one queue are as they were
    assert (server_of(17), own_id(17), shown_id(17)) == ("", 17, "17")
    # jobs are in the order of their servers
    assert shared_id(1, "zebra", 9) < shared_id(2, "ant", 1) < shared_id(2, "ant", 2)
    # a job shows its server
    assert job(shared_id(1, "gpu1", 17)).shown_id == "gpu1:17"
    # elements show their array and server
    entry = array(range(3), first=shared_id(1, "gpu1", 5))
    assert entry.shown_id == "gpu1:5_[0-2]"
    assert without_server(entry.shown_id) == "5_[0-2]"
    assert [entry.element(job_id).shown_id for job_id in entry.ids][1] == "gpu1:5_1"
    # no element of a clusters array on a server counts as gone
    number = shared_id(1, "lab", 1_388_293_313)
    known = [
        job(shared_id(1, "lab", element_id(1_388_293_313, index)), array=ArrayRef(number, index)) for index in range(3)
    ]
    assert elements_in_history(known) == 0
    assert id_word(tuple(known)) == "lab:1388293313_[0-2]"
