"""Run every code block of the documentation and check its links and images."""

from __future__ import annotations

import csv
import doctest
import importlib.util
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
RESULTS = ROOT / "paper" / "results"
LINKED = sorted(
    p.relative_to(ROOT).as_posix()
    for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md"))
    if "generated" not in p.parts
)
# Pages whose code is run elsewhere: by tests/newcomer, and by Sphinx when it builds the site
RUN_ELSEWHERE = ("docs/get-your-logits.md", "docs/notebooks/")
# Pages that take minutes; `make docs` sets HETCAL_SLOW_DOCS to run them.
SLOW = {"docs/planning.md"}
PAGES = [
    page
    for page in LINKED
    if page.startswith(("docs/", "README")) and not page.startswith(RUN_ELSEWHERE)
    if page not in SLOW or os.environ.get("HETCAL_SLOW_DOCS")
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})

# Commands that are not run: the start of the line, and the reason.
NOT_RUN = {
    "pip install": "needs a network",
    "make ": "would run these tests",
    "hetcal demo": "tests/cli/test_demo.py runs it",
    "python examples/": "needs external data sets",
    "from transformers import": "tests/huggingface/test_trainer.py runs a Trainer, if there is one",
    "from distributed import Client": "needs a cluster",
    "mlflow models serve": "tests/mlflow/test_model.py runs a server",
    "curl ": "needs a server",
    "hetcal train": "needs CIFAR and a GPU; paper/tests/test_training.py trains tiny networks",
    "hetcal pages": "paper/tests/test_commands.py runs it",
}

# Code that runs before the first block of a page: objects that the reader is assumed to have.
SETUP = {
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
    "docs/hugging-face.md": """
import evaluate, hetcal
from types import SimpleNamespace
evaluate.config.HF_METRICS_CACHE, evaluate.config.HF_MODULES_CACHE = "metrics", "modules"
evaluate.config.HF_EVALUATE_OFFLINE = True
example = hetcal.load_example("cifar10-noisy")
validation, test = example.val, example.test
trainer = SimpleNamespace(
    predict=lambda rows: SimpleNamespace(predictions=rows.logits, label_ids=rows.labels)
)
""",
    "docs/lightning.md": """
import warnings
warnings.simplefilter("ignore")  # Lightning warns about its defaults and about PyTorch
import hetcal.torch, torch
torch.manual_seed(0)
inputs = torch.randn(2000, 8)
labels = torch.distributions.Categorical(logits=3 * inputs[:, :3]).sample()
data = torch.utils.data.TensorDataset(inputs, labels)
train_loader, val_loader = (torch.utils.data.DataLoader(data, batch_size=500) for _ in range(2))
""",
    "docs/mlflow.md": """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of MLflow
warnings.filterwarnings("ignore", ".*AnyType")
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
mlflow.set_registry_uri("sqlite:///mlflow.db")
""",
    "docs/scikit-learn.md": "from sklearn.linear_model import LogisticRegression",
}


def blocks(page: str) -> Iterator[tuple[str, str, int]]:
    """Yield the language, the code and the line number of every code block."""
    for token in MARKDOWN.parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type != "fence" or token.map is None:
            continue
        first_word = token.content.lstrip().split(" ")[0].strip()
        language = token.info.strip() or ("bash" if first_word in ("hetcal", "python", "make", "pip") else "")
        yield language, token.content, token.map[0] + 1


def run_python(code: str, names: dict[str, Any], page: str, line: int) -> None:
    if not code.lstrip().startswith(">>>"):
        exec(compile("\n" * line + code, page, "exec"), names)  # noqa: S102
        return
    test = doctest.DocTestParser().get_doctest(code, names, page, page, line)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append, clear_globs=False)
    names.update(test.globs)
    assert not failures, "".join(failures)


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a block, each with the output that the page shows."""
    parts = re.split(r"^\$ ", code, flags=re.MULTILINE)[1:] if code.startswith("$ ") else code.splitlines()
    for part in filter(str.strip, parts):
        command, _, output = part.partition("\n")
        yield command, output


def run_shell(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, expected in commands(code):
        if any(command.startswith(start) for start in NOT_RUN):
            continue
        words = shlex.split(command, comments=True)
        if not words:
            continue
        assert words[0] == "hetcal", f"{command!r} is not run; add the reason to NOT_RUN"
        expected_exit = re.search(r"# exits with (\d)", command)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            exit_code = main(words[1:])
        output = capsys.readouterr()
        assert exit_code == (int(expected_exit[1]) if expected_exit else 0), f"{command}: {output.err}"
        shown = output.out + output.err
        if expected and not doctest.OutputChecker().check_output(expected, shown, FLAGS):
            pytest.fail(f"{command} prints\n{shown}\nbut the page shows\n{expected}")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains the files that the pages use."""
    example = hetcal.load_example("cifar10-noisy")
    assert example.test is not None
    splits = {"val": example.val, "test": example.test}
    arrays = {f"{s}_logits": rows.logits[:400] for s, rows in splits.items()}
    arrays |= {f"{s}_labels": rows.labels[:400] for s, rows in splits.items()}
    np.savez(tmp_path / "logits.npz", **arrays)
    np.savez(tmp_path / "new_logits.npz", logits=example.test.logits[:50])
    with (tmp_path / "logits.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["label", *(f"logit_{k}" for k in range(10))])
        for label, row in zip(arrays["test_labels"].tolist(), arrays["test_logits"].tolist(), strict=True):
            table.writerow([label, *row])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HETCAL_RESULTS", str(RESULTS))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    return tmp_path


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("page", [p for p in PAGES if any(language for language, _, _ in blocks(p))])
def test_every_block_of_code_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(SETUP.get(page, ""), names)  # noqa: S102
    for language, code, line in blocks(page):
        if language == "python" and not any(code.startswith(start) for start in NOT_RUN):
            run_python(code, names, page, line)
        elif language in ("bash", "console"):
            run_shell(code, capsys)
        else:
            assert language in ("python", "", "yaml", "json"), f"{page}:{line} is not run: {language}"


def anchors(path: Path) -> set[str]:
    """Return the explicit anchors of a page and those that GitHub generates for its headings."""
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
def test_links_and_images_exist(page: str) -> None:
    for link in links(page):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{page} links to {link}, but there is no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[str] = set()
    pending = ["docs/index.md"]
    while pending:
        page = pending.pop()
        reached.add(page)
        folder = (ROOT / page).parent
        targets = {(folder / link.partition("#")[0]).resolve() for link in links(page)}
        pending += [p for p in LINKED if p.startswith("docs/") and p not in reached and ROOT / p in targets]
    assert {page for page in LINKED if page.startswith("docs/")} - reached == set()


def test_every_page_is_in_the_table_of_contents() -> None:
    spec = importlib.util.spec_from_file_location("generated_pages", ROOT / "docs" / "generated_pages.py")
    assert spec is not None
    assert spec.loader is not None
    generated_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated_pages)
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in LINKED if page.startswith("docs/")}
    listed = set(generated_pages.CONTENTS.splitlines())
    # The index contains the contents, and the start page of the reproduction lists its own pages.
    linked_elsewhere = {page for page in pages if page == "index" or page.startswith("reproduction/")}
    assert pages - linked_elsewhere - listed == set()
