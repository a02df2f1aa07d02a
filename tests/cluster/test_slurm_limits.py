"""Time limits and priorities of submissions to Slurm: what its partitions and the user's rights allow."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gputui.cluster.slurm.site import Partition, SlurmSite, parse, with_limit
from gputui.domain.errors import CapabilityError, InputError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import ClusterSettings
from tests.factories import spec

HOUR = timedelta(hours=1)
CONFIG = """alice
1000
/home/alice
PriorityType            = priority/multifactor
ClusterName             = bed

PartitionName=gpu AllowGroups=ALL Default=YES QoS=N/A DefaultTime=01:00:00 MaxTime=2-00:00:00 MinNodes=0
PartitionName=free AllowGroups=ALL Default=NO QoS=N/A DefaultTime=NONE MaxTime=UNLIMITED MinNodes=0
"""


def site(default_time: timedelta | None = None, longest: timedelta | None = None) -> SlurmSite:
    return SlurmSite(user="alice", uid=1000, partitions=(Partition("gpu", True, default_time, longest),))


def limit_and_note(
    here: SlurmSite, limit: timedelta | None = None, settings: ClusterSettings | None = None
) -> tuple[timedelta | None, str]:
    found, told = with_limit(Submission(spec(time_limit=limit)), settings or ClusterSettings(), here)
    return found.spec.time_limit, told


def test_time_limits_of_partitions() -> None:
    # partitions are read
    found = parse(CONFIG)
    assert found.partitions == (Partition("gpu", True, HOUR, timedelta(days=2)), Partition("free"))
    assert found.priority_type == "priority/multifactor"
    # the partition decides unless the user or the settings do
    here = site(HOUR, timedelta(days=2))
    assert limit_and_note(here) == (None, "time limit 1h, the default of partition gpu")
    assert limit_and_note(here, 3 * HOUR) == (3 * HOUR, "")
    own = ClusterSettings(default_time=2 * HOUR)
    assert limit_and_note(here, settings=own) == (2 * HOUR, "time limit 2h, since it asks for none")
    # a partition without a default gives a day or its longest
    assert limit_and_note(site()) == (24 * HOUR, "time limit 1d, since it asks for none")
    assert limit_and_note(site(longest=6 * HOUR)) == (6 * HOUR, "time limit 6h, the longest of partition gpu")
    own = ClusterSettings(default_time=9 * HOUR)
    assert limit_and_note(site(HOUR, 6 * HOUR), settings=own)[0] == 6 * HOUR
    # a limit that no partition allows is refused
    with pytest.raises(InputError, match="--time-limit: partition gpu allows 6h at most"):
        limit_and_note(site(longest=6 * HOUR), 7 * HOUR)
    for option in ("--qos=long", "--partition=elsewhere"):
        lifted = ClusterSettings(sbatch_options=(option,))
        assert limit_and_note(site(longest=6 * HOUR), 7 * HOUR, lifted) == (7 * HOUR, "")
    # options of the site go first and an unknown partition is left to Slurm
    own_time = ClusterSettings(sbatch_options=("--time=30",))
    assert limit_and_note(site(HOUR), settings=own_time) == (None, "")
    assert limit_and_note(site(HOUR), settings=ClusterSettings(partition="other")) == (None, "")
    chosen = ClusterSettings(partition="other", sbatch_options=("-p gpu",))
    assert limit_and_note(site(HOUR), settings=chosen) == (None, "time limit 1h, the default of partition gpu")


def test_a_priority_above_the_usual_one_needs_an_operator() -> None:
    with pytest.raises(CapabilityError, match="only Slurm's operators may raise a priority above 50"):
        with_limit(Submission(spec(priority=70)), ClusterSettings(), site())
    root = SlurmSite(user="root", uid=0)
    assert with_limit(Submission(spec(priority=70)), ClusterSettings(), root)[0].spec.priority == 70
