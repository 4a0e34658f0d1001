"""Mutants of a module: its source with one small fault in it, made by mutmut's operators.

mutmut itself passes over decorated functions, which the solvers are, and wraps every function, which hides
the signatures that scikit-learn reads. So only its operators are used, and every mutant is a whole source.
"""

from __future__ import annotations

import difflib
import importlib.util
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

__all__ = ["PACKAGES", "Mutant", "all_mutants", "path_of", "sample"]

PACKAGES = {
    "_core solvers": [
        "_core.solvers", "_core.balls", "_core.problems", "_core.hierarchy", "_core.temperature",
    ],
    "metrics": [
        "metrics.binning", "metrics.evaluation", "metrics.floors", "metrics.intervals", "metrics.scores",
        "metrics.totals",
    ],
    "calibrators": [
        "calibrators.auto", "calibrators.chain", "calibrators.classwise", "calibrators.clones",
        "calibrators.families", "calibrators.base", "calibrators.mixture", "calibrators.scaling",
        "calibrators.search", "calibrators.slicing", "calibrators.toplabel", "calibrators.vector",
    ],
}  # fmt: skip

# What a reader sees and no decision rests on.
_TEXT_FUNCTIONS = {"__str__", "__repr__", "_class_lines"}
# As mutmut has it: faults in these are errors at once.
_TRIVIAL_CALLS = {"len", "isinstance"}
_SKIPPED = (
    m.Annotation()
    | m.Decorator()
    | m.Raise()
    | m.Import()
    | m.ImportFrom()
    | m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
    | m.FunctionDef(name=m.OneOf(*(m.Name(name) for name in sorted(_TEXT_FUNCTIONS))))
    | m.Call(func=m.OneOf(*(m.Name(name) for name in sorted(_TRIVIAL_CALLS))))
    | m.Call(func=m.Attribute(value=m.Name("warnings"), attr=m.Name("warn")))
    | m.If(test=m.Name("TYPE_CHECKING"))
    | m.Assign(targets=[m.AssignTarget(target=m.Name("__all__"))])
)


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, and the node that takes another's place in the module.

    `reach` lists lines to look for tests of: the first list that any test reaches; none for all tests of the
    module. `at_load` says that the fault is in what runs when the module is loaded.
    """

    module: str
    number: int
    line: int
    reach: list[list[int]]
    at_load: bool
    tree: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    @property
    def name(self) -> str:
        """Module and number, which stay the same while the source does."""
        return f"{self.module}:{self.number}"

    def source(self) -> str:
        """The module with the fault in it."""
        changed = self.tree.deep_replace(self.old, self.new)
        return str(changed.code)  # type: ignore[union-attr]

    def diff(self) -> str:
        """The lines that differ."""
        lines = difflib.unified_diff(
            self.tree.code.splitlines(), self.source().splitlines(), n=0, lineterm=""
        )
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def path_of(module: str) -> Path:
    """File of a module that is installed or on the path, without importing it."""
    package = importlib.util.find_spec("hetcal")
    if package is None or package.origin is None:
        raise SystemExit("hetcal must be installed or on PYTHONPATH")
    return Path(package.origin).parent.joinpath(*module.split(".")).with_suffix(".py")


def all_mutants(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its source."""
    wrapper = MetadataWrapper(cst.parse_module(path_of(module).read_text("utf-8")))
    finder = _Finder(module)
    wrapper.visit(finder)
    return finder.found


def sample(mutants: list[Mutant], n: int | None, seed: int) -> list[Mutant]:
    """`n` of the mutants drawn without replacement, in their order, or all of them."""
    if n is None or n >= len(mutants):
        return mutants
    chosen = random.Random(seed).sample(range(len(mutants)), n)  # noqa: S311  # nosec B311
    return [mutants[i] for i in sorted(chosen)]


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module
        self.found: list[Mutant] = []

    def visit_Module(self, node: cst.Module) -> None:  # noqa: N802
        self.tree = node

    def on_visit(self, node: cst.CSTNode) -> bool:
        super().on_visit(node)
        if m.matches(node, _SKIPPED) or self._is_type_alias(node):
            return False
        for new in _mutations(node):
            line = self._lines(node)[0]
            reach, at_load = self._reach(node)
            number = len(self.found)
            self.found.append(Mutant(self.module, number, line, reach, at_load, self.tree, node, new))
        return True

    def _lines(self, node: cst.CSTNode) -> list[int]:
        position = self.get_metadata(PositionProvider, node)
        return list(range(position.start.line, position.end.line + 1))

    def _reach(self, node: cst.CSTNode) -> tuple[list[list[int]], bool]:
        """Its own line, or that of its statement; all of the function for what is in its head."""
        reach, above = [self._lines(node)[:1]], node
        while not isinstance(above, cst.Module | cst.ClassDef):
            parent = self.get_metadata(ParentNodeProvider, above)
            if isinstance(parent, cst.FunctionDef):
                head = above is not parent.body
                return ([self._lines(parent.body)] if head else reach), head
            if isinstance(above, cst.BaseStatement):
                reach.append(self._lines(above)[:1])
            above = parent
        return [], True

    def _is_type_alias(self, node: cst.CSTNode) -> bool:
        if not m.matches(node, m.SimpleStatementLine(body=[m.Assign(value=m.Subscript())])):
            return False
        return isinstance(self.get_metadata(ParentNodeProvider, node), cst.Module)


def _mutations(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            found = list(operator(node))
            # Of a string the first is enough: upper and lower case are the same fault.
            yield from found[:1] if operator is operator_string else found
