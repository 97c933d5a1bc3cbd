"""What a site is: the walk over one file's syntax tree, and the rules that say which slips are possible where.

A slip is one or more edits of the file. An edit replaces the bytes [begin, end) by a schema of two variants (schemata.py); what
the mutated variant is made of is text and ranges of the original, so that a slip inside another one's range stays a slip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from clang_ast import Node

# Kinds of nodes, by libclang's Index.h.
UNEXPOSED_DECLARATION, FIELD, FUNCTION, VARIABLE, PARAMETER = 1, 6, 8, 9, 10
FUNCTIONS = {FUNCTION, 21, 24, 25, 26, 30}  # also methods, constructors, destructors, conversions, templates
CONTAINERS = {2, 3, 4, 22, 23, 31, 32, 300}  # struct, union, class, namespace, extern "C", class templates, the file
UNEXPOSED, NAME, MEMBER, CALL, INTEGER, FLOAT, STRING = 100, 101, 102, 103, 106, 107, 109
PARENTHESES, UNARY, SUBSCRIPT, BINARY, COMPOUND, CONDITIONAL, LIST = 111, 112, 113, 114, 115, 116, 119
BOOLEAN, THROW, DELETE, SIZEOF, LAMBDA = 130, 133, 135, 136, 144
BLOCK, CASE, DEFAULT, IF, SWITCH, WHILE, DO, FOR, CONTINUE, BREAK, RETURN = (
    202,
    203,
    204,
    205,
    206,
    207,
    208,
    209,
    212,
    213,
    214,
)
CATCH, TRY, RANGE_FOR, EMPTY, DECLARATION = 223, 224, 225, 230, 231
STATIC_ASSERT = 602

INTEGER_TYPES = set(range(4, 21))  # char to __int128
FLOAT_TYPES = {21, 22, 23}
BOOL_TYPE, DEPENDENT_TYPE, RECORD_TYPE = 3, 26, 105

RELATIONAL = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="]}
ARITHMETIC = {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"]}
BITS = {"<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"], "^": ["&"]}
LOGICAL = {"&&": "||", "||": "&&"}
ASSIGNMENTS = {
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "/=": "*=",
    "%=": "*=",
    "|=": "&=",
    "&=": "|=",
    "^=": "&=",
    "<<=": ">>=",
    ">>=": "<<=",
}
TWINS = {}
for pair in ("min max", "min_element max_element", "floor ceil", "lower_bound upper_bound", "any_of all_of", "front back"):
    one, other = pair.split()
    TWINS[one], TWINS[other] = other, one
COMMUTATIVE = {"min", "max", "swap"}
TEXT_TYPES = re.compile(r"^(std::(__cxx11::)?basic_(string|ostream|ostringstream|ofstream|stringstream)<|struct fmt::)")
MACRO = re.compile(rb"[A-Z][A-Z0-9_]{3,}\b")  # libclang gives what a macro stands for the place of the macro
COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)

Piece = str | tuple[int, int]


@dataclass
class Edit:
    begin: int
    end: int
    shape: (
        str  # value: an expression; unless: a statement; before: one that is left out behind another; negated: a condition
    )
    mutated: list[Piece] = field(default_factory=list)


@dataclass
class Slip:
    operator: str
    at: int  # the offset whose line is the site's
    edits: list[Edit]
    function: str = ""


def peeled(node: Node) -> Node:
    """Without conversions that are not written."""
    while node.kind in (UNEXPOSED, CALL):
        inner = [one for one in node.children if one.begin == node.begin and one.end == node.end]
        if not inner or (node.kind == CALL and len(node.children) != 1):
            return node
        node = inner[0]
    return node


def inside(node: Node) -> Node:
    """Peeled, and without parentheses."""
    node = peeled(node)
    while node.kind == PARENTHESES and node.children:
        node = peeled(node.children[0])
    return node


def is_expression(node: Node) -> bool:
    return 100 <= node.kind < 200


def is_number(node: Node) -> bool:
    return node.type_kind in INTEGER_TYPES or node.type_kind in FLOAT_TYPES


@dataclass
class Scope:
    """Where the walk is: the function, what `return` means there, and what `break` leaves."""

    function: str
    is_lambda: bool = False
    leaves: str = ""


class Walk:
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.slips: list[Slip] = []
        self.left_out: dict[str, set[int]] = {}  # lines that a schema cannot reach, by reason

    # ---- text ------------------------------------------------------------------------------------------------------

    def between(self, begin: int, end: int) -> str:
        return COMMENT.sub(b" ", self.source[begin:end]).decode().strip()

    def text(self, node: Node) -> str:
        return self.source[node.begin : node.end].decode()

    def line_of(self, offset: int) -> int:
        return self.source.count(b"\n", 0, offset) + 1

    def is_macro(self, node: Node) -> bool:
        return node.is_macro or MACRO.match(self.source, node.begin) is not None

    def leave_out(self, reason: str, node: Node) -> None:
        lines = range(self.line_of(node.begin), self.line_of(node.end) + 1)
        self.left_out.setdefault(reason, set()).update(lines)

    def statement_end(self, node: Node) -> int | None:
        """Behind the semicolon."""
        rest = re.compile(rb"(\s|//[^\n]*\n|/\*.*?\*/)*;", re.DOTALL).match(self.source, node.end)
        return rest.end() if rest else None

    # ---- slips -----------------------------------------------------------------------------------------------------

    def slip(self, scope: Scope, operator: str, at: int, *edits: Edit) -> None:
        self.slips.append(Slip(operator, at, list(edits), scope.function))

    def value(self, scope: Scope, operator: str, node: Node, mutated: list[Piece], at: int | None = None) -> None:
        self.slip(scope, operator, node.begin if at is None else at, Edit(node.begin, node.end, "value", mutated))

    def negate(self, scope: Scope, operator: str, node: Node) -> None:
        """Where no other rule makes nearly the same."""
        core = inside(node)
        token = self.operator_of(core)[0]
        if self.is_macro(node) or core.kind == BOOLEAN or token in RELATIONAL or token in LOGICAL or token == "!":
            return
        self.slip(scope, operator, node.begin, Edit(node.begin, node.end, "negated"))

    def change(self, scope: Scope, operator: str, node: Node) -> None:
        """Another value of a number or a boolean that is given, returned or assigned."""
        if self.is_macro(node) or inside(node).kind in (INTEGER, FLOAT, BOOLEAN, LIST, LAMBDA):
            return
        if node.type_kind == BOOL_TYPE:
            self.negate(scope, operator, node)
        elif is_number(node):
            self.value(scope, operator, node, [f"static_cast<{node.type_text}>((", (node.begin, node.end), ") + 1)"])

    def operator_of(self, node: Node) -> tuple[str, list[Node], int]:
        """The written token of a unary, binary or overloaded operator, its operands, and where the token is."""
        nothing = ("", [], 0)
        children = node.children
        if self.is_macro(node):
            return nothing
        if node.kind in (BINARY, COMPOUND) and len(children) == 2:
            left, right = children
            token = self.between(left.end, right.begin)
            return token, children, self.source.find(token.encode(), left.end)
        if node.kind == UNARY and len(children) == 1:
            before = self.between(node.begin, children[0].begin)
            token = before or self.between(children[0].end, node.end) + " behind"
            return token, children, node.begin
        if node.kind == CALL and node.spelling.startswith("operator"):
            names = [one for one in children if one.spelling == node.spelling and peeled(one).kind == NAME]
            operands = [one for one in children if one not in names]
            if len(names) == 1 and len(operands) == 2 and operands[0].end <= names[0].begin <= operands[1].begin:
                return self.text(names[0]), operands, names[0].begin
        return nothing

    # ---- declarations ----------------------------------------------------------------------------------------------

    def declaration(self, node: Node, scope: Scope) -> None:
        if node.kind in CONTAINERS:
            for one in node.children:
                self.declaration(one, scope)
        elif node.kind in FUNCTIONS:
            self.function(node, scope)
        elif node.kind in (FIELD, VARIABLE, PARAMETER):
            self.variable(node, scope)
        elif node.kind == STATIC_ASSERT:
            self.leave_out("static_assert", node)
        elif node.kind == UNEXPOSED_DECLARATION:  # of several names at once
            for one in node.children:
                (self.expression if is_expression(one) else self.declaration)(one, scope)

    def function(self, node: Node, scope: Scope) -> None:
        bodies = [one for one in node.children if one.kind in (BLOCK, TRY)]
        head = self.between(node.begin, bodies[-1].begin if bodies else node.end)
        if re.search(r"\b(constexpr|consteval)\b", head):
            self.leave_out("constexpr", node)
            return
        if bodies and self.source[bodies[-1].begin : bodies[-1].begin + 1] != b"{":
            return  # = default
        inner = Scope(re.sub(r"<.*>$", "", node.spelling.partition("(")[0]))
        for one in node.children:
            if one.kind == PARAMETER:
                self.variable(one, inner)
            elif is_expression(one):
                self.expression(one, inner)
        for one in bodies:
            self.statement(one, inner)

    def variable(self, node: Node, scope: Scope) -> None:
        first = node.children[-1] if node.children and is_expression(node.children[-1]) else None
        if first is None or self.is_macro(node) or self.is_macro(first) or first.end <= node.at:
            return  # what stands before the name belongs to the type
        head = self.between(node.begin, first.begin)
        if re.search(r"\b(constexpr|consteval)\b", head):
            self.leave_out("constexpr", node)
        elif not head.endswith("["):
            if head.endswith("=") and node.kind != PARAMETER:
                self.change(scope, "first value", first)
            self.expression(first, scope)

    # ---- statements ------------------------------------------------------------------------------------------------

    def statement(self, node: Node, scope: Scope) -> None:
        if is_expression(node):
            self.expression_statement(node, scope)
        elif node.kind == RETURN:
            self.returned(node, scope)
        elif node.kind in (BREAK, CONTINUE):
            if node.kind == CONTINUE or scope.leaves == "loop":
                self.delete(scope, "jump deleted", node)
        elif node.kind == IF:
            self.branch(node, scope)
        elif node.kind in (WHILE, DO, FOR, RANGE_FOR):
            self.loop(node, Scope(scope.function, scope.is_lambda, "loop"))
        elif node.kind in (CASE, DEFAULT):
            self.statement(node.children[-1], scope)
        elif node.kind == SWITCH:
            inner = Scope(scope.function, scope.is_lambda, "switch")
            for one in node.children:
                (self.expression if is_expression(one) else self.statement)(one, inner)
        elif node.kind == DECLARATION:
            for one in node.children:
                self.declaration(one, scope)
        elif 200 <= node.kind < 300:
            for one in node.children:
                (self.statement if one.kind >= 100 else self.declaration)(one, scope)

    def delete(self, scope: Scope, operator: str, node: Node) -> None:
        end = self.statement_end(node)
        if end is not None and not self.is_macro(node):
            self.slip(scope, operator, node.begin, Edit(node.begin, end, "unless"))

    def expression_statement(self, node: Node, scope: Scope) -> None:
        core = peeled(node)
        if self.is_macro(node) or TEXT_TYPES.match(core.type_text):
            return
        token = self.operator_of(core)[0]
        if core.kind == THROW:
            self.delete(scope, "throw deleted", node)
        elif core.kind in (CALL, DELETE) and token != "=":
            self.delete(scope, "call deleted" if token not in ASSIGNMENTS else "assignment deleted", node)
        elif token == "=" or token in ASSIGNMENTS:
            self.delete(scope, "assignment deleted", node)
        elif token.partition(" ")[0] in ("++", "--"):
            self.delete(scope, "increment deleted", node)
        self.expression(node, scope)

    def returned(self, node: Node, scope: Scope) -> None:
        if not node.children:
            self.delete(scope, "jump deleted", node)
            return
        given = node.children[0]
        end = self.statement_end(node)
        if self.is_macro(given) or end is None:
            return
        self.change(scope, "returned value", given)
        is_empty = re.fullmatch(r"return\s*(\{\}|nullptr|std::nullopt)", self.text(node)) is not None
        if (
            given.type_kind in (RECORD_TYPE, 101)
            and not scope.is_lambda
            and not is_empty
            and not TEXT_TYPES.match(given.type_text)
        ):
            self.slip(scope, "returned value", node.begin, Edit(node.begin, end, "before", ["return {};"]))
        self.expression(given, scope)

    def branch(self, node: Node, scope: Scope) -> None:
        children = node.children
        head = self.between(node.begin, children[0].begin)
        if children[0].kind == VARIABLE:  # the condition that follows is not written
            self.variable(children[0], scope)
            children = children[1:]
        elif head.startswith("if constexpr"):
            self.leave_out("constexpr", children[0])
        else:
            self.negate(scope, "condition negated", children[0])
            self.expression(children[0], scope)
        for one in children[1:]:
            self.statement(one, scope)

    def loop(self, node: Node, scope: Scope) -> None:
        body = node.children[0] if node.kind == DO else node.children[-1]
        for one in node.children:
            if one is body:
                self.statement(one, scope)
            elif one.kind == VARIABLE:
                if node.kind != RANGE_FOR:
                    self.variable(one, scope)
            elif is_expression(one):
                if node.kind in (WHILE, DO) and node.children[0].kind != VARIABLE:
                    self.negate(scope, "condition negated", one)
                self.expression(one, scope)
            else:
                self.statement(one, scope)

    # ---- expressions -----------------------------------------------------------------------------------------------

    def expression(self, node: Node, scope: Scope) -> None:
        outer, node = node, peeled(node)
        if self.is_macro(outer) or not is_expression(outer) or node.kind in (SIZEOF, THROW):
            return
        token, operands, at = self.operator_of(node)
        if token and TEXT_TYPES.match(node.type_text):
            return  # words
        if node.kind in (INTEGER, FLOAT, BOOLEAN):
            self.literal(node, outer, scope)
        elif node.kind == NAME:
            self.constant(node, outer, scope)
        elif node.kind == MEMBER:
            for one in node.children[:1]:
                if one.begin == node.begin:
                    self.expression(one, scope)
        elif node.kind == LAMBDA:
            self.closure(node, scope)
        elif operands:
            self.operation(node, token, operands, at, scope)
        elif node.kind == CALL:
            self.call(node, scope)
        else:
            if node.kind == CONDITIONAL and len(node.children) == 3:
                self.negate(scope, "condition negated", node.children[0])
            for one in node.children:
                self.expression(one, scope)

    def closure(self, node: Node, scope: Scope) -> None:
        inner = Scope(scope.function, True)
        for one in node.children:
            if one.kind == BLOCK:
                self.statement(one, inner)
            elif is_expression(one):
                self.expression(one, scope)

    def operation(self, node: Node, token: str, operands: list[Node], at: int, scope: Scope) -> None:
        pieces: list[Piece] = [(one.begin, one.end) for one in operands]
        if len(operands) == 2:
            left, right = pieces
            is_built_in = node.kind in (BINARY, COMPOUND)
            others = RELATIONAL.get(token) or ARITHMETIC.get(token) or (is_built_in and BITS.get(token)) or []
            name = "relational" if token in RELATIONAL else "arithmetic" if token in ARITHMETIC else "bits"
            if token in BITS and node.type_kind == DEPENDENT_TYPE:
                others = []
            for other in others:
                self.value(scope, name, node, self.joined(operands, other), at)
            if token in LOGICAL:
                self.value(scope, "logical", node, self.joined(operands, LOGICAL[token]), at)
                self.value(scope, "logical", node, ["static_cast<bool>(", left, ")"], at)
                self.value(scope, "logical", node, ["static_cast<bool>(", right, ")"], at)
            if token in ASSIGNMENTS:
                self.value(scope, "arithmetic", node, [left, f" {ASSIGNMENTS[token]} ", right], at)
            if token == "=":
                self.change(scope, "assigned value", operands[1])
        elif token in ("++", "--"):
            self.value(scope, "arithmetic", node, ["--" if token == "++" else "++", pieces[0]])
        elif token in ("++ behind", "-- behind"):
            self.value(scope, "arithmetic", node, [pieces[0], "--" if token == "++ behind" else "++"])
        elif token == "!":
            self.value(scope, "logical", node, ["static_cast<bool>(", pieces[0], ")"])
        elif token == "-":
            self.value(scope, "arithmetic", node, [pieces[0]])
        for one in operands:
            self.expression(one, scope)

    def joined(self, operands: list[Node], token: str) -> list[Piece]:
        """With parentheses where the token binds more tightly than the one whose operands these were."""
        pieces: list[Piece] = []
        for one in operands:
            span = (one.begin, one.end)
            is_open = token in ("&&", "&") and inside(one).kind in (BINARY, CALL) and peeled(one).kind != PARENTHESES
            pieces += ([f" {token} "] if pieces else []) + (
                ["(", span, ")"] if is_open and self.operator_of(inside(one))[0] else [span]
            )
        return pieces

    def literal(self, node: Node, outer: Node, scope: Scope) -> None:
        text = self.text(node)
        if node.kind == BOOLEAN:
            self.value(scope, "constant", node, ["false" if text == "true" else "true"])
            return
        if not is_number(node) or not text[0].isdigit():
            return
        is_zero = re.fullmatch(r"0*\.?0*(e[0-9]+)?[uUlLfFzZ]*", text) is not None
        for other in [f"{text} + 1"] + ([] if is_zero else [f"{text} - 1"]):
            self.constant_slip(node, outer, other, scope)

    def constant(self, node: Node, outer: Node, scope: Scope) -> None:
        """A use of a named constant: its definition cannot depend on a switch."""
        if re.fullmatch(r"k[A-Z]\w*", node.spelling) and is_number(node):
            for other in ("+ 1", "- 1"):
                self.constant_slip(node, outer, f"{self.text(node)} {other}", scope)

    def constant_slip(self, node: Node, outer: Node, other: str, scope: Scope) -> None:
        kind = (outer if is_number(outer) else node).type_text
        edit = Edit(node.begin, node.end, f"value of {kind}", [f"({other})"])
        self.slip(scope, "constant", node.begin, edit)

    def call(self, node: Node, scope: Scope) -> None:
        children = node.children
        callee = children[0] if children else None
        named = callee is not None and callee.begin == node.begin and peeled(callee).kind in (NAME, MEMBER, UNEXPOSED)
        arguments = [one for one in (children[1:] if named else children) if is_expression(one) and not self.is_macro(one)]
        name = node.spelling
        if named:
            if name in TWINS:
                text = self.source[callee.begin : callee.end]
                found = list(re.finditer(rb"\b" + name.encode() + rb"\b", text))
                if found:
                    begin, end = callee.begin + found[-1].start(), callee.begin + found[-1].end()
                    before: list[Piece] = [(node.begin, begin)] if begin > node.begin else []
                    self.value(scope, "twin call", node, [*before, TWINS[name], (end, node.end)], begin)
            self.expression(callee, scope)
        for one, other in pairwise(arguments):
            if self.may_swap(one, other) and name not in COMMUTATIVE:
                self.slip(
                    scope,
                    "arguments swapped",
                    one.begin,
                    Edit(one.begin, one.end, "value", [(other.begin, other.end)]),
                    Edit(other.begin, other.end, "value", [(one.begin, one.end)]),
                )
        for one in arguments:
            self.expression(one, scope)

    def may_swap(self, one: Node, other: Node) -> bool:
        kinds = {peeled(one).kind, peeled(other).kind}
        is_text = TEXT_TYPES.match(one.type_text) or "char" in one.type_text
        return (
            one.type_text == other.type_text
            and not is_text
            and one.type_kind not in (DEPENDENT_TYPE, 1)
            and not kinds & {LIST, LAMBDA}
            and one.end <= other.begin
        )
