"""Prints how large the package is, and how much of it an action enters; with --check, fails above the limits below.

The limits are those of the day on which they were last lowered. Lower them with the code, and never raise one without
a reason in the commit.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gputui"
BACKENDS = ("bootstrap/", "engine/cluster/", "cluster/")
"""Folders whose code may know whose queue it is."""
ENGINES = ("cluster/", "engine/cluster/", "ports/cluster.py")
ASKING = ("request/", "client.py")
"""Folders of who asks for an action: the options of jobs, one of which is `--hold`, and `Client.hold` for programs."""
OPTIONAL = ("cluster/", "engine/cluster/", "replay/", "web/", "tracing.py", "mcp.py")
"""Parts that the core does not import, by a contract of import-linter."""
Nodes: TypeAlias = tuple[ast.AST, ...]
COMMANDS = {
    "priority": ("priority", "7", "+10"),
    "submit": ("submit", "--host", "--gpus", "2", "--", "true"),
    "queue": ("queue",),
    "gpus": ("gpus",),
}
"""Commands whose functions are counted, in a queue of seven held jobs without a scheduler."""
LIMITS: Mapping[str, float] = {
    "files": 325,
    "lines": 104_957,
    "lines without optional parts": 91_422,
    "functions": 7_510,
    "lines per function": 13.98,
    "folders of more than 15 files": 5,
    "modules with one importer": 46,
    "single-use functions of at most three lines, not tested alone": 113,
    "lines that ask for a cluster outside the backends": 0,
    "declarations of hold": 1,
    "classes that refuse": 0,
    "functions that priority enters": 194,
    "files that priority enters": 34,
    "functions that submit enters": 226,
    "files that submit enters": 35,
    "functions that queue enters": 204,
    "files that queue enters": 39,
    "functions that gpus enters": 177,  # on a slow machine; 168 where the simulated GPUs are looked at once
    "files that gpus enters": 35,
    "files of the path: A job from submit to its first log line": 35,
    "files of the path: A reading from NVML to a card": 15,
    "files of the path: A log line from Docker to the pane": 9,
    "files of the path: The key + to the store": 16,
}
"""The most of each figure; of lines per function, the least."""
_DRIVER = """
import json, os, sys
entered = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and "comp>" not in code.co_name and "genexpr" not in code.co_name:
        entered.add((code.co_filename, code.co_firstlineno, code.co_name))
place, words = sys.argv[1], sys.argv[2:]
simulated = ("--runtime", "process", "--probe", "sim:2") if "gpus" in words[:1] else ()
options = ("--state", place, *simulated)
from gputui.cli.main import run
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
if words:
    sys.setprofile(note)
    run((*options, *words))
    sys.setprofile(None)
else:
    for _ in range(7):
        run((*options, "submit", "--host", "--hold", "--", "true"))
import gputui
package = os.path.dirname(gputui.__file__) + os.sep
found = [each for each in entered if each[0].startswith(package)]
os.write(out, json.dumps([len(found), len({each[0] for each in found})]).encode())
"""


def entered() -> Iterator[tuple[str, int]]:
    """Yield functions and files of the package that each command enters, from its main function on.

    Only `gpus` is told to simulate some: the others read none, and start no job.
    """
    with tempfile.TemporaryDirectory() as place:
        driver = (sys.executable, "-P", "-c", _DRIVER, place)
        subprocess.run(driver, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        for name, words in COMMANDS.items():
            found = subprocess.run((*driver, *words), check=True, capture_output=True, cwd=ROOT).stdout
            functions, files = json.loads(found)
            yield f"functions that {name} enters", functions
            yield f"files that {name} enters", files


def size(sources: Mapping[str, str], trees: Mapping[str, Nodes]) -> Iterator[tuple[str, float]]:
    """Yield sizes of the package; lines include blank ones, and everything around functions."""
    lines = sum(text.count("\n") for text in sources.values())
    nodes = Counter(type(node) for tree in trees.values() for node in tree)
    functions = nodes[ast.FunctionDef] + nodes[ast.AsyncFunctionDef]
    yield "files", len(sources)
    yield "lines", lines
    core = sum(text.count("\n") for name, text in sources.items() if not name.startswith(OPTIONAL))
    yield "lines without optional parts", core
    yield "functions", functions
    yield "lines per function", round(lines / functions, 2)
    yield (
        "folders of more than 15 files",
        sum(n > 15 for n in Counter(name.rpartition("/")[0] for name in sources).values()),
    )
    yield "modules with one importer", sum(count == 1 for count in importers(trees).values())
    yield "single-use functions of at most three lines, not tested alone", single_uses(trees)
    asks = re.compile(r"\bin_cluster\b|\bis_of_cluster\b")
    outside = {name: text for name, text in sources.items() if not name.startswith(BACKENDS)}
    yield (
        "lines that ask for a cluster outside the backends",
        sum(bool(asks.search(line)) and " def " not in line for text in outside.values() for line in text.splitlines()),
    )
    yield (
        "declarations of hold",
        sum(map(declared, (tree for name, tree in trees.items() if not name.startswith((*ENGINES, *ASKING))))),
    )
    yield "classes that refuse", sum(refuses(node) for tree in trees.values() for node in tree)


def importers(trees: Mapping[str, Nodes]) -> Counter[str]:
    """Return how many modules of the package import each module."""
    names = {f"gputui.{path.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__") for path in trees}
    count: Counter[str] = Counter()
    for path, tree in trees.items():
        found: set[str] = set()
        for node in tree:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {each if each in names else node.module for each in whole}
        count.update(found & names - {f"gputui.{path.removesuffix('.py').replace('/', '.')}"})
    return count


def single_uses(trees: Mapping[str, Nodes]) -> int:
    """Return how many functions of at most three lines, without the docstring, are used once, and not tested alone.

    Only names that one function has count: a method of a port has several. Handlers that Textual or click call by
    name or by a decorator are left out.
    """
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    short: set[str] = set()
    for node in (node for tree in trees.values() for node in tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined[name] += 1
                body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
                handler = name.startswith(("__", "on_", "action_", "watch_", "compose", "render"))
                decorators = {each.id if isinstance(each, ast.Name) else "" for each in node.decorator_list}
                if lines <= 3 and not handler and decorators <= {"property", "staticmethod", "contextmanager"}:
                    short.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                used[name] += 1
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    tested = set(re.findall(r"\b[a-z_]\w*\b", tests))
    return sum(defined[name] == 1 and used[name] == 1 and name not in tested for name in short)


def declared(tree: Nodes) -> int:
    """Return how often a module declares what holds jobs: as a function, or as a row of a table."""
    return sum(
        (isinstance(node, ast.FunctionDef) and node.name == "hold")
        or (isinstance(node, ast.keyword) and node.arg == "name" and getattr(node.value, "value", "") == "hold")
        or (isinstance(node, ast.Call) and bool(node.args) and getattr(node.args[0], "value", "") == "hold")
        for node in tree
    )


def refuses(node: ast.AST) -> bool:
    """Return whether at least three, and a third, of a class's methods only refuse, or do nothing."""
    if not isinstance(node, ast.ClassDef) or any("Protocol" in ast.dump(base) for base in node.bases):
        return False
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
    empty = sum(all(map(_does_nothing, method.body)) for method in methods)
    return empty >= 3 and 3 * empty >= len(methods)


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Delete() | ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Return(value=None):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="_refuse"))):
            return True
        case ast.Return(value=ast.Constant(value=None | False | "") | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
            return True
    return False


def paths() -> Iterator[tuple[str, int]]:
    """Yield the lengths of the paths through the code that docs/architecture.md lists, in files."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in re.split(r"(?m)^(?=\*\*)", text.partition("## Four paths")[2].partition("\n## ")[0])[1:]:
        name, length = re.findall(r"^\*\*(.+?) \((\d+)\)\.\*\*", path)[0]
        files = set(re.findall(r"`((?:\w+/)*\w+\.py)`", path))
        assert len(files) == int(length), f"{name}: it lists {len(files)} files"
        assert all((PACKAGE / each).exists() for each in files), f"{name}: a file is gone"
        yield f"files of the path: {name.replace('`', '')}", len(files)


def main() -> int:
    """Print the figures; return 1 if one is beyond its limit."""
    sources = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))
    }
    trees = {name: tuple(ast.walk(ast.parse(text))) for name, text in sources.items()}
    figures = {**dict(size(sources, trees)), **dict(entered()), **dict(paths())}
    beyond = (
        [
            name
            for name, figure in figures.items()
            if (figure < LIMITS[name] if name == "lines per function" else figure > LIMITS[name])
        ]
        if "--check" in sys.argv
        else []
    )
    for name, figure in figures.items():
        if not beyond or name in beyond:
            print(
                f"{figure:>10,} {name}"
                + (f", and the limit in scripts/figures.py is {LIMITS[name]:,}" if beyond else "")
            )
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
