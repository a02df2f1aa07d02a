"""Tell what ends on several servers as it happens: python examples/watch.py ssh://gpu1 ssh://gpu2"""

import asyncio
import sys

from gputui import AsyncClient
from gputui.client import Beginning, JobEvent


async def watch(server: str | None) -> None:
    """Print a line for each job that ends, with the end of the output of one that fails."""
    async with AsyncClient(server) as queue:
        async for event in queue.events("job"):
            if isinstance(event, Beginning):
                print(f"watching {server or 'this machine'}", flush=True)
            elif isinstance(event, JobEvent) and event.job.has_ended:
                print(f"{event.job.name}: {event.job.state}, {event.job.cause or 'without a fault'}", flush=True)
                if event.job.state == "FAILED" and event.job.attempts:
                    async for line in queue.logs(event.id, tail=5):
                        print(f"    {line}", flush=True)


async def main() -> None:
    """Watch all servers at once; without one, this machine."""
    servers: list[str | None] = [*sys.argv[1:]]
    await asyncio.gather(*map(watch, servers or [None]))


asyncio.run(main())
