"""JSON schemas of the kinds that clients send: tools' arguments, records to extract, configurations, trees.

Written by hand, and generated: `random_schema` joins the same parts at random.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Schema = dict[str, Any]

NUM_RANDOM = 300  # of `random_schema`, that tests take


def record(**properties: Schema) -> Schema:
    """An object that has all of these and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD: Schema = {"type": "string", "pattern": "^[a-z]{1,6}$"}
TEXT: Schema = {"type": "string", "maxLength": 8}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 120}
LEAVES: tuple[Schema, ...] = (
    WORD,
    TEXT,
    COUNT,
    {"type": "boolean"},
    {"type": "null"},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 5, "minimum": -20, "maximum": 100},
    {"enum": ["red", "green", 3, None, True]},
    {"const": {"kind": "fixed", "at": [1, 2]}},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": ["integer", "null"], "maximum": 9999, "minimum": 0},
)
SCHEMAS: dict[str, Schema] = {
    **{f"leaf {i}": leaf for i, leaf in enumerate(LEAVES)},
    "person": record(name=TEXT, age=COUNT),
    "tool's arguments": record(city=WORD, unit={"enum": ["C", "F"]}, days={**COUNT, "maximum": 7}),
    "optional parts": {
        "type": "object",
        "properties": {"a": COUNT, "b": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "list of words": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [COUNT, WORD], "items": False, "minItems": 2},
    "one of two records": {"anyOf": [record(kind={"const": "a"}, n=COUNT), record(kind={"const": "b"})]},
    "nested": record(outer=record(inner=record(value=COUNT)), tags={"type": "array", "maxItems": 2}),
    "definitions": {
        "$defs": {"point": record(x=COUNT, y=COUNT)},
        **record(**{"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": COUNT,
                    "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "map": {"type": "object", "additionalProperties": COUNT, "maxProperties": 3},
    "all of": {"allOf": [{"type": "object", "properties": {"a": COUNT}, "required": ["a"]}, {"title": "x"}]},
    "escapes": record(**{'quo"te\\': TEXT, "ключ": WORD}),
    "any": {},
}


def random_schema(seed: int) -> Schema:
    """The same for the same seed."""
    random = np.random.default_rng(seed)
    return {"$defs": {"part": _drawn(random, 0)}, **_drawn(random, 3)}


def _drawn(random: np.random.Generator, depth: int) -> Schema:
    kind = int(random.integers(0, 5 if depth else 1))
    if kind == 1:
        names = [f"{chr(97 + int(random.integers(26)))}{i}" for i in range(int(random.integers(1, 4)))]
        made = record(**{name: _drawn(random, depth - 1) for name in names})
        made["required"] = made["required"][: int(random.integers(0, len(names) + 1))]
        return made
    if kind == 2:
        least = int(random.integers(0, 2))
        return {
            "type": "array",
            "items": _drawn(random, depth - 1),
            "minItems": least,
            "maxItems": least + int(random.integers(0, 3)),
        }
    if kind == 3:
        return {"anyOf": [_drawn(random, depth - 1) for _ in range(int(random.integers(1, 4)))]}
    if kind == 4:
        return record(part={"$ref": "#/$defs/part"})
    return LEAVES[int(random.integers(len(LEAVES)))]
