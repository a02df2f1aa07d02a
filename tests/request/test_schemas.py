"""The JSON schemas accept the same files as gputui."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gputui.domain.errors import InputError
from gputui.request.job_file import SCHEMAS, job_schema, read_jobs, settings_schema
from gputui.request.submitter import Submitter
from tests.cases import cases
from tests.factories import NOW, load_settings

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    (path.name, tomllib.loads(block))
    for path in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
]
SETTINGS = [(name, block) for name, block in BLOCKS if "job" not in block]
JOBS = [(name, block) for name, block in BLOCKS if "job" in block]


def takes(schema: dict[str, Any], value: object) -> bool:
    """Return whether the schema accepts a TOML value; JSON has times only as texts."""
    plain = json.loads(json.dumps(value, default=str))
    return bool(jsonschema.Draft202012Validator(schema).is_valid(plain))


@cases("name", SCHEMAS)
def test_schemas_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


def test_every_documented_example_is_valid() -> None:
    settings, job = settings_schema(), job_schema()
    assert (len(SETTINGS) > 10, len(JOBS) > 0) == (True, True)
    assert [name for name, block in SETTINGS if not takes(settings, block)] == []
    assert [name for name, block in JOBS if not takes(job, block)] == []


@cases(
    ("text", "is_taken"),
    [
        ('overridable = ["console", "gpus.sample_interval"]\n[policy]\nshare = 6\nleft_free = ["1", 2]', True),
        ('[policy.allow]\nprivileged = false\nmounts = ["/data"]\n[console.keys]\nhold = "H"\nrequeue = []', True),
        ('[[policy.tenants]]\nname = "a"\nweight = 2\n[store]\nlock_timeout = "5s"\nlogs_max_size = "1g"', True),
        ('[log]\nformat = "json"\n[hooks]\nmail_to = ["a@b"]\non_job_end = ["x"]', True),
        ("[scheduler]\nstop_grace = 0", True), ("[scheduler]\nstop_grace = 90", False),
        ("[scheduler]\nstop_grace = 0.5", False), ('[log]\nformat = "yaml"', False),
        ("[store]\nkeep_finished = 1.5", False), ("[stor]\nkeep_finished = 1", False), ("[store]\nkeep = 1", False),
        ('[metrics]\nenabled = "yes"', False), ('[policy.allow]\nprivileged = "no"', False),
    ],
)  # fmt: skip
def test_schema_and_reader_agree_on_settings(tmp_path: Path, text: str, is_taken: bool) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    assert takes(settings_schema(), tomllib.loads(text)) is is_taken
    if is_taken:
        load_settings(path, {})
    else:
        with pytest.raises(InputError):
            load_settings(path, {})


@cases(
    ("text", "is_taken"),
    [
        ('image = "a"\ncommand = ["x", 1]\ngpus = 1\nenv = {A = "1", B = 2}\nvolume = ["/a:/b"]\nhold = true', True),
        ('host = true\ncommand = ["true"]\ntime_limit = "2h"\nenv = ["A"]', True),
        ('host = true\ncommand = ["true"]\ntime_limit = 90', False),
        ('image = "a"\nhealth_interval = 30', False),
        ('image = "a"\nbackoff = 0', True),
        ('image = "a"\nsweep = {lr = [0.1, 0.2], seed = "0-3"}', True),
        ('command = ["x"]', False),
        ('image = "a"\nhost = true', False),
        ('image = "a"\ngpu = 1', False),
        ('image = "a"\nhold = "yes"', False),
    ],
)
def test_schema_and_reader_agree_on_jobs(tmp_path: Path, text: str, is_taken: bool) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"[[job]]\n{text}\n")
    assert takes(job_schema(), tomllib.loads(path.read_text())) is is_taken
    by = Submitter("alice", NOW)
    if is_taken:
        assert len(read_jobs(str(path), by)) == 1
    else:
        with pytest.raises(InputError):
            read_jobs(str(path), by)
