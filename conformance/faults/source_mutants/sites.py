"""Sites: every slip of a tree's engine rooms, by line, and the samples that are drawn of them."""

from __future__ import annotations

import hashlib
import json
import random
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import clang_ast
from rules import Edit, Scope, Slip, Walk
from schemata import mutated

# What is not mutated, and why. Paths begin so.
NOT_MUTATED = {
    "engine/package/": "no C++",
    "engine/quickstart.cpp": "an example",
    "engine/error.hpp": "words of errors",
    "engine/config/documents": "writes the documents of the keys",
    "engine/config/suggest.hpp": "words of errors: the name that may have been meant",
    "engine/comm/nccl.cpp": "runs on a GPU only",
    "engine/kernels/cuda_number.hpp": "compiled for a GPU only",
    "engine/kernels/device_stream.hpp": "runs on a GPU only",
}
RULES = "3"  # of the cache: raised when rules.py finds other sites


@dataclass
class Site:
    """A slip of one file of a tree, with what a person reads of it."""

    file: str
    line: int
    slip: Slip
    line_text: str
    before: str
    after: str
    key: str = ""  # the same as long as the slip's line and function are

    @property
    def room(self) -> str:
        parts = self.file.split("/")
        return parts[1] if len(parts) > 2 else "engine"

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def of_json(given: dict) -> Site:
        edits = [
            Edit(one["begin"], one["end"], one["shape"], [p if isinstance(p, str) else (p[0], p[1]) for p in one["mutated"]])
            for one in given["slip"]["edits"]
        ]
        return Site(**{**given, "slip": Slip(**{**given["slip"], "edits": edits})})


def one_line(text: str, most: int = 120) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."


def site_of(path: str, source: bytes, line: int, slip: Slip) -> Site:
    begin = source.rfind(b"\n", 0, slip.at) + 1
    end = source.find(b"\n", slip.at)
    first = slip.edits[0]
    before, after = source[first.begin : first.end].decode(), mutated(source, first)
    for one, other in zip(slip.edits, slip.edits[1:], strict=False):
        gap = source[one.end : other.begin].decode()
        before += gap + source[other.begin : other.end].decode()
        after += gap + mutated(source, other)
    return Site(path, line, slip, source[begin:end].decode().strip(), one_line(before), one_line(after) or "(deleted)")


def with_keys(sites: list[Site]) -> list[Site]:
    seen: dict[str, int] = {}
    for one in sites:
        text = f"{one.file}|{one.slip.function}|{one.slip.operator}|{one.line_text}|{one.before}|{one.after}"
        seen[text] = seen.get(text, 0) + 1
        one.key = hashlib.sha256(f"{text}|{seen[text]}".encode()).hexdigest()[:12]
    return sites


def is_mutated(path: str) -> bool:
    return (
        path.startswith("engine/")
        and "/tests/" not in path
        and path.endswith((".cpp", ".hpp"))
        and not path.startswith(tuple(NOT_MUTATED))
    )


class Commands:
    """How the files of a built tree are compiled."""

    def __init__(self, tree: Path, build: Path) -> None:
        file = build / "compile_commands.json"
        if not file.exists():
            raise SystemExit(f"source_mutants: expected {file}. Build the tree first: cmake --workflow --preset check.")
        self.tree, self.build = tree, build
        self.by_file: dict[str, list[str]] = {}
        for one in json.loads(file.read_text()):
            path = Path(one["directory"], one["file"])
            if path.is_relative_to(tree):
                self.by_file.setdefault(str(path.relative_to(tree)), shlex.split(one["command"]))
        self.sources = sorted(one for one in self.by_file if is_mutated(one) or one == "engine/comm/nccl.cpp")
        if not self.sources:
            raise SystemExit(f"source_mutants: {file} compiles nothing of {tree}/engine. Is --tree the tree that was built?")
        self.compiler = self.by_file[self.sources[0]][0]
        resources = subprocess.run([self.compiler, "-print-resource-dir"], check=True, capture_output=True, text=True)
        self.resources = resources.stdout.strip()

    def reading(self, source: str) -> list[str]:
        """The command without its outputs, and without warnings."""
        left = iter(self.by_file[source])
        kept = []
        for word in left:
            if word in ("-o", "-MT", "-MF"):
                next(left)
            elif word not in ("-c", "-MD", "-Werror"):
                kept.append(word)
        file = kept.pop()
        return [*kept, "-w", "-resource-dir", self.resources, file]


class Reader:
    """Reads sites from a tree, each source once as long as neither it nor the rules change."""

    def __init__(self, commands: Commands, cache: Path) -> None:
        self.commands, self.cache = commands, cache
        self.library = clang_ast.Library(clang_ast.library_of(commands.compiler))
        cache.mkdir(parents=True, exist_ok=True)

    def sources_of(self, path: str) -> str:
        """All that a source's sites depend on here: itself and the headers of the engine."""
        text = (self.commands.tree / path).read_bytes() + RULES.encode()
        return hashlib.sha256(text + self.headers).hexdigest()[:24]

    def read(self, told: Callable[[str], None], jobs: int) -> tuple[list[Site], dict[str, str]]:
        """Sites, and for each file a source by which it is compiled."""
        tree = self.commands.tree
        every = sorted((tree / "engine").rglob("*.hpp"))
        self.headers = hashlib.sha256(b"".join(one.read_bytes() for one in every)).digest()
        found: dict[str, list[Site]] = {}
        by: dict[str, str] = {}
        count = 0
        lock = threading.Lock()

        def one(source: str) -> None:
            nonlocal count
            of_file = self.of_source(source)
            with lock:
                count += 1
                told(f"{count} of {len(self.commands.sources)} sources read")
                for path, sites in of_file.items():
                    if path not in by or source < by[path] and not path.endswith(".cpp"):
                        by[path], found[path] = source, sites

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, self.commands.sources))
        return with_keys([site for path in sorted(found) for site in found[path]]), by

    def of_source(self, source: str) -> dict[str, list[Site]]:
        cached = self.cache / f"{self.sources_of(source)}.json"
        if cached.exists():
            return {path: [Site.of_json(s) for s in sites] for path, sites in json.loads(cached.read_text()).items()}
        walks: dict[str, Walk] = {}
        with clang_ast.Tree(self.library, self.commands.reading(source)) as parsed:
            for node in self.nodes(parsed):
                path = str(Path(node.file).relative_to(self.commands.tree))
                if path not in walks:
                    walks[path] = Walk(path, (self.commands.tree / path).read_bytes())
                walks[path].declaration(node, Scope(""))
        found = {path: self.of_walk(walk) for path, walk in walks.items()}
        cached.write_text(json.dumps({path: [one.to_json() for one in sites] for path, sites in found.items()}))
        return found

    def nodes(self, parsed: clang_ast.Tree) -> Iterator[clang_ast.Node]:
        """What these files declare, outermost first."""
        root = str(self.commands.tree) + "/"
        for node in parsed.root().children:
            if node.file.startswith(root) and is_mutated(node.file.removeprefix(root)):
                yield node

    def of_walk(self, walk: Walk) -> list[Site]:
        unique: dict[tuple, Site] = {}
        for slip in walk.slips:
            site = site_of(walk.path, walk.source, walk.line_of(slip.at), slip)
            if site.before != site.after:
                edits = tuple((one.begin, one.end, one.shape, tuple(one.mutated)) for one in slip.edits)
                unique.setdefault(edits, site)
        return sorted(unique.values(), key=lambda one: (one.line, one.slip.at))


def draw(sites: list[Site], seed: int) -> Iterator[list[Site]]:
    """Lines that have a site, in random order, each with its sites in random order: the first that compiles is the sample's."""
    lines: dict[tuple[str, int], list[Site]] = {}
    for one in sites:
        lines.setdefault((one.file, one.line), []).append(one)
    order = sorted(lines)
    random.Random(seed).shuffle(order)
    for line in order:
        choice = sorted(lines[line], key=lambda one: one.key)
        random.Random(f"{seed}:{line[0]}:{line[1]}").shuffle(choice)
        yield choice
