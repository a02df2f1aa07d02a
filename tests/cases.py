"""Tables of cases that one test goes through: names and rows as pytest's parametrize has them, in a loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def cases(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Return a decorator that calls a test once for each row, in this order; a failure names its row.

    Rows share the test's fixtures, except that each has a `tmp_path` and a `monkeypatch` of its own.
    """
    parts = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table_rows = [dict(zip(parts, [row] if len(parts) == 1 else row, strict=True)) for row in rows]
    assert table_rows, "a table has rows"

    def table(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            async def run_tasks(*args: Any, **fixtures: Any) -> None:
                for number, case in enumerate(table_rows):
                    with _row(number, case, fixtures) as own:
                        await test(*args, **own, **case)

            run: Callable[..., Any] = run_tasks
        else:

            def run(*args: Any, **fixtures: Any) -> None:
                for number, case in enumerate(table_rows):
                    with _row(number, case, fixtures) as own:
                        test(*args, **own, **case)

        functools.update_wrapper(run, test)
        kept = [each for each in inspect.signature(test).parameters.values() if each.name not in parts]
        run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return table


@contextmanager
def _row(number: int, case: dict[str, Any], fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    own = dict(fixtures)
    try:
        if "tmp_path" in own:
            own["tmp_path"] = fixtures["tmp_path"] / f"row{number}"
            own["tmp_path"].mkdir()
        if "monkeypatch" in own:
            with fixtures["monkeypatch"].context() as own["monkeypatch"]:
                yield own
        else:
            yield own
    except Exception as error:
        error.add_note(f"in row {number} of its table: {case}")
        raise
