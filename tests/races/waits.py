"""Find everything in the product that orders two streams, and take one of them away.

Three kinds: a wait for an event, an event handed to somebody who waits for it, and the call that queues the overwriting
of freed memory ahead of its next owner.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = (
    "transfer/onload.py", "transfer/offload.py", "transfer/paths.py", "transfer/view.py",
    "moves.py", "compute.py", "engine.py",
)  # fmt: skip

# An event that has been reached already: whoever is handed it does not wait.
REACHED = 'type("Reached", (), {"done": True, **dict.fromkeys(("wait", "issued"), lambda self, timeout_s: None)})()'


@dataclass(frozen=True)
class Wait:
    """One ordering: the `number`th of its kind in a file. `text` is its source."""

    file: str
    function: str
    kind: str
    number: int
    text: str

    @property
    def name(self) -> str:
        return f"`{self.text}`"


def find(package: Path) -> list[Wait]:
    """Every ordering of the package, in the order of its files."""
    found: list[Wait] = []
    for file in ROOMS:
        counts = {"wait": 0, "event": 0, "zero": 0}
        for node, function in _orderings(ast.parse((package / file).read_text())):
            kind = _kind(node)
            assert kind is not None
            found.append(Wait(file, function, kind, counts[kind], ast.unparse(node)))
            counts[kind] += 1
    return found


def remove(package: Path, wait: Wait) -> None:
    """Rewrite the package's file without this one."""
    path = package / wait.file
    tree = ast.parse(path.read_text())
    same = [node for node, _ in _orderings(tree) if _kind(node) == wait.kind]
    victim = same[wait.number]
    put = REACHED if wait.kind == "event" else "None"
    tree = ast.fix_missing_locations(_Replace(victim, ast.parse(put, mode="eval").body).visit(tree))
    path.write_text(ast.unparse(tree))


def _orderings(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Calls that order something, with the function each is in; in the order of the source."""

    def walk(node: ast.AST, function: str, scope: str) -> Iterator[tuple[ast.Call, str]]:
        if isinstance(node, ast.ClassDef):
            scope = f"{node.name}."
        if isinstance(node, ast.FunctionDef):
            function = f"{scope}{node.name}" if "." not in function else f"{function}.{node.name}"
        if isinstance(node, ast.Call) and _kind(node):
            yield node, function
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function, scope)

    yield from walk(tree, "", "")


def _kind(node: ast.Call) -> str | None:
    text = ast.unparse(node)
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in ("wait", "issued") and "_completions" not in text:
            return "wait"
        if node.func.attr == "settle":
            return "wait"
        # A worker's copy is waited for by whoever asks for its result.
        if node.func.attr == "result" and "copy" in text:
            return "wait"
        # An event made for somebody else; one that is waited for on the spot goes with its wait.
        if text == "self._compute.record()":
            return "event"
        if node.func.attr == "zero_freed":
            return "zero"
    return None


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)
