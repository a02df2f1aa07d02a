"""The bill of materials, and what is concluded from pip-audit's answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scripts import audit, sbom
from scripts._dependencies import packages
from scripts.audit import Answer
from tests.cases import cases

VULNERABLE = {"name": "h11", "version": "0.9", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.16", "0.17"]}]}
WITHOUT_MEND = {"name": "idna", "version": "1", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
UNHEARD = {"name": "docker", "skip_reason": "Dependency not found on PyPI"}
CLEAN = {"name": "click", "version": "8.4", "vulns": []}


def test_the_bill_of_materials_has_every_dependency_once_and_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    bill = sbom.document()
    components = {each["name"]: each for each in bill["components"]}
    assert len(components) == len(bill["components"])
    assert components.keys() == packages().keys()
    assert {components["docker"]["scope"], components["aiohttp"]["scope"]} == {"required", "optional"}
    assert components["aiohttp"]["properties"] == [{"name": "gputui:extra", "value": "web"}]
    assert all(each["licenses"] and each["version"] for each in components.values())
    asked = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert asked.keys() == {each["bom-ref"] for each in [*bill["components"], bill["metadata"]["component"]]}
    assert {each for names in asked.values() for each in names} == asked.keys() - {sbom.purl("gputui")}
    assert sbom.purl("urllib3") in asked[sbom.purl("requests")]
    assert "timestamp" not in bill["metadata"]


def test_the_serial_number_and_time_of_a_bill_of_materials_follow_from_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = set()
    for seconds in ("86400", "86400", "172800"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
        texts.add(sbom.text())
    found = [json.loads(text) for text in texts]
    assert {each["metadata"]["timestamp"] for each in found} == {
        "1970-01-02T00:00:00+00:00",
        "1970-01-03T00:00:00+00:00",
    }
    assert len({each["serialNumber"] for each in found}) == len(texts) == 2
    assert all(re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", each["serialNumber"]) for each in found)


@cases(
    ("code", "dependencies", "expected"),
    [
        (0, [CLEAN], Answer()),
        (0, [CLEAN, UNHEARD], Answer({}, ["Dependency not found on PyPI"])),
        (
            1,
            [VULNERABLE, WITHOUT_MEND],
            Answer({"h11 0.9": ["PYSEC-1, mended in 0.16, 0.17"], "idna 1": ["PYSEC-2, mended in no version"]}, []),
        ),
    ],
)
def test_a_report_of_pip_audit_is_read(code: int, dependencies: Sequence[Mapping[str, Any]], expected: Answer) -> None:
    answer = audit.answer_of(code, json.dumps({"dependencies": dependencies, "fixes": []}), "a warning")
    assert (answer.found, list(answer.unheard)) == (expected.found, list(expected.unheard))


def test_a_service_that_cannot_be_reached_is_no_broken_program_and_a_broken_program_no_such_service() -> None:
    told = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev')"
    assert audit.answer_of(1, "", f"Traceback …\n{told}\n") == Answer({}, [told])
    with pytest.raises(SystemExit, match="ended with 1: ImportError"):
        audit.answer_of(1, "", "Traceback …\nImportError: no module\n")
    with pytest.raises(SystemExit, match="ended with 2: usage"):
        audit.answer_of(2, "", "usage: pip-audit")


KNOWS = Answer({"django 2.0": ["PYSEC-3"]})
NEVER_HEARD = Answer({}, ["django not found"])
CLEAR, ONE_BAD, ONE_UNHEARD = Answer(), Answer({"h11 0.9": ["PYSEC-1"]}), Answer({}, ["tinydb not found"])


@cases(
    ("pypi", "osv", "code", "required", "said"),
    [
        ((KNOWS, CLEAR), None, 0, 0, "pypi has advisories for 0 of"),
        ((KNOWS, ONE_BAD), None, 1, 1, "h11 0.9: PYSEC-1"),
        ((KNOWS, ONE_UNHEARD), None, 0, 1, "audit: tinydb not found"),
        ((NEVER_HEARD, CLEAR), (KNOWS, ONE_BAD), 1, 1, "osv has advisories for 1 of"),
        ((NEVER_HEARD, CLEAR), (NEVER_HEARD, CLEAR), 0, 1, "NOT DONE, no advisories can be reached"),
        ((Answer(), CLEAR), (Answer(), CLEAR), 0, 1, "pypi: it knows no advisory"),
    ],
)
def test_what_no_service_knows_is_not_taken_for_faultless(
    pypi: tuple[Answer, Answer],
    osv: tuple[Answer, Answer] | None,
    code: int,
    required: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(service: str, pins: Mapping[str, str], options: Sequence[str]) -> Answer:
        assert list(options) == ["--timeout", "3"]
        answers = {"pypi": pypi, "osv": osv}[service]
        assert answers is not None, "the first that knows advisories is enough"
        return answers[0] if pins == audit.KNOWN else answers[1]

    assert audit.main(["--timeout", "3"], ask) == code
    assert said in capsys.readouterr().out
    assert audit.main(["--require", "--timeout", "3"], ask) == required


def test_the_version_that_shows_whether_advisories_are_reached_is_no_dependency() -> None:
    assert not audit.KNOWN.keys() & packages().keys()
