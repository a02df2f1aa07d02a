"""kill -9 of the owner of a queue under four clients: each request with a key is one job, whoever answers it."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.torture.customers import check, customers, until_served
from tests.torture.faulty_owner import STAGES
from tests.torture.owners import Owners

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3000)]

KILLS = 10
"""Number of kills for each unit of `--torture`; `--torture 20` makes it 200."""


def test_each_key_is_one_job_and_one_change(tmp_path: Path, torture: float) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    kills = round(KILLS * torture)
    owners = Owners(tmp_path / "state")
    owners.begin()
    stages = itertools.cycle(("", *STAGES))
    died: Counter[str] = Counter()
    with customers(owners) as asking:
        for stage in itertools.islice(stages, kills):
            until_served(asking)
            time.sleep(rng.uniform(0, 0.4))
            owners.kill()
            time.sleep(rng.choice((0, 0, 0.3)))  # commands open the queue meanwhile
            if stage:
                owners.begin(stage, rng.randint(1, 9))
                owners.until_dead()
                died[stage] += 1
            owners.begin()
    owners.kill()
    check(owners.state, asking)
    longest = max(customer.longest for customer in asking)
    unowned = sum(customer.unowned for customer in asking)
    total = sum(len(customer.ids) for customer in asking)
    print(
        f"\n{kills + died.total()} kills, at these stages: {dict(died)}; {total} keys; longest answer {longest:.2f} s; "
    )
    print(f"{unowned} times nobody owned; seed {seed}")
