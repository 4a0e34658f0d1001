"""Print a random sample of docstrings, comments and error messages for review.

    python tools/sample_prose.py --seed 1

Rewrite every text that has to be read twice, then draw again with a new seed.
"""

from __future__ import annotations

import argparse
import ast
import random
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "src" / "hetcal", ROOT / "paper" / "src" / "hetcal_paper")
Text = tuple[str, str]  # location and text


def docstrings(path: Path) -> Iterator[Text]:
    """Yield the docstrings of a module and of its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def comments(path: Path) -> Iterator[Text]:
    """Yield the comments; consecutive lines without code form one comment."""
    block: list[str] = []
    first = last = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type != tokenize.COMMENT or token.string.startswith(("# noqa", "# type:", "# fmt:")):
                continue
            follows_code = bool(token.line[: token.start[1]].strip())
            if block and (follows_code or token.start[0] != last + 1):
                yield f"{path.relative_to(ROOT)}:{first}", " ".join(block)
                block = []
            first = token.start[0] if not block else first
            last = 0 if follows_code else token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield f"{path.relative_to(ROOT)}:{first}", " ".join(block)


def errors(path: Path) -> Iterator[Text]:
    """Yield the messages of raised exceptions as they are written in the code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and call.args:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(call.args[0])


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="seed of the sample")
    rng = random.Random(parser.parse_args().seed)  # noqa: S311  # not used for security
    files = sorted(path for folder in SOURCES for path in folder.rglob("*.py"))
    for kind, collect, n in (
        ("docstrings", docstrings, 20),
        ("comments", comments, 20),
        ("errors", errors, 10),
    ):
        texts = [text for path in files for text in collect(path)]
        print(f"\n===== {n} of {len(texts)} {kind}")
        for place, text in rng.sample(texts, n):
            print(f"\n--- {place}\n{text}")
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    print("\n===== two pages to read:", *(str(page.relative_to(ROOT)) for page in rng.sample(pages, 2)))


if __name__ == "__main__":
    main()
