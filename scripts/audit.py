"""Asks pip-audit for published advisories about what gputui needs, as installed here; 1 if there are some.

pip-audit finds no fault with packages that a service has never heard of, as a mirror of PyPI without its advisories. So
each service is first asked about a version that has had advisories for years. Where none knows those, that is said, and
the exit code is 0. With --require it is 1 then, and for a package that is not known. Other arguments go to pip-audit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._dependencies import packages

KNOWN = {"django": "2.0"}
"""No dependency, and of 2017."""
SERVICES = ("pypi", "osv")


Ask = Callable[[str, Mapping[str, str], Sequence[str]], "Answer"]


class Answer(NamedTuple):
    """Answer of a service about some packages."""

    found: Mapping[str, Sequence[str]] = {}
    """Advisories by package and version."""
    unheard: Sequence[str] = ()
    """Packages that it does not know, with its words; without a package, why it did not answer."""


def answer_of(code: int, out: str, err: str) -> Answer:
    """Return what a run of pip-audit says. Raises SystemExit if it was not understood, or is broken."""
    if code not in (0, 1):
        raise SystemExit(f"pip-audit ended with {code}: {err.strip()}")
    if not out.strip():
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        if not re.search("Connection|Timeout|HTTPError|ServiceError", err):
            raise SystemExit(f"pip-audit ended with {code}: {last}")
        return Answer(unheard=[last])
    found, unheard = {}, []
    for each in json.loads(out)["dependencies"]:
        if "skip_reason" in each:
            unheard.append(each["skip_reason"])
        elif each["vulns"]:
            found[f"{each['name']} {each['version']}"] = [
                f"{one['id']}, mended in {', '.join(one['fix_versions']) or 'no version'}" for one in each["vulns"]
            ]
    return Answer(found, unheard)


def ask(service: str, pins: Mapping[str, str], options: Sequence[str]) -> Answer:
    """Ask a service about packages of these versions."""
    with tempfile.TemporaryDirectory() as place:
        wanted = Path(place, "requirements.txt")
        wanted.write_text("".join(f"{name}=={number}\n" for name, number in pins.items()))
        words = [sys.executable, "-m", "pip_audit", "-r", str(wanted), "--no-deps", "--disable-pip", "-f", "json"]
        words += ["--progress-spinner", "off", "-s", service, *options]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    return answer_of(done.returncode, done.stdout, done.stderr)


def main(arguments: Sequence[str], ask: Ask = ask) -> int:
    """Say what the first service that knows advisories says; return the exit code."""
    options, pins = [word for word in arguments if word != "--require"], {name: version(name) for name in packages()}
    is_required, silent = "--require" in arguments, []
    for service in SERVICES:
        known = ask(service, KNOWN, options)
        if not known.found:
            silent.append(f"  {service}: {'; '.join(known.unheard) or 'it knows no advisory'}")
            continue
        found, unheard = ask(service, pins, options)
        lines = [*unheard, *(f"{name}: {'; '.join(advisories)}" for name, advisories in found.items())]
        lines.append(
            f"{service} has advisories for {len(found)} of {len(pins)} packages; {len(unheard)} it does not know"
        )
        print("\n".join(f"audit: {line}" for line in lines))
        return 1 if found or (unheard and is_required) else 0
    print(f"audit: NOT DONE, no advisories can be reached from here, so nothing is known of {len(pins)} packages:")
    print("\n".join(silent))
    return 1 if is_required else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
