"""Textual's private API is used in only one module, and only while there is no public way."""

from __future__ import annotations

import ast
import selectors
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import textual
from textual.binding import Binding, BindingsMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widgets import Input

import gputui.console
import gputui.tui
from gputui.tui.textual_internals import PipedEvent
from tests.tui.console import Console, on_screen

OURS = [path for package in (gputui.tui, gputui.console) for path in sorted(Path(package.__path__[0]).rglob("*.py"))]
THE_ONE = "textual_internals.py"
SOURCES = sorted(Path(textual.__path__[0]).rglob("*.py"))


@cache
def private_names_of_textual() -> frozenset[str]:
    """Attributes that Textual's classes set or define with a leading underscore."""
    names: set[str] = set()
    for path in SOURCES:
        if path.name in {
            "app.py",
            "screen.py",
            "widget.py",
            "dom.py",
            "message_pump.py",
            "driver.py",
            "binding.py",
        } or (path.name in {"_compositor.py", "_styles_cache.py", "_writer_thread.py", "linux_driver.py", "_input.py"}):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    names.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names.add(node.attr)
    return frozenset(name for name in names if name.startswith("_") and not name.startswith("__"))


def uses(path: Path) -> Iterator[str]:
    """Yield the private names of Textual that a module imports, or takes from an object that it does not define."""
    private = private_names_of_textual()
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    own |= {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{path.name}:{node.lineno}: {name}" for name in names if name.startswith("_"))
        elif isinstance(node, ast.ClassDef) and node.bases:
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{path.name}:{each.lineno}: {each.name}" for each in methods if each.name in private)
        elif isinstance(node, ast.Attribute) and node.attr in private - own and ast.unparse(node.value) != "os":
            yield f"{path.name}:{node.lineno}: {node.attr}"


def test_no_other_module_uses_private_names() -> None:
    assert [use for path in OURS if path.name != THE_ONE for use in uses(path)] == []


def test_the_search_for_private_names_finds_them() -> None:
    [internals] = [path for path in OURS if path.name == THE_ONE]
    found = " ".join(uses(internals))
    for name in ("_compositor", "_styles_cache", "_writer_thread", "_bindings", "_exit", "_driver", "_dirty_regions"):
        assert name in found


def test_textuals_keymap_still_takes_a_shared_key_from_both_commands() -> None:
    """A failure here means that `App.set_keymap` may do for `console.keys`: see `textual_internals`."""
    bound = BindingsMap([Binding("P", "pause", id="pause"), Binding("P", "unpause", id="unpause")])
    bound.apply_keymap({"pause": "f2"})
    assert set(bound.key_to_bindings) == {"f2"}


def test_textuals_keymap_still_ignores_a_command_without_a_key() -> None:
    bound = BindingsMap([Binding("c", "cancel", id="cancel")])
    bound.apply_keymap({"cancel": ""})
    assert set(bound.key_to_bindings) == {"c"}


async def test_a_widget_is_styled_as_it_is_mounted_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    console, styled = Console(), list[DOMNode]()
    update = Stylesheet.update_nodes
    async with console.app.run_test() as pilot:

        def noted(self: Stylesheet, nodes: Iterable[DOMNode], animate: bool = False) -> None:
            found = list(nodes)
            styled.extend(found)
            update(self, found, animate)

        monkeypatch.setattr(Stylesheet, "update_nodes", noted)
        field = Input(compact=True)
        assert field not in styled
        await console.app.screen.mount(field)
        await pilot.pause()
        assert field.styles.height is not None
        assert field.styles.height.value == 1
        styled.clear()
        field.compact = False
        assert field in styled
        await pilot.pause()
        assert field.styles.height.value == 3


def test_an_event_that_a_selector_waits_for_works_again_after_it_was_closed() -> None:
    event = PipedEvent()
    for _ in range(2):  # a terminal that is lent to another program is closed, and taken back
        with selectors.DefaultSelector() as selector:
            selector.register(event, selectors.EVENT_READ)
            assert selector.select(0) == []
            event.set()
            assert len(selector.select(0)) == 1
        event.clear()
        event.close()
    event.set()
    event.clear()
    assert not event.is_set()


async def test_a_part_of_a_screen_carries_out_its_own_actions() -> None:
    async with on_screen() as (console, _):
        main = console.app.screen
        assert not hasattr(main, "action_grid")
        assert await console.app.run_action("grid", default_namespace=main)
        assert console.told == ["GPU layout: cards"]
        assert await console.app.run_action("graph_span", default_namespace=console.app)
        assert not await console.app.run_action("no_such_action", default_namespace=main)
