"""The pages: every block of code runs and shows what it says, every link and picture is there."""

from __future__ import annotations

import doctest
import itertools
import os
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

import hetcal
from hetcal.__main__ import main

ROOT = Path(__file__).parents[1]
LINKED = sorted(
    p.relative_to(ROOT).as_posix()
    for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md"))
    if "generated" not in p.parts
)
# Minutes of work in all; `make docs` sets the variable and runs them, too.
SLOW = {"docs/planning.md"}
PAGES = [
    page
    for page in LINKED
    if page.startswith(("docs/", "README"))
    if page not in SLOW or os.environ.get("HETCAL_SLOW_DOCS")
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})

# What a block is not run for: the start of its first line, and why.
NOT_RUN = {
    "pip install": "installs from a network",
    "make ": "would run these very tests",
    "hetcal demo": "tests/test_demo.py runs it and reads what it writes",
    "python examples/": "needs data sets that are not in the repository",
    "from distributed import Client": "needs a cluster",
    "hetcal train": "needs CIFAR and a GPU; paper/tests/test_train.py trains tiny networks",
    "python -m hetcal_paper.pages": "paper/tests/reproduction runs it and reads what it writes",
}

# What the reader of a page has at hand before its first block.
GIVEN = {
    "README.md": """
import hetcal.onnx, hetcal.torch, onnx, torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier as Forest
from functools import partial
RandomForestClassifier = partial(Forest, n_estimators=10, random_state=0)
X, y = (part[:400] for part in load_digits(return_X_y=True))
torch.manual_seed(0)
net = torch.nn.Identity()
inputs = 3 * torch.randn(4000, 10)
labels = torch.distributions.Categorical(logits=inputs).sample()
data = torch.utils.data.TensorDataset(inputs, labels)
validation_loader = torch.utils.data.DataLoader(data, batch_size=1000)
x, z = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 10]) for name in "xz")
graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["z"])], "net", [x], [z])
opset = [onnx.helper.make_opsetid("", hetcal.onnx.OPSET)]
onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "net.onnx")
""",
    "docs/scikit-learn.md": "from sklearn.linear_model import LogisticRegression",
}


def blocks(page: str) -> Iterator[tuple[str, str, int]]:
    """Kind of code, code and line of every block that is one."""
    for token in MARKDOWN.parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type != "fence" or token.map is None:
            continue
        first = token.content.lstrip().split(" ")[0].strip()
        kind = token.info.strip() or ("bash" if first in ("hetcal", "python", "make", "pip") else "")
        yield kind, token.content, token.map[0] + 1


def run_python(code: str, names: dict[str, Any], page: str, line: int) -> None:
    if not code.lstrip().startswith(">>>"):
        exec(compile("\n" * line + code, page, "exec"), names)  # noqa: S102
        return
    test = doctest.DocTestParser().get_doctest(code, names, page, page, line)
    found: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=found.append, clear_globs=False)
    names.update(test.globs)
    assert not found, "".join(found)


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Commands of a block, each with the output that the page shows under it."""
    parts = re.split(r"^\$ ", code, flags=re.MULTILINE)[1:] if code.startswith("$ ") else code.splitlines()
    for part in filter(str.strip, parts):
        command, _, output = part.partition("\n")
        yield command, output


def run_shell(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, wanted in commands(code):
        if any(command.startswith(start) for start in NOT_RUN):
            continue
        words = shlex.split(command, comments=True)
        assert words[0] == "hetcal", f"{command!r} is not run; say why in NOT_RUN"
        exits = re.search(r"# exits with (\d)", command)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            code_seen = main(words[1:])
        seen = capsys.readouterr()
        assert code_seen == (int(exits[1]) if exits else 0), f"{command}: {seen.err}"
        if wanted and not doctest.OutputChecker().check_output(wanted, seen.out + seen.err, FLAGS):
            pytest.fail(f"{command} shows\n{seen.out}{seen.err}\nand the page\n{wanted}")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages speak of, to work in."""
    example = hetcal.load_example("cifar10-noisy")
    assert example.test is not None
    splits = {"val": example.val, "test": example.test}
    arrays = {f"{s}_logits": rows.logits[:400] for s, rows in splits.items()}
    arrays |= {f"{s}_labels": rows.labels[:400] for s, rows in splits.items()}
    np.savez(tmp_path / "logits.npz", **arrays)
    np.savez(tmp_path / "new_logits.npz", logits=example.test.logits[:50])
    hetcal.logits_files.save_table(
        tmp_path / "logits.csv", {"logit": arrays["test_logits"], "label": arrays["test_labels"]}
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HETCAL_RESULTS", str(ROOT / "results"))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back what `main` sets
    return tmp_path


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("page", [p for p in PAGES if any(kind for kind, _, _ in blocks(p))])
def test_every_block_of_code_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(GIVEN.get(page, ""), names)  # noqa: S102
    for kind, code, line in blocks(page):
        if kind == "python" and not any(code.startswith(start) for start in NOT_RUN):
            run_python(code, names, page, line)
        elif kind in ("bash", "console"):
            run_shell(code, capsys)
        else:
            assert kind in ("python", "", "yaml", "json"), f"{page}:{line} has code that is not run: {kind}"


def test_what_is_not_run_is_on_a_page() -> None:
    lines = "\n".join(code for page in LINKED for _, code, _ in blocks(page))
    assert [
        start for start in NOT_RUN if not re.search(rf"^(\$ )?{re.escape(start)}", lines, re.MULTILINE)
    ] == []


def anchors(path: Path) -> set[str]:
    """Anchors of a page: its own, and those that GitHub and the site give to headings."""
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    titles = [
        "".join(c.content for c in inline.children or [] if c.type in ("text", "code_inline"))
        for opening, inline in itertools.pairwise(tokens)
        if opening.type == "heading_open"
    ]
    named = {name for t in tokens for name in re.findall(r'<a (?:id|name)="([^"]+)"', t.content)}
    return named | {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(page: str) -> Iterator[str]:
    for token in MARKDOWN.parse((ROOT / page).read_text(encoding="utf-8")):
        for child in token.children or []:
            if target := child.attrGet("href") or child.attrGet("src"):
                yield str(target)


@pytest.mark.parametrize("page", LINKED)
def test_links_and_pictures_are_there(page: str) -> None:
    for link in links(page):
        if re.match(r"(https?|mailto):", link):
            continue
        place, _, anchor = link.partition("#")
        target = (ROOT / page).parent / place if place else ROOT / page
        assert target.exists(), f"{page} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page} links to {link}, a heading that is not there"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[str] = set()
    waiting = ["docs/index.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        folder = (ROOT / page).parent
        targets = {(folder / link.partition("#")[0]).resolve() for link in links(page)}
        waiting += [p for p in LINKED if p.startswith("docs/") and p not in reached and ROOT / p in targets]
    assert {page for page in LINKED if page.startswith("docs/")} - reached == set()
