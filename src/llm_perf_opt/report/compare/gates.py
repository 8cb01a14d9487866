"""Gates for continuous integration: a JUnit report, and annotations of GitHub Actions."""

import re
from xml.etree import ElementTree

from llm_perf_opt.comparison.comparison import CompareDocument
from llm_perf_opt.report.compare.compare_text import gate_words

# What XML cannot hold, escaped or not.
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SUITE = "llm-perf compare"
LEVEL = {"passed": "notice", "failed": "error", "inconclusive": "warning"}


def junit_xml(found: CompareDocument) -> str:
    """One test case for each gate; an inconclusive gate is an error, which is not a pass. No gates: the verdict."""
    gates = found.gates
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(max(1, len(gates))),
        failures=str(sum(gate.status == "failed" for gate in gates)),
        errors=str(sum(gate.status == "inconclusive" for gate in gates) if gates else int(found.verdict == "failed")),
    )
    place = f"{found.base.name} to {found.candidate.name}"
    for gate in gates:
        case = ElementTree.SubElement(suite, "testcase", classname=place, name=gate.condition)
        if gate.status != "passed":
            kind = "failure" if gate.status == "failed" else "error"
            ElementTree.SubElement(case, kind, type=gate.status, message=gate_words(gate)).text = found.sentence
    if not gates:
        case = ElementTree.SubElement(suite, "testcase", classname=place, name="comparison")
        if found.verdict == "failed":
            ElementTree.SubElement(case, "error", type="failed", message=found.sentence)
    ElementTree.SubElement(suite, "system-out").text = f"{found.verdict}: {found.sentence}"
    ElementTree.indent(suite)
    for element in suite.iter():
        element.text = _NO_XML.sub("?", element.text or "")
        element.attrib = {name: _NO_XML.sub("?", value) for name, value in element.attrib.items()}
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def github_annotations(found: CompareDocument) -> list[str]:
    """A workflow command for each gate, or one for the verdict."""
    if not found.gates:
        level = "error" if found.verdict == "failed" else "notice"
        return [_command(level, f"{SUITE}: {found.verdict}", found.sentence)]
    return [
        _command(LEVEL[gate.status], f"{SUITE}: {gate.condition} {gate.status}", gate_words(gate))
        for gate in found.gates
    ]


def _command(level: str, title: str, text: str) -> str:
    return f"::{level} title={_escaped(title, is_property=True)}::{_escaped(text)}"


def _escaped(text: str, *, is_property: bool = False) -> str:
    """As GitHub's toolkit escapes data, and properties, which also end at a colon or a comma."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text
