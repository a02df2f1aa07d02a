"""Rules for all sources: lower layers load only the standard library and msgspec, and asserts check no input."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

import gputui.domain
import gputui.engine.actions

ROOT = Path(gputui.__path__[0]).parent
DOMAIN = [module.name for module in pkgutil.walk_packages(gputui.domain.__path__, "gputui.domain.")]
ACTIONS = [module.name for module in pkgutil.walk_packages(gputui.engine.actions.__path__, "gputui.engine.actions.")]
GROUND = ["gputui.domain", *DOMAIN, "gputui.ports", *ACTIONS]

# Without `site` only the two paths are searched, and everything loaded was loaded by the import itself.
LOADED = """
import sys
sys.path[:0] = sys.argv[1:3]
for module in sys.argv[3:]:
    __import__(module)
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names - set(sys.stdlib_module_names)))
"""


def test_lower_layers_load_only_the_standard_library_and_msgspec() -> None:
    libraries = Path(msgspec.__path__[0]).parent
    command = [sys.executable, "-I", "-S", "-c", LOADED, str(ROOT), str(libraries), *GROUND]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) - {"msgspec", "typing_extensions"} == {"__main__", "gputui"}


def test_every_module_of_the_domain_is_checked() -> None:
    files = {path for path in (ROOT / "gputui" / "domain").rglob("*.py") if path.name != "__init__.py"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    assert names <= set(GROUND)


def test_no_class_name_has_two_meanings() -> None:
    sources = [path.read_text() for path in (ROOT / "gputui").rglob("*.py")]
    names = Counter(name for source in sources for name in re.findall(r"^class (\w+)", source, re.MULTILINE))
    assert len(names) > 400
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_exceeds_700_lines() -> None:
    lengths = {path: path.read_text().count("\n") for path in (ROOT / "gputui").rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > 700} == {}


def test_asserts_say_what_types_cannot_and_check_nothing_else() -> None:
    """Asserts are gone under `python -O`; ruff's S101 is off for the sake of these."""
    found: Counter[str] = Counter()
    for path in (ROOT / "gputui").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Assert(test=ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])):
                    found["is not None"] += 1
                case ast.Assert(test=ast.Call(func=ast.Name(id="isinstance"))):
                    found["isinstance"] += 1
                case ast.Assert():
                    found[f"{path}:{node.lineno}"] += 1
    assert found.keys() == {"is not None", "isinstance"}


def test_every_exception_of_a_security_rule_gives_its_reason() -> None:
    sources = [path.read_text() for name in ("gputui", "tests") for path in (ROOT / name).rglob("*.py")]
    excepted = [line for source in sources for line in source.splitlines() if re.search(r"# noqa:.*\bS\d{3}\b", line)]
    assert len(excepted) > 40
    assert [line for line in excepted if not re.search(r"\bS\d{3} - \w", line)] == []
