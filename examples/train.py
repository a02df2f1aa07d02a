"""Submit a command with a GPU, follow its output, and end as it ends: python examples/train.py python train.py"""

import sys

from gputui import Client

with Client() as queue:
    job = queue.submit(sys.argv[1:], gpus=1, time_limit=8 * 3600)
    print(f"job {job} is submitted", file=sys.stderr)
    for line in queue.logs(job, follow=True):
        print(line, flush=True)
    ended = queue.wait(job)
sys.exit(0 if ended.is_completed else ended.exit_code or 1)
