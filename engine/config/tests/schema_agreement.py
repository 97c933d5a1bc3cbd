"""Asks jsonschema of every configuration of a file whether the schema takes it, and prints the
numbers of those that it takes.

The file: {"schema": {...}, "configurations": [...]}.
"""

import json
import sys

from jsonschema import Draft202012Validator

with open(sys.argv[1], encoding="utf-8") as file:
    asked = json.load(file)
Draft202012Validator.check_schema(asked["schema"])
validator = Draft202012Validator(asked["schema"])
for number, configuration in enumerate(asked["configurations"]):
    if validator.is_valid(configuration):
        print(number)
