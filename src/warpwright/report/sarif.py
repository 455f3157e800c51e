"""Verdicts as SARIF 2.1.0 (OASIS), which code review tools show beside the lines: what they say of each finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpwright.report.findings import Place, place_of, places_of, short
from warpwright.vgpu.checks.findings import Finding, Rule, Step, Verdict
from warpwright.vgpu.checks.rules import RULES

__all__ = ["sarif_of"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MANUAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/"

Json = dict[str, Any]


def sarif_of(verdict: Verdict, version: str, source: Path | None = None, root: Path | None = None) -> Json:
    """One run of the tool of that ``version``. ``source`` is the PTX file, where PTX does not name lines of another;
    files below ``root`` (the working directory) are named relative to it.

    A result stands at the later of its accesses, a deadlock at its first wait; the others are related locations, and
    all in order its code flow. Reasons of an incomplete verdict are notifications of the run, which then has not
    succeeded.
    """
    base = (Path.cwd() if root is None else root).resolve()
    driver = {"name": "warpwright", "semanticVersion": version, "rules": [_rule(rule) for rule in RULES.values()]}
    notes = [{"level": "warning", "message": {"text": reason}} for reason in verdict.reasons]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{base.as_uri()}/"}},
        "results": [_result(finding, verdict.kernel, source, base) for finding in verdict.findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.id,
        "shortDescription": {"text": _sentence(rule.title)},
        "help": {"text": f"{_sentence(rule.repair)} See PTX ISA {rule.section}."},
        "helpUri": MANUAL,
        "defaultConfiguration": {"level": "error"},
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _result(finding: Finding, kernel: str, source: Path | None, base: Path) -> Json:
    parts = [finding.rule.title, short(finding.message), f"repair: {short(finding.rule.repair)}"]
    parts += [f"seen in the schedule of seed {finding.seed}"] * bool(finding.seed)
    text = " ".join(map(_sentence, parts))
    places, stopped = places_of(finding, source), finding.rule.id == "deadlock"
    logical = [{"name": kernel, "kind": "function"}]
    location: Json = {"logicalLocations": logical}
    if places:
        location |= {"physicalLocation": _physical(places[0 if stopped else -1], base)}
    result = {
        "ruleId": finding.rule.id,
        "ruleIndex": list(RULES).index(finding.rule.id),
        "level": "error",
        "message": {"text": text},
        "locations": [location],
    }
    steps = [(step, place_of(step.where, source)) for step in finding.steps]
    placed = [_step(step, found, base) for step, found in steps if found is not None]
    others = placed[1:] if stopped else placed[:-1]
    if others:
        result["relatedLocations"] = [{"id": number, **place} for number, place in enumerate(others, 1)]
        result["codeFlows"] = [{"threadFlows": [{"locations": [{"location": place} for place in placed]}]}]
    return result


def _step(step: Step, found: Place, base: Path) -> Json:
    text = f"{step.what}: {step.opcode} ({step.role}, CTA {step.cta}, thread {step.thread})"
    return {"message": {"text": text}, "physicalLocation": _physical(found, base)}


def _physical(found: Place, base: Path) -> Json:
    path = Path(found[0]).resolve()
    if path.is_relative_to(base):
        artifact = {"uri": path.relative_to(base).as_posix(), "uriBaseId": "SRCROOT"}
    else:
        artifact = {"uri": path.as_uri()}
    return {"artifactLocation": artifact, "region": {"startLine": found[1]}}
