"""Traces follow the Trace Event format; arrows lead from each copy to the MMA that reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import jsonschema
import pytest

from tests.report.timelines import profile, timeline
from warpwright.report.trace import trace_of

NUMBER, COUNT, WORD = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 0}, {"type": "string"}
PLACE = {"pid": COUNT, "tid": COUNT}


def event(phase, required, **fields):
    return {
        "type": "object",
        "properties": {"ph": {"const": phase}, **PLACE, **fields},
        "required": ["ph", "pid", "tid", *required],
        "additionalProperties": False,
    }


# After the public document "Trace Event Format": the object form, and the phases M, X, s and f.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "additionalProperties": False,
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    event(
                        "M",
                        ["name", "args"],
                        name={"enum": ["process_name", "process_sort_index", "thread_name", "thread_sort_index"]},
                        args={"type": "object", "properties": {"name": WORD, "sort_index": COUNT}},
                    ),
                    event(
                        "X",
                        ["name", "ts", "dur", "cat"],
                        name=WORD,
                        cat=WORD,
                        ts=NUMBER,
                        dur=NUMBER,
                        cname=WORD,
                        args={"type": "object"},
                    ),
                    event("s", ["name", "cat", "id", "ts"], name=WORD, cat=WORD, id=COUNT, ts=NUMBER),
                    event(
                        "f",
                        ["name", "cat", "id", "ts", "bp"],
                        name=WORD,
                        cat=WORD,
                        id=COUNT,
                        ts=NUMBER,
                        bp={"const": "e"},
                    ),
                ]
            },
        },
    },
}


@pytest.fixture(scope="module")
def trace():
    return json.loads(json.dumps(trace_of(profile(k_blocks=24, wasted=0.5))))


def phase(trace, letter):
    return [each for each in trace["traceEvents"] if each["ph"] == letter]


def test_a_trace_has_the_format(trace) -> None:
    jsonschema.validate(trace, SCHEMA)
    assert {each["ph"] for each in trace["traceEvents"]} == {"M", "X", "s", "f"}


@pytest.mark.parametrize(("key", "value"), [("ph", "Q"), ("ts", -1.0), ("dur", "long"), ("pid", None)])
def test_the_schema_refuses_what_the_format_does(trace, key, value) -> None:
    broken = {**phase(trace, "X")[0], key: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"traceEvents": [broken]}, SCHEMA)


def test_every_span_is_there_in_microseconds(trace) -> None:
    spans = timeline(k_blocks=24)
    events = phase(trace, "X")
    assert len(events) == len([span for span in spans if span.end > span.start])
    last = max(span.end for span in spans)
    assert max(each["ts"] + each["dur"] for each in events) == pytest.approx(last / 1850)
    assert {each["args"]["where"] for each in events if each["name"] == "waits ab.full"} == {"gemm.py:50"}


def test_events_of_a_thread_do_not_overlap(trace) -> None:
    threads = defaultdict(list)
    for each in phase(trace, "X"):
        threads[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for extents in threads.values():
        extents.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(extents))


def test_threads_are_named_after_roles_engines_and_slots(trace) -> None:
    names = {(each["pid"], each["args"]["name"]) for each in phase(trace, "M") if each["name"] == "thread_name"}
    assert {(0, name) for name in ("load", "mma", "epilogue", "TMA", "TMA 2", "tensor core", "ab[0]", "ab[7]")} <= names
    assert (1, "TMA") in names and (1, "mma") not in names


def test_an_arrow_leads_from_each_copy_to_the_next_mma_on_its_slot(trace) -> None:
    starts = {each["id"]: each for each in phase(trace, "s")}
    ends = {each["id"]: each for each in phase(trace, "f")}
    assert len(starts) == len(ends) == 2 * 24
    slices = {(each["pid"], each["tid"], each["ts"]): each for each in phase(trace, "X")}
    for number, start in starts.items():
        source = slices[start["pid"], start["tid"], start["ts"]]
        target = slices[ends[number]["pid"], ends[number]["tid"], ends[number]["ts"]]
        assert source["name"] == f"load {start['name']}" and target["name"] == f"mma {start['name']}"
        assert source["pid"] == target["pid"]
        assert target["ts"] >= source["ts"] + source["dur"] - 1e-9
