"""One program of many mutants: a file whose slips sit behind a run-time switch.

A mutant is a number from 1 on; the program has the one that the environment variable EQUIGRAD_MUTANT names when it starts, and
forked processes have it too. EQUIGRAD_MUTANT_REACHED names a file of one byte a mutant: a byte becomes 1 where the program comes
to that mutant's place, whichever mutant it has.
"""

from __future__ import annotations

from rules import Edit, Slip

# A variable of the whole program, read before main: the switch is a load and a comparison.
SWITCH = """\
#ifndef EQUIGRAD_SOURCE_MUTANTS
#define EQUIGRAD_SOURCE_MUTANTS
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
namespace equigrad_mutants {
inline int read_active() {
  const char* text = std::getenv("EQUIGRAD_MUTANT");
  return text == nullptr ? 0 : std::atoi(text);
}
inline unsigned char* map_reached() {
  const char* path = std::getenv("EQUIGRAD_MUTANT_REACHED");
  if (path == nullptr) return nullptr;
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat state {};
  if (file < 0 || ::fstat(file, &state) != 0) std::abort();
  void* bytes = ::mmap(nullptr, static_cast<unsigned long>(state.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (bytes == MAP_FAILED) std::abort();
  ::close(file);
  return static_cast<unsigned char*>(bytes);
}
inline const int active = read_active();
inline unsigned char* const reached = map_reached();
}  // namespace equigrad_mutants
inline bool equigrad_mutant(int number) {
  if (__builtin_expect(equigrad_mutants::reached != nullptr, 0)) equigrad_mutants::reached[number] = 1;
  return __builtin_expect(equigrad_mutants::active == number, 0);
}
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Weverything"
"""
END = "\n#pragma clang diagnostic pop\n"


class Overlap(Exception):
    """Two edits share bytes, and neither lies in the other."""


def mutated(source: bytes, edit: Edit) -> str:
    """What the edit's range becomes, without a switch: for people."""
    if edit.shape == "unless":
        return ""
    text = "".join(one if isinstance(one, str) else source[one[0] : one[1]].decode() for one in edit.mutated)
    if edit.shape == "negated":
        return f"!({source[edit.begin : edit.end].decode()})"
    return text


class File:
    def __init__(self, path: str, source: bytes, slips: dict[int, Slip]) -> None:
        self.source = source
        self.path = path
        # Of edits of one range the first is the outermost.
        edits = [(edit, number) for number, slip in slips.items() for edit in slip.edits]
        self.edits = sorted(edits, key=lambda one: (one[0].begin, -one[0].end, one[1]))

    def text(self) -> str:
        return f'{SWITCH}#line 1 "{self.path}"\n{self.render(0, len(self.source), self.edits)}{END}'

    def render(self, begin: int, end: int, edits: list[tuple[Edit, int]]) -> str:
        """The bytes [begin, end), with those of these edits that lie in them."""
        parts = []
        at = begin
        left = [one for one in edits if begin <= one[0].begin and one[0].end <= end]
        while left:
            edit, number = left.pop(0)
            if edit.begin < at:
                raise Overlap(f"{self.path}: {number}")
            parts.append(self.source[at : edit.begin].decode())
            inner = [one for one in left if one[0].begin < edit.end]
            if any(one[0].end > edit.end for one in inner):
                raise Overlap(f"{self.path}: {number}")
            parts.append(self.schema(edit, number, inner))
            left = left[len(inner) :]
            at = edit.end
        return "".join([*parts, self.source[at:end].decode()])

    def schema(self, edit: Edit, number: int, inner: list[tuple[Edit, int]]) -> str:
        switch = f"::equigrad_mutant({number})"
        original = self.render(edit.begin, edit.end, inner)
        other = mutated(self.source, edit)  # nothing else is mutated where this mutant is on
        if edit.shape == "unless":
            return f"{{ if (!{switch}) {{ {original} }} }}"
        if edit.shape == "before":
            return f"{{ if ({switch}) {{ {other} }} {original} }}"
        if edit.shape == "negated":
            return f"({switch} != static_cast<bool>({original}))"
        kind = edit.shape.removeprefix("value of ") if edit.shape.startswith("value of ") else ""
        if kind:
            return f"({switch} ? static_cast<{kind}>({other}) : static_cast<{kind}>({original}))"
        return f"({switch} ? ({other}) : ({original}))"
