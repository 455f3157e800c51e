"""SARIF: the parts of the standard that a verdict uses, and the locations of its results."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from tests.report.sarif_schema import SCHEMA
from warpwright.report.findings import location_of, locations_of, verdict_lines
from warpwright.report.sarif import sarif_of
from warpwright.vgpu.checks.coverage import Coverage
from warpwright.vgpu.checks.findings import Finding, Step, Verdict
from warpwright.vgpu.checks.rules import RULES


def step(what: str, where: str) -> Step:
    return Step(what, "st.shared.u32", where, "load", (1, 0, 0), 7)


def verdict(*findings: Finding, reasons: tuple[str, ...] = ()) -> Verdict:
    return Verdict("k", "h200", findings, Coverage(3, 4, ()), reasons)


def race(first: str, second: str) -> Finding:
    return Finding(RULES["race"], (step("first", first), step("second", second)), "nothing orders them")


HANG = Finding(
    RULES["deadlock"], (), "kernel k: no warp can make progress.\n  CTA (0, 0, 0), warp 0: waits (/w/k.py:19)"
)


def test_the_location_of_a_race_is_its_later_access(tmp_path) -> None:
    log = sarif_of([verdict(race(f"{tmp_path}/src/k.py:4", "/elsewhere/k.py:9"))], "1.2.3", root=tmp_path)
    jsonschema.validate(log, SCHEMA)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "file:///elsewhere/k.py"},
        "region": {"startLine": 9},
    }
    assert result["relatedLocations"] == [
        {
            "id": 1,
            "message": {"text": "first: st.shared.u32 (load, CTA (1, 0, 0), thread 7)"},
            "physicalLocation": {
                "artifactLocation": {"uri": "src/k.py", "uriBaseId": "SRCROOT"},
                "region": {"startLine": 4},
            },
        }
    ]
    flow = result["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [each["location"]["physicalLocation"]["region"]["startLine"] for each in flow] == [4, 9]
    assert result["message"]["text"] == (
        "Two accesses of the same memory, one of them a write, that nothing orders. Nothing orders them. Repair: "
        "let the second wait for the first: an arrive (of an asynchronous operation: its commit) on an mbarrier after "
        "the first and a wait for that phase before the second, or a barrier between them."
    )


def test_the_location_of_a_deadlock_is_its_first_wait(tmp_path) -> None:
    steps = step("waits for a", f"{tmp_path}/k.py:3"), step("waits for b", f"{tmp_path}/k.py:9")
    found = Finding(RULES["deadlock"], steps, "cycle: a → b → a", seed=7)
    (result,) = sarif_of([verdict(found)], "1.0", root=tmp_path)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert [each["physicalLocation"]["region"]["startLine"] for each in result["relatedLocations"]] == [9]
    assert result["message"]["text"].endswith(" Seen in the schedule of seed 7.")


def test_rules_are_a_table_that_results_point_into(tmp_path) -> None:
    log = sarif_of([verdict(HANG)], "1.2.3", root=tmp_path)
    jsonschema.validate(log, SCHEMA)
    driver = log["runs"][0]["tool"]["driver"]
    (result,) = log["runs"][0]["results"]
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "deadlock"
    assert driver["rules"][0]["help"]["text"].endswith("or a barrier between them. See PTX ISA 8.9.4.")
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 19}
    assert result["locations"][0]["logicalLocations"] == [{"name": "k", "kind": "function"}]
    assert "relatedLocations" not in result and "codeFlows" not in result


def test_an_incomplete_verdict_is_a_run_that_did_not_succeed(tmp_path) -> None:
    log = sarif_of([verdict(reasons=("not reached: k.py:3",))], "1.2.3", root=tmp_path)
    jsonschema.validate(log, SCHEMA)
    assert log["runs"][0]["results"] == []
    assert log["runs"][0]["invocations"] == [
        {
            "executionSuccessful": False,
            "toolExecutionNotifications": [{"level": "warning", "message": {"text": "not reached: k.py:3"}}],
        }
    ]
    assert sarif_of([verdict()], "1.2.3", root=tmp_path)["runs"][0]["invocations"][0]["executionSuccessful"]


def test_a_finding_without_a_location_names_its_kernel(tmp_path) -> None:
    log = sarif_of([verdict(race("PTX line 4", "PTX line 9"))], "1.2.3", root=tmp_path)
    jsonschema.validate(log, SCHEMA)
    (result,) = log["runs"][0]["results"]
    assert result["locations"] == [{"logicalLocations": [{"name": "k", "kind": "function"}]}]


def test_the_schema_of_this_test_refuses_what_the_standard_refuses(tmp_path) -> None:
    log = sarif_of([verdict(race("/a.py:1", "/a.py:2"))], "1.2.3", root=tmp_path)
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, SCHEMA)


def test_launches_share_one_run_with_equal_results_once(tmp_path) -> None:
    """GitHub refuses a file with several runs of one tool in one category."""
    first, other = verdict(race("/a.py:1", "/a.py:2"), reasons=("why",)), verdict(HANG, reasons=("why",))
    log = sarif_of([first, first, other], "1.2.3", root=tmp_path)
    jsonschema.validate(log, SCHEMA)
    (run,) = log["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["race", "deadlock"]
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 1
    (empty,) = sarif_of([], "1.2.3", root=tmp_path)["runs"]
    assert empty["results"] == [] and empty["invocations"][0]["executionSuccessful"]


def test_a_sentence_that_begins_with_a_file_keeps_its_name(tmp_path) -> None:
    found = Finding(RULES["fault"], (), "/w/k.cu:9: `st.global.u32`: kernel k: address 0x7 is wrong.")
    (result,) = sarif_of([verdict(found)], "1.0", root=tmp_path)["runs"][0]["results"]
    assert " device does not allow. k.cu:9: `st.global.u32`: kernel k: " in result["message"]["text"]


def test_locations_of_steps_and_messages() -> None:
    source = Path("/w/k.ptx")
    assert location_of("/a b/k.py:12") == ("/a b/k.py", 12)
    assert location_of("PTX line 12") is None and location_of("PTX line 12", source) == ("/w/k.ptx", 12)
    assert locations_of(race("/a.py:1", "/a.py:1")) == [("/a.py", 1)]
    assert locations_of(HANG) == [("/w/k.py", 19)]
    fault = Finding(RULES["fault"], (), "PTX line 23: `ld.global.f32`: kernel k, CTA (3, 0, 0): address 0x7 is wrong.")
    assert locations_of(fault) == [] and locations_of(fault, source) == [("/w/k.ptx", 23)]


def test_text_shows_no_folders(tmp_path) -> None:
    (tmp_path / "k.py").write_text("one\n  full.wait(0)\n")
    hang = Finding(RULES["deadlock"], (), f"kernel k: no warp can make progress.\n  warp 0: waits ({tmp_path}/k.py:2)")
    lines = list(verdict_lines(verdict(hang)))
    assert lines[3:6] == [
        "   kernel k: no warp can make progress.",
        "   warp 0: waits (k.py:2)",
        "      k.py:2  [cyan]full.wait(0)[/cyan]",
    ]
