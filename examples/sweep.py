"""Try learning rates and seeds, two at a time, and tell which run had the least loss."""

import re

from gputui import Client

# stands for a training that prints its loss
TRAIN = ["python3", "-c", "import sys; lr, seed = map(float, sys.argv[1:]); print('loss =', (lr - 0.01) ** 2 + seed)"]

with Client() as queue:
    jobs = queue.sweep([*TRAIN, "{lr}", "{seed}"], {"lr": [0.1, 0.01, 0.001], "seed": range(2)}, at_most=2, gpus=1)
    losses = {}
    for job in queue.as_ended(jobs):
        if not job.is_completed:
            print(f"{job.name}: {job.cause}")
            continue
        for line in queue.logs(job.id, tail=20):
            if found := re.match(r"loss = (.*)", line):
                losses[job.name] = float(found[1])
    for name, loss in sorted(losses.items(), key=lambda pair: pair[1]):
        print(f"{loss:.6f}  {name}")
