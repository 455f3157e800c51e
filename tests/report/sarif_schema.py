"""The parts of SARIF 2.1.0 that a verdict uses, as a JSON schema that refuses everything else."""

from __future__ import annotations

WORD, LINE, INDEX = (
    {"type": "string", "minLength": 1},
    {"type": "integer", "minimum": 1},
    {"type": "integer", "minimum": 0},
)


def record(required: str, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def several(items):
    return {"type": "array", "items": items}


# After SARIF 2.1.0 (OASIS), sections 3.13 sarifLog, 3.14 run, 3.19 toolComponent, 3.20 invocation, 3.27 result,
# 3.28 location, 3.29 physicalLocation, 3.33 logicalLocation, 3.36 codeFlow, 3.49 reportingDescriptor.
MESSAGE = record("text", text=WORD)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
ARTIFACT = record("uri", uri={"type": "string", "pattern": r"^(file:///|[^/:]+)"}, uriBaseId=WORD)
PHYSICAL = record("artifactLocation", artifactLocation=ARTIFACT, region=record("startLine", startLine=LINE))
LOCATION = record(
    "",
    id=INDEX,
    message=MESSAGE,
    physicalLocation=PHYSICAL,
    logicalLocations=several(record("name", name=WORD, kind={"const": "function"})),
)
RULE = record(
    "id",
    id=WORD,
    shortDescription=MESSAGE,
    help=MESSAGE,
    helpUri={"type": "string", "pattern": "^https://"},
    defaultConfiguration=record("level", level=LEVEL),
)
RESULT = record(
    "ruleId ruleIndex level message locations",
    ruleId=WORD,
    ruleIndex=INDEX,
    level=LEVEL,
    message=MESSAGE,
    locations=several(LOCATION),
    relatedLocations=several(LOCATION),
    codeFlows=several(
        record(
            "threadFlows",
            threadFlows=several(record("locations", locations=several(record("location", location=LOCATION)))),
        )
    ),
)
RUN = record(
    "tool results",
    tool=record("driver", driver=record("name", name=WORD, semanticVersion=WORD, rules=several(RULE))),
    invocations=several(
        record(
            "executionSuccessful",
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications=several(record("message", level=LEVEL, message=MESSAGE)),
        )
    ),
    originalUriBaseIds={
        "type": "object",
        "additionalProperties": record("uri", uri={"type": "string", "pattern": "/$"}),
    },
    results=several(RESULT),
)
SCHEMA = record("version runs", **{"$schema": WORD}, version={"const": "2.1.0"}, runs=several(RUN))
