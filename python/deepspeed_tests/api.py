"""The methods of DeepSpeed's engine beside this one's: docs/deepspeed-api.md.

    PYTHONPATH=build/dev/python python python/deepspeed_tests/api.py                    writes the page
    PYTHONPATH=build/dev/python python python/deepspeed_tests/api.py --deepspeed TREE   reads the methods of a DeepSpeed tree first

engine_methods.txt holds the public methods of DeepSpeed's engine, one a line as they are called; its first line is the commit.
What each is here is in the package, python/equigrad/_deepspeed_api.py; a test compares page, package and list.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from pathlib import Path
from typing import NamedTuple

from equigrad import _deepspeed_api as api
from equigrad.deepspeed import DeepSpeedEngine

HERE = Path(__file__).resolve().parent
LIST = HERE / "engine_methods.txt"
PAGE = HERE.parents[1] / "docs" / "deepspeed-api.md"

HEAD = """# The methods of DeepSpeed's engine

Every public method of `DeepSpeedEngine` (`deepspeed/runtime/engine.py`) at commit `{commit}`, and what it is on the engine that
`equigrad.initialize` or `equigrad.deepspeed.initialize` returns. None is an AttributeError.

- **same** ({same}), **differs** ({differs}): a method of this engine.
- **answers** ({answers}): the value that holds here.
- **refused** ({refused}): the attribute is there, and its call raises `equigrad.NotSupportedError`, which is a `NotImplementedError` too, with
  these words behind "expected a call that this engine supports, got NAME()". Nothing is done before.

On the engine of `equigrad.initialize` a model's own attribute of the name of an answer or a refusal comes first; on the drop-in's the engine's does, as
with DeepSpeed. The page is made by `python/deepspeed_tests/api.py`; a test calls every row.

| method | here | |
| --- | --- | --- |
"""


ATTRIBUTES_HEAD = """
## Its attributes

What an instance of DeepSpeed's engine has beside its methods. **missing**: `hasattr` is false, and reading it raises `equigrad.NotSupportedError`,
which is an `AttributeError` here, with these words.

| attribute | here | |
| --- | --- | --- |
"""


class Method(NamedTuple):
    name: str
    parameters: str  # as they are called, without self; "property" for one

    @property
    def shown(self) -> str:
        return self.name if self.parameters == "property" else f"{self.name}({self.parameters})"


def read_tree(tree: Path) -> tuple[str, list[Method]]:
    """(commit, methods) of a DeepSpeed tree."""
    commit = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    source = subprocess.run(
        ["git", "-C", str(tree), "show", "HEAD:deepspeed/runtime/engine.py"], capture_output=True, text=True, check=True
    )
    return commit.stdout.strip(), methods_of(source.stdout)


def methods_of(source: str) -> list[Method]:
    engines = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == "DeepSpeedEngine"]
    methods: dict[str, Method] = {}
    for one in engines[0].body:
        if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in one.decorator_list]
        given = ast.unparse(one.args)
        if "staticmethod" not in decorators:
            given = given.removeprefix("self").removeprefix(", ")
        methods.setdefault(one.name, Method(one.name, "property" if "property" in decorators else given))
    return list(methods.values())


def read_list() -> tuple[str, list[Method]]:
    first, *lines = LIST.read_text().splitlines()
    methods = []
    for line in lines:
        name, is_called, parameters = line.partition("(")
        methods.append(Method(name, parameters.removesuffix(")") if is_called else "property"))
    return first.removeprefix("# "), methods


def kind_of(method: Method) -> tuple[str, str]:
    """(what it is here, words)"""
    if hasattr(DeepSpeedEngine, method.name):
        words = api.DIFFERENT.get(method.name, "")
        return ("differs" if words else "same"), words
    if method.name in api.ANSWERED:
        return "answers", api.ANSWERED[method.name].words
    if method.name in api.REFUSED:
        return "refused", api.REFUSED[method.name]
    return "missing", ""


def page() -> str:
    commit, methods = read_list()
    rows = [(method, *kind_of(method)) for method in sorted(methods)]
    counts = {kind: sum(row[1] == kind for row in rows) for kind in ("same", "differs", "answers", "refused")}
    lines = [f"| `{method.shown.replace('|', chr(92) + '|')}` | {kind} | {words} |" for method, kind, words in rows]
    return HEAD.format(commit=commit, **counts) + "\n".join(lines) + "\n" + attributes()


def attributes() -> str:
    rows = [(name, "answers", one.words) for name, one in api.ATTRIBUTES.items()]
    rows += [(name, "missing", words) for name, words in api.MISSING.items()]
    return ATTRIBUTES_HEAD + "\n".join(f"| `{name}` | {kind} | {words} |" for name, kind, words in sorted(rows)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--deepspeed", type=Path, help="a clone of DeepSpeed, whose HEAD is read")
    options = parser.parse_args()
    if options.deepspeed is not None:
        commit, methods = read_tree(options.deepspeed)
        LIST.write_text("\n".join([f"# {commit}", *(method.shown for method in methods)]) + "\n")
    missing = [method.name for method in read_list()[1] if kind_of(method)[0] == "missing"]
    if missing:
        raise SystemExit(f"expected a row of python/equigrad/_deepspeed_api.py for every method, got none for: {', '.join(missing)}")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
