"""The ground loads the standard library alone, however deep the import goes."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import gputui.domain

ROOT = Path(gputui.__path__[0]).parent
DOMAIN = [module.name for module in pkgutil.walk_packages(gputui.domain.__path__, "gputui.domain.")]
GROUND = ["gputui.domain", *DOMAIN, "gputui.ports", "gputui.engine.actions"]

# Without `site` no third party is there to be found, and what is loaded was loaded by the import itself.
LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
__import__(sys.argv[2])
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names - set(sys.stdlib_module_names)))
"""


@pytest.mark.parametrize("module", GROUND)
def test_the_ground_loads_the_standard_library_alone(module: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", LOADED, str(ROOT), module]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["__main__", "gputui"]


def test_every_module_of_the_ground_was_found() -> None:
    files = {path for path in (ROOT / "gputui" / "domain").rglob("*.py") if path.name != "__init__.py"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    assert names <= set(GROUND)
