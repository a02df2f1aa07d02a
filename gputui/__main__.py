"""`python -m gputui`, and the `gputui` command."""

from __future__ import annotations

import gc

COLLECT_AFTER = (200_000, 20, 100)
"""New objects before a collection of young ones, and collections before one of each older generation.

Most commands end within a second or two, with up to some million objects of a large queue in memory and hardly a cycle
among them: with Python's thresholds a third of that time goes into walking through them. The imports of a command alone
make some ten thousand.
"""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(*COLLECT_AFTER)
    from gputui.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
