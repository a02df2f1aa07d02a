"""Prints the bill of materials, in CycloneDX's JSON: gputui, what it needs as installed here, who asks for it.

The same packages give the same bytes. Its time is SOURCE_DATE_EPOCH; without that it has none. With --check, two
processes make it, which must agree, and it is checked against CycloneDX's schema.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from gputui import __version__
from scripts._dependencies import EXTRAS, graph, licence, packages

SPECIFICATION = "1.6"
_UNLIKE = ({"PYTHONHASHSEED": "1", "TZ": "UTC"}, {"PYTHONHASHSEED": "2", "TZ": "Asia/Shanghai", "LC_ALL": "C"})
"""Surroundings that must not show."""


def purl(name: str) -> str:
    """Return a package's address, which also is its reference in the document."""
    return f"pkg:pypi/{name}@{__version__ if name == 'gputui' else version(name)}"


def component(name: str, kind: str) -> dict[str, Any]:
    """Return what identifies a package, and its licence as it states it."""
    told, found = licence(distribution(name)), distribution(name).metadata
    stated = {"expression": told} if "License-Expression" in found else {"license": {"name": told}}
    address = purl(name)
    return {
        "type": kind,
        "bom-ref": address,
        "name": name,
        "version": address.rpartition("@")[2],
        "description": (found.get_all("Summary") or [""])[0],  # `[…]` raises once importlib_metadata is loaded
        "licenses": [stated],
        "purl": address,
    }


def document() -> dict[str, Any]:
    """Return the bill of materials; its serial number follows from its content."""
    brought = packages()
    needed = [
        component(name, "library")
        | {"scope": "optional" if extra else "required"}
        | ({"properties": [{"name": "gputui:extra", "value": extra}]} if extra else {})
        for name, extra in sorted(brought.items())
    ]
    asked, made_at = graph(*EXTRAS), os.environ.get("SOURCE_DATE_EPOCH")
    moment = {"timestamp": datetime.fromtimestamp(int(made_at), UTC).isoformat()} if made_at else {}
    content = {
        "metadata": {**moment, "component": component("gputui", "application")},
        "components": needed,
        "dependencies": [
            {"ref": purl(name), "dependsOn": sorted(map(purl, asked.get(name, ())))}
            for name in ["gputui", *sorted(brought)]
        ],
    }
    serial = uuid5(NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json", "bomFormat": "CycloneDX"}
    return {**head, "specVersion": SPECIFICATION, "serialNumber": f"urn:uuid:{serial}", "version": 1, **content}


def text() -> str:
    return json.dumps(document(), indent=2) + "\n"


def check() -> int:
    """Say what is wrong with the document; return 1 then."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    first, second = (
        subprocess.run(
            [sys.executable, __file__], env={**os.environ, **each}, check=True, stdout=subprocess.PIPE
        ).stdout
        for each in _UNLIKE
    )
    fault = JsonStrictValidator(SchemaVersion.from_version(SPECIFICATION)).validate_str(first.decode())
    if first != second:
        print("bill of materials: two processes make it differently")
    if fault:
        print(f"bill of materials: {fault}")
    return 1 if fault or first != second else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    if sys.argv[1:]:
        sys.exit("usage: sbom.py [--check]")
    sys.stdout.write(text())
