"""Verdicts of the checker as SARIF 2.1.0 (OASIS), which code review tools show at the source lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpwright.report.findings import Location, location_of, locations_of, shorten_paths
from warpwright.vgpu.checks.findings import Finding, Rule, Step, Verdict
from warpwright.vgpu.checks.rules import RULES

__all__ = ["sarif_of"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MANUAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/"

Json = dict[str, Any]


def sarif_of(verdicts: Sequence[Verdict], version: str, source: Path | None = None, root: Path | None = None) -> Json:
    """Returns the SARIF log of the verdicts, in ``version`` of this package: one run, for GitHub refuses a file with
    several runs of one tool. Equal results and reasons appear once.

    ``source`` is the PTX file, for PTX without line information of another source. Files below ``root`` (default: the
    working directory) have relative URIs. The location of a result is the later of its accesses, of a deadlock its
    first wait; the others are related locations, and all of them, in order, are the code flow. The reasons of an
    incomplete verdict are notifications of the run, and the run has then not succeeded; branches that went one way
    only are notifications too, of level "note".
    """
    base = (Path.cwd() if root is None else root).resolve()
    driver = {"name": "warpwright", "semanticVersion": version, "rules": [_rule(rule) for rule in RULES.values()]}
    reasons = dict.fromkeys(reason for verdict in verdicts for reason in verdict.reasons)
    notes = [_notification("warning", reason) for reason in reasons]
    unused = dict.fromkeys(text for verdict in verdicts for text in verdict.coverage.idle)
    one_way = dict.fromkeys(way for verdict in verdicts for way in verdict.coverage.one_way)
    untaken = [_notification("note", text) for text in unused]
    untaken += [_notification("note", str(way), location_of(way.where, source), base) for way in one_way]
    found = dict.fromkeys(
        (finding, verdict.kernel, level)
        for verdict in verdicts
        for level, some in (("error", verdict.findings), ("note", verdict.notes))
        for finding in some
    )
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes + untaken}],
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{base.as_uri()}/"}},
        "results": [_result(*each, source, base) for each in found],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(level: str, text: str, found: Location | None = None, base: Path | None = None) -> Json:
    notification: Json = {"level": level, "message": {"text": shorten_paths(text)}}
    if found is not None and base is not None:
        notification["locations"] = [{"physicalLocation": _physical(found, base)}]
    return notification


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.id,
        "shortDescription": {"text": _sentence(rule.title)},
        "help": {"text": f"{_sentence(rule.repair or 'the message says what to change')} See PTX ISA {rule.section}."},
        "helpUri": MANUAL,
        "defaultConfiguration": {"level": "error"},
    }


def _sentence(text: str) -> str:
    """Returns the text with a full stop, and with a capital unless it begins with ``file:line: ``."""
    first = text[:1] if re.match(r"[^:\n]+:\d+: ", text) else text[:1].upper()
    return f"{first}{text[1:].rstrip('.')}."


def _result(finding: Finding, kernel: str, level: str, source: Path | None, base: Path) -> Json:
    parts = [finding.rule.title, shorten_paths(finding.message)]
    parts += [f"Repair: {shorten_paths(finding.rule.repair)}"] * bool(finding.rule.repair)
    parts += [f"Evidence that it is kept: {finding.evidence}"] * bool(finding.evidence)
    parts += [f"seen in the schedule of seed {finding.seed}"] * bool(finding.seed)
    text = " ".join(map(_sentence, parts))
    locations, deadlock = locations_of(finding, source), finding.rule.id == "deadlock"
    logical = [{"name": kernel, "kind": "function"}]
    location: Json = {"logicalLocations": logical}
    if locations:
        location |= {"physicalLocation": _physical(locations[0 if deadlock else -1], base)}
    result = {
        "ruleId": finding.rule.id,
        "ruleIndex": list(RULES).index(finding.rule.id),
        "level": level,
        "message": {"text": text},
        "locations": [location],
    }
    found = [(step, location_of(step.where, source)) for step in finding.steps]
    steps = [_step(step, each, base) for step, each in found if each is not None]
    others = steps[1:] if deadlock else steps[:-1]
    if others:
        result["relatedLocations"] = [{"id": number, **step} for number, step in enumerate(others, 1)]
        result["codeFlows"] = [{"threadFlows": [{"locations": [{"location": step} for step in steps]}]}]
    return result


def _step(step: Step, found: Location, base: Path) -> Json:
    text = f"{step.what}: {step.opcode} ({step.role}, CTA {step.cta}, thread {step.thread})"
    return {"message": {"text": text}, "physicalLocation": _physical(found, base)}


def _physical(found: Location, base: Path) -> Json:
    path = Path(found[0]).resolve()
    if path.is_relative_to(base):
        artifact = {"uri": path.relative_to(base).as_posix(), "uriBaseId": "SRCROOT"}
    else:
        artifact = {"uri": path.as_uri()}
    return {"artifactLocation": artifact, "region": {"startLine": found[1]}}
