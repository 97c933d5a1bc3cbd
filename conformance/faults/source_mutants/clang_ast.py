"""The syntax tree of a C++ file, read through libclang's C interface: what source_mutants needs of it and no more.

Offsets are bytes of the file. A node whose ends lie in a macro says so; its text is not the text of the file.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_uint, c_void_p
from functools import cached_property
from typing import Self


class _Cursor(Structure):
    _fields_ = [("kind", c_int), ("xdata", c_int), ("data", c_void_p * 3)]


class _Type(Structure):
    _fields_ = [("kind", c_int), ("data", c_void_p * 2)]


class _String(Structure):
    _fields_ = [("data", c_void_p), ("flags", c_uint)]


class _Location(Structure):
    _fields_ = [("data", c_void_p * 2), ("number", c_uint)]


class _Range(Structure):
    _fields_ = [("data", c_void_p * 2), ("begin", c_uint), ("end", c_uint)]


_VISITOR = CFUNCTYPE(c_int, _Cursor, _Cursor, c_void_p)
_FUNCTIONS = {
    "clang_createIndex": (c_void_p, [c_int, c_int]),
    "clang_disposeIndex": (None, [c_void_p]),
    "clang_parseTranslationUnit2FullArgv": (
        c_int,
        [c_void_p, c_char_p, POINTER(c_char_p), c_int, c_void_p, c_uint, c_uint, POINTER(c_void_p)],
    ),
    "clang_disposeTranslationUnit": (None, [c_void_p]),
    "clang_getTranslationUnitCursor": (_Cursor, [c_void_p]),
    "clang_visitChildren": (c_uint, [_Cursor, _VISITOR, c_void_p]),
    "clang_getCursorExtent": (_Range, [_Cursor]),
    "clang_getCursorLocation": (_Location, [_Cursor]),
    "clang_getRangeStart": (_Location, [_Range]),
    "clang_getRangeEnd": (_Location, [_Range]),
    "clang_getExpansionLocation": (
        None,
        [_Location, POINTER(c_void_p), POINTER(c_uint), POINTER(c_uint), POINTER(c_uint)],
    ),
    "clang_getSpellingLocation": (
        None,
        [_Location, POINTER(c_void_p), POINTER(c_uint), POINTER(c_uint), POINTER(c_uint)],
    ),
    "clang_getFileName": (_String, [c_void_p]),
    "clang_getCursorSpelling": (_String, [_Cursor]),
    "clang_getCursorType": (_Type, [_Cursor]),
    "clang_getCanonicalType": (_Type, [_Type]),
    "clang_getTypeSpelling": (_String, [_Type]),
    "clang_getNumDiagnostics": (c_uint, [c_void_p]),
    "clang_getDiagnostic": (c_void_p, [c_void_p, c_uint]),
    "clang_getDiagnosticSeverity": (c_int, [c_void_p]),
    "clang_formatDiagnostic": (_String, [c_void_p, c_uint]),
    "clang_disposeDiagnostic": (None, [c_void_p]),
    "clang_getCString": (c_char_p, [_String]),
    "clang_disposeString": (None, [_String]),
}
_ERROR = 3  # CXDiagnostic_Error


def library_of(compiler: str) -> str:
    """libclang of the compiler's own version: it alone reads the precompiled headers of that compiler."""
    named = os.environ.get("EQUIGRAD_LIBCLANG")
    if named:
        return named
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"clang version (\d+)", version)
    if found is None:
        first = version.partition("\n")[0]
        raise SystemExit(f"source_mutants: expected a build made by clang, got {first}. Build with clang.")
    return f"libclang-{found[1]}.so.1"


class Library:
    def __init__(self, name: str) -> None:
        try:
            self.of_c = ctypes.CDLL(name)
        except OSError as error:
            raise SystemExit(
                f"source_mutants: expected {name}, got: {error}. It comes with Debian's clang (libclang1-14), and in the "
                "wheel libclang; EQUIGRAD_LIBCLANG names the file."
            ) from error
        for function, (result, arguments) in _FUNCTIONS.items():
            getattr(self.of_c, function).restype = result
            getattr(self.of_c, function).argtypes = arguments

    def text(self, string: _String) -> str:
        value = self.of_c.clang_getCString(string)
        self.of_c.clang_disposeString(string)
        return (value or b"").decode()


class Tree:
    """One translation unit. Without what a precompiled header holds."""

    def __init__(self, library: Library, arguments: list[str]) -> None:
        self.library = library
        self.names: dict[int | None, str] = {None: ""}
        of_c = library.of_c
        self.index = of_c.clang_createIndex(1, 0)
        self.unit = c_void_p()
        words = (c_char_p * len(arguments))(*[one.encode() for one in arguments])
        failed = of_c.clang_parseTranslationUnit2FullArgv(
            self.index, None, words, len(arguments), None, 0, 0, ctypes.byref(self.unit)
        )
        problems = ["no tree at all"] if failed else self.problems()
        if problems:
            raise SystemExit(f"source_mutants: {arguments[-1]} could not be read: {problems[0]}. Build the tree first.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.library.of_c.clang_disposeTranslationUnit(self.unit)
        self.library.of_c.clang_disposeIndex(self.index)

    def problems(self) -> list[str]:
        of_c = self.library.of_c
        found = []
        for number in range(of_c.clang_getNumDiagnostics(self.unit)):
            one = of_c.clang_getDiagnostic(self.unit, number)
            if of_c.clang_getDiagnosticSeverity(one) >= _ERROR:
                found.append(self.library.text(of_c.clang_formatDiagnostic(one, 1)))
            of_c.clang_disposeDiagnostic(one)
        return found

    def root(self) -> Node:
        return Node(self, self.library.of_c.clang_getTranslationUnitCursor(self.unit))

    def name_of(self, file: c_void_p) -> str:
        if file.value not in self.names:
            self.names[file.value] = self.library.text(self.library.of_c.clang_getFileName(file))
        return self.names[file.value]

    def place(self, location: _Location) -> tuple[str, int, bool]:
        """File, offset, and whether it lies in a macro."""
        of_c = self.library.of_c
        file, line, column, offset = c_void_p(), c_uint(), c_uint(), c_uint()
        of_c.clang_getExpansionLocation(location, file, line, column, offset)
        spelled_file, spelled = c_void_p(), c_uint()
        of_c.clang_getSpellingLocation(location, spelled_file, line, column, spelled)
        is_macro = spelled.value != offset.value or spelled_file.value != file.value
        return self.name_of(file), offset.value, is_macro


class Node:
    def __init__(self, tree: Tree, cursor: _Cursor) -> None:
        self.tree, self.cursor, self.kind = tree, cursor, cursor.kind

    @cached_property
    def children(self) -> list[Node]:
        found: list[Node] = []

        def take(cursor: _Cursor, _parent: _Cursor, _data: int | None) -> int:
            copy = _Cursor()
            ctypes.pointer(copy)[0] = cursor
            found.append(Node(self.tree, copy))
            return 1  # CXChildVisit_Continue

        self.tree.library.of_c.clang_visitChildren(self.cursor, _VISITOR(take), None)
        return found

    @cached_property
    def _extent(self) -> tuple[str, int, int, bool]:
        of_c = self.tree.library.of_c
        extent = of_c.clang_getCursorExtent(self.cursor)
        file, begin, in_macro = self.tree.place(of_c.clang_getRangeStart(extent))
        end_file, end, ends_in_macro = self.tree.place(of_c.clang_getRangeEnd(extent))
        return file, begin, end, in_macro or ends_in_macro or file != end_file or end <= begin

    @property
    def begin(self) -> int:
        return self._extent[1]

    @property
    def end(self) -> int:
        return self._extent[2]

    @property
    def is_macro(self) -> bool:
        return self._extent[3]

    @cached_property
    def _location(self) -> tuple[str, int, bool]:
        return self.tree.place(self.tree.library.of_c.clang_getCursorLocation(self.cursor))

    @property
    def file(self) -> str:
        return self._location[0]

    @property
    def at(self) -> int:
        """Where the name of a declaration is."""
        return self._location[1]

    @cached_property
    def spelling(self) -> str:
        return self.tree.library.text(self.tree.library.of_c.clang_getCursorSpelling(self.cursor))

    @cached_property
    def _type(self) -> _Type:
        of_c = self.tree.library.of_c
        return of_c.clang_getCanonicalType(of_c.clang_getCursorType(self.cursor))

    @property
    def type_kind(self) -> int:
        return self._type.kind

    @cached_property
    def type_text(self) -> str:
        """The canonical type, without const."""
        text = self.tree.library.text(self.tree.library.of_c.clang_getTypeSpelling(self._type))
        return text.removeprefix("const ")
