"""JUnit: a check as the XML that CI systems show as a test."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from simserve.report.check import goodput_name, sentence, table_rows

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'


def junit_xml(result: Mapping[str, Any]) -> str:
    """Return one test, failed if the check is; from what `simserve check --json` prints."""
    failures = str(int(not result["passes"]))
    counts = {"tests": "1", "failures": failures, "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites", {"name": "simserve check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "simserve check", **counts})
    name = f"{goodput_name(result)} of {result['scenario']['name']}"
    test = ElementTree.SubElement(suite, "testcase", {"classname": "simserve.check", "name": _allowed(name)})
    line, table = _allowed(sentence(result)), _allowed("\n".join(map(_line, table_rows(result))))
    if result["passes"]:
        ElementTree.SubElement(test, "system-out").text = f"{line}\n\n{table}\n"
    else:
        failure = ElementTree.SubElement(test, "failure", {"message": line, "type": str(result["state"])})
        failure.text = f"{table}\n"
    ElementTree.indent(suites)
    return f"{DECLARATION}\n{ElementTree.tostring(suites, encoding='unicode')}\n"


def _line(row: Sequence[str]) -> str:
    return "  ".join(cell for cell in row if cell)


def _allowed(text: str) -> str:
    """Return text without characters that XML forbids (XML 1.0, section 2.2)."""
    return re.sub(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)
