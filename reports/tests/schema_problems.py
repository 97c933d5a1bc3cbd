"""What keeps the JSON documents of a list from fitting a schema: a line for each, empty where it fits.

usage: python3 schema_problems.py SCHEMA LIST
"""

import json
import pathlib
import sys

import jsonschema
import referencing


def no_constant(word):
    raise ValueError(f"{word} is no JSON")


published = [json.loads(path.read_text()) for path in pathlib.Path(sys.argv[1]).parent.glob("*.schema.json")]
registry = referencing.Registry().with_resources(
    (schema["$id"], referencing.Resource.from_contents(schema)) for schema in published)
schema = json.loads(pathlib.Path(sys.argv[1]).read_text())
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema, registry=registry)
for document in json.loads(pathlib.Path(sys.argv[2]).read_text(), parse_constant=no_constant):
    print("; ".join(f"{error.json_path}: {' '.join(error.message.split())}"[:200]
                    for error in validator.iter_errors(document)))
