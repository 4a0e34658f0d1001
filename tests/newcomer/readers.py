"""Follow a section of docs/get-your-logits.md: `python readers.py SECTION`, in an empty folder.

A reader starts with a model and labelled rows, runs the code of the section as it is written, and checks
that the scores are those of the model.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split

import hetcal

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "get-your-logits.md"
DIGITS = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
Names = dict[str, Any]


@dataclass(frozen=True)
class Reader:
    """A reader of one section.

    Attributes
    ----------
    start : returns the objects that the section assumes, and writes the files that it reads
    check : raises an error if the objects or files that the section creates are wrong
    packages : modules to import besides those of the extra `dev`
    is_trained : whether the model is better than chance, so that no calibrator has a reason to warn
    files : files to go on with; if `logits.npz` is none of the section, the reader saves the arrays
    """

    start: Callable[[], Names]
    check: Callable[[Names], None]
    packages: tuple[str, ...] = ()
    is_trained: bool = True
    files: tuple[str, ...] = ()


def sections() -> dict[str, list[tuple[str, str]]]:
    """Language and code of every block of the page, by the anchor of its section."""
    result: dict[str, list[tuple[str, str]]] = {}
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(PAGE.read_text(encoding="utf-8"))
    anchor = ""
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == "heading_open":
            anchor = following.content.lower().replace(" ", "-")
        elif token.type == "fence":
            result.setdefault(anchor, []).append((token.info, token.content))
    return result


def commands_of_five_minutes() -> list[str]:
    """Commands of docs/five-minutes.md for a file with one set of rows.

    With one set, the page advises against evaluating a calibrator on it, so that command is left out.
    """
    page = (DOCS / "five-minutes.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (hetcal .*mine\.csv.*)$", page, re.MULTILINE)
    return [command for command in commands if not command.startswith("hetcal evaluate mine.csv -c")]


def follow(section: str) -> None:
    """Do what a section says, and check the result.

    If it ends with arrays of text labels, continue with the section that saves them as `logits.npz`.
    """
    reader = READERS[section]
    names = reader.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if reader.is_trained else "ignore", hetcal.CalibrationWarning)
        run_section(section, names)
        reader.check(names)
        if "logits.npz" in reader.files and not Path("logits.npz").exists():
            labels, class_names = (
                np.asarray(values, dtype=str) for values in (names["y_val"], names["cal"].class_names_)
            )
            arrays = {"logits": names["logits"], "labels": labels, "class_names": class_names}
            run_section("what-to-do-with-them", arrays)


def run_section(section: str, names: Names) -> None:
    """Run the code of a section, which may use and define names."""
    for language, code in sections()[section]:
        if language == "python":
            exec(compile(code, f"{PAGE.name}#{section}", "exec"), names)  # noqa: S102
        else:
            run_commands(code)


def run_commands(code: str) -> None:
    for words in map(shlex.split, code.splitlines()):
        if words[0] != "hetcal":
            raise ValueError(f"the page must use the command hetcal only, got {words[0]!r}; change it")
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
        if done.returncode or "Warning" in done.stderr:
            raise RuntimeError(f"{shlex.join(words)} exits with {done.returncode} and prints {done.stderr}")


# -- checks -----------------------------------------------------------------------------------------


def check_file(path: str, expected: Any, labels: Any, class_names: Any) -> None:
    """Compare a file with the probabilities of the model, the true labels and the names of the classes."""
    rows = hetcal.load_logits(path)
    assert rows.class_names == list(class_names)
    same_distribution(rows.val.logits, expected)
    known = np.asarray(labels)
    if known.dtype.kind in "UO":
        known = np.array([list(class_names).index(name) for name in known])
    np.testing.assert_array_equal(rows.val.labels, known)


def same_distribution(logits: Any, probs: Any) -> None:
    np.testing.assert_allclose(softmax(np.asarray(logits, float), axis=1), np.asarray(probs), atol=1e-5)


def check_report(n_rows: int, class_names: Any, path: str = "report.html") -> None:
    """A report names the number of rows and every class."""
    text = Path(path).read_text(encoding="utf-8")
    visible = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    assert f"{n_rows:,}" in visible
    assert [name for name in class_names if str(name) not in visible] == []


# -- scikit-learn and tables ------------------------------------------------------------------------


def digits(names: Any = DIGITS) -> tuple[Any, ...]:
    """X, X_val, y, y_val; `names` replace the labels 0, 1, …"""
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X, np.asarray(names)[y], test_size=500, random_state=0))


def spam() -> tuple[Any, ...]:
    return digits(["ham"] * 5 + ["spam"] * 5)


def start_arrays() -> Names:
    example = hetcal.load_example("cifar10-noisy").val
    names = hetcal.load_example("cifar10-noisy").class_names
    return {"logits": example.logits[:1000], "labels": example.labels[:1000], "class_names": names}


def check_arrays(names: Names) -> None:
    check_file("logits.npz", softmax(names["logits"], axis=1), names["labels"], names["class_names"])
    check_report(1000, names["class_names"])
    assert names["cal"].class_names_ == names["class_names"]


def start_sklearn() -> Names:
    import pandas as pd

    X, X_val, y, y_val = digits()
    shuffled = pd.Series(y_val, index=np.random.default_rng(0).permutation(len(y_val)))
    boosting = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(X, y)
    model = RandomForestClassifier(30, random_state=0).fit(X, y)
    return {"model": model, "boosting": boosting, "X_val": X_val, "y_val": shuffled}


def check_sklearn(names: Names) -> None:
    model, boosting, X_val, y_val = (names[name] for name in ("model", "boosting", "X_val", "y_val"))
    probs = model.predict_proba(X_val)
    rows = hetcal.load_logits("forest.csv")
    np.testing.assert_allclose(rows.val.probs, probs)
    assert [rows.class_names[k] for k in rows.val.labels] == list(y_val)
    check_report(len(X_val), model.classes_)
    same_distribution(names["logits"], boosting.predict_proba(X_val))
    assert names["cal"].class_names_ == list(boosting.classes_)


def start_binary() -> Names:
    X, X_val, y, y_val = spam()
    return {
        "model": RandomForestClassifier(30, random_state=0).fit(X, y),
        "X_val": X_val,
        "y_val": y_val,
    }


def check_binary(names: Names) -> None:
    rows = hetcal.load_logits("spam.csv")
    np.testing.assert_allclose(rows.val.probs, names["model"].predict_proba(names["X_val"]))
    assert [rows.class_names[k] for k in rows.val.labels] == list(names["y_val"])
    check_report(len(names["X_val"]), ["ham", "spam"])


def prediction_table() -> Any:
    import pandas as pd

    X, X_val, y, y_val = digits()
    model = RandomForestClassifier(30, random_state=0).fit(X, y)
    table = pd.DataFrame(model.predict_proba(X_val), columns=[f"prob_{name}" for name in model.classes_])
    return table.assign(label=y_val, source="camera")


def check_table(names: Names) -> None:
    table = names["table"].to_pandas() if hasattr(names["table"], "to_pandas") else names["table"]
    probs = table.filter(like="prob_")
    rows = hetcal.load_logits("predictions.parquet")
    np.testing.assert_allclose(rows.val.probs, probs)
    assert [rows.class_names[k] for k in rows.val.labels] == list(table["label"])
    assert names["cal"].class_names_ == sorted(DIGITS)
    check_report(len(table), DIGITS)


def start_polars() -> Names:
    import polars

    return {"table": polars.from_pandas(prediction_table())}


def start_confidences() -> Names:
    table = prediction_table()
    probs = table.filter(like="prob_").to_numpy()
    predicted = np.sort(DIGITS)[probs.argmax(axis=1)]
    log = table[["label"]].assign(confidence=probs.max(axis=1), predicted=predicted)
    log.to_csv("top1.csv", index=False)
    return {"probs": probs}


def check_confidences(names: Names) -> None:
    log, calibrated = names["log"], names["calibrated"]
    options: Any = {"class_names": names["names"], "predicted": log["predicted"]}
    before = hetcal.evaluate(log["confidence"], log["label"], **options)
    full = hetcal.evaluate(names["probs"], log["label"], names["names"])
    assert (before.n, before.accuracy, before.ece, before.max_ece) == (
        full.n, full.accuracy, full.ece, full.max_ece,
    )  # fmt: skip
    assert hetcal.evaluate(calibrated, log["label"], **options).ece < before.ece / 2


# -- boosting ---------------------------------------------------------------------------------------


def boosted(model: Any, encoder: Any = None) -> Names:
    X, X_val, y, y_val = digits()
    model.fit(X, y if encoder is None else encoder.fit_transform(y))
    return {"model": model, "encoder": encoder, "X_val": X_val, "y_val": y_val}


def start_xgboost() -> Names:
    from sklearn.preprocessing import LabelEncoder
    from xgboost import XGBClassifier

    return boosted(XGBClassifier(n_estimators=5, n_jobs=1), LabelEncoder())


def start_lightgbm() -> Names:
    from lightgbm import LGBMClassifier

    return boosted(LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1))


def start_catboost() -> Names:
    from catboost import CatBoostClassifier

    return boosted(CatBoostClassifier(iterations=20, verbose=0, allow_writing_files=False, thread_count=1))


def check_boosted(names: Names) -> None:
    same_distribution(names["logits"], names["model"].predict_proba(names["X_val"]))
    check_calibrated(names, names["model"].predict_proba(names["X_val"]), names["y_val"])
    assert names["cal"].class_names_ == sorted(DIGITS)


def check_calibrated(names: Names, probs: Any, labels: Any) -> None:
    """The calibrator was fitted on these probabilities and labels: it describes the labels better."""
    known = np.asarray(labels)
    class_names = sorted(set(known.tolist())) if known.dtype.kind in "UO" else None
    before = hetcal.evaluate(probs, labels, class_names)
    after = hetcal.evaluate(names["cal"].predict_proba(probs=probs), labels, class_names)
    assert before.accuracy == after.accuracy
    assert after.nll < before.nll


# -- networks ---------------------------------------------------------------------------------------


def declare_torchvision_operators() -> None:
    """Make torchvision importable if its compiled operators do not fit the installed build of torch.

    PyPI has torchvision for GPU builds of torch only. With a CPU build, its classification models and
    transforms work, but its import needs the declarations of two operators for object detection.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)  # the declarations end with the life of this object


LIBRARIES: list[Any] = []


def draw_labels(logits: Any, factor: float = 1.0) -> Any:
    """Draw labels from the softmax of the logits times a factor, which a calibrator should find."""
    z = factor * np.asarray(logits, float)
    return (z + np.random.default_rng(0).gumbel(size=z.shape)).argmax(axis=1)


def start_pytorch() -> Names:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Dropout(0.5)).train()
    inputs = 3 * torch.randn(1000, 8)
    labels = torch.from_numpy(draw_labels(net.eval()(inputs).detach(), 0.5))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=100)
    names = ["a", "b", "c", "d", "e"]
    return {"net": net.train(), "val_loader": loader, "class_names": names}


def check_pytorch(names: Names) -> None:
    inputs, labels = names["val_loader"].dataset.tensors
    assert names["net"].training
    expected = names["net"].eval()(inputs).softmax(dim=1).detach()
    check_file("logits.npz", expected, labels, names["class_names"])
    check_report(1000, names["class_names"])


def save_photos(n: int = 30) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("cat", "cow", "dog"):
        folder = Path("photos/val", name)
        folder.mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")


def start_torchvision() -> Names:
    declare_torchvision_operators()
    import torch
    from torchvision.models import MobileNet_V3_Small_Weights, mobilenet_v3_small

    save_photos()
    torch.manual_seed(0)
    model = mobilenet_v3_small(num_classes=3).train()
    return {"model": model, "weights": MobileNet_V3_Small_Weights.DEFAULT}


def start_timm() -> Names:
    declare_torchvision_operators()
    import timm
    import torch

    save_photos()
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t", num_classes=3).state_dict(), "best.pth")
    return {}


def check_photos(names: Names) -> None:
    import torch

    dataset = names["dataset"]
    with torch.inference_mode():
        expected = names["model"].eval()(torch.stack([dataset[i][0] for i in (0, 40, 80)]))
    np.testing.assert_allclose(names["logits"][[0, 40, 80]], expected, atol=1e-4)
    assert names["labels"].tolist() == [0] * 30 + [1] * 30 + [2] * 30
    assert names["cal"].class_names_ == ["cat", "cow", "dog"]


def check_timm(names: Names) -> None:
    import torch

    check_photos(names)
    saved = torch.load("best.pth")
    assert all(torch.equal(values, saved[key]) for key, values in names["model"].state_dict().items())


def start_keras() -> Names:
    import keras

    keras.utils.set_random_seed(0)
    X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32") * 3
    layers = [keras.layers.Input((8,)), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(4, activation="softmax")])
    return {"model": model, "X_val": X, "y_val": draw_labels(np.log(model.predict(X, verbose=0)), 0.5)}


def check_keras(names: Names) -> None:
    weights, bias = names["model"].layers[-1].get_weights()
    np.testing.assert_allclose(names["probs"], softmax(names["X_val"] @ weights + bias, axis=1), atol=1e-5)
    check_calibrated(names, names["probs"], names["y_val"])


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "plot", "dull", "great", "slow"]
MOODS = ["negative", "neutral", "positive"]


def save_classifier(n: int = 600) -> tuple[Any, list[str], list[int]]:
    """Save a small text classifier with random weights in the folder `my-model`.

    Returns its tokenizer, texts, and labels for which the classifier is over-confident.
    """
    declare_torchvision_operators()
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, initializer_range=1.0,
        id2label=dict(enumerate(MOODS)),
        label2id={mood: k for k, mood in enumerate(MOODS)},
    )  # fmt: skip
    tokenizer = BertTokenizerFast(vocab={word: k for k, word in enumerate(WORDS)})
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained("my-model")
    tokenizer.save_pretrained("my-model")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS[5:], rng.integers(1, 8))) for _ in range(n)]
    with torch.inference_mode():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    return tokenizer, texts, draw_labels(logits, 0.5).tolist()


def start_trainer() -> Names:
    tokenizer, texts, labels = save_classifier()
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

    encoded = tokenizer(texts, padding=True)
    dataset = [
        {key: values[i] for key, values in encoded.items()} | {"labels": label}
        for i, label in enumerate(labels)
    ]
    arguments = TrainingArguments("out", report_to="none", use_cpu=True, per_device_eval_batch_size=50)
    model = AutoModelForSequenceClassification.from_pretrained("my-model")
    trainer = Trainer(model=model, args=arguments)
    return {"trainer": trainer, "val_dataset": dataset, "texts": texts, "labels": labels}


def start_pipeline() -> Names:
    _, texts, labels = save_classifier()
    return {"texts": texts, "labels": labels}


def check_classifier(path: str) -> Callable[[Names], None]:
    def check(names: Names) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model = AutoModelForSequenceClassification.from_pretrained("my-model")
        batch = AutoTokenizer.from_pretrained("my-model")(names["texts"], padding=True, return_tensors="pt")
        with torch.inference_mode():
            probs = model(**batch).logits.softmax(dim=1).numpy()
        order = [MOODS.index(name) for name in hetcal.load_logits(path).class_names or []]
        moods = np.array(MOODS)
        check_file(path, probs[:, order], moods[names["labels"]], moods[order])
        check_report(len(names["texts"]), MOODS)

    return check


def start_language_model() -> Names:
    declare_torchvision_operators()
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = [f"Ġ{letter}" for letter in "ABCD"]  # a letter after a space
    tokens = ["<pad>", "<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *letters]
    merges = [("Ġ", letter) for letter in "ABCD"]
    pieces = Tokenizer(models.BPE(vocab={token: k for k, token in enumerate(tokens)}, merges=merges))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<pad>", bos_token="<s>")  # noqa: S106
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=1.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(list("abcdef "), rng.integers(5, 30))) + " Answer:" for _ in range(100)]
    options = ["yes", "no", "not now"]
    answers = rng.integers(0, 3, 100).tolist()
    names = {"model": LlamaForCausalLM(config).eval(), "tokenizer": tokenizer, "prompts": prompts}
    return names | {"options": options, "answers": answers}


def check_language_model(names: Names) -> None:
    """Compare the scores with those of the unpadded texts, token by token."""
    import torch

    model, tokenizer = names["model"], names["tokenizer"]

    def next_token(text: str) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([tokenizer.encode(text)])).logits[0, -1].numpy()

    for row in (0, 7):
        prompt = names["prompts"][row]
        ids = [tokenizer.convert_tokens_to_ids(f"Ġ{letter}") for letter in "ABCD"]
        assert names["ids"] == ids
        np.testing.assert_allclose(names["letter_logits"][row], next_token(prompt)[ids], atol=1e-3)
        for option, total in zip(names["options"], names["logits"][row], strict=True):
            tokens = tokenizer.encode(f" {option}")
            text = [prompt + f" {option}"[:i] for i in range(len(tokens))]  # every token is one character
            expected = sum(log_softmax(next_token(t))[k] for t, k in zip(text, tokens, strict=True))
            assert abs(total - expected) < 1e-3


def start_onnx() -> Names:
    import onnx

    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(1000, 8)), rng.normal(size=(8, 4))
    shapes = {"input": ["n", 8], "logits": ["n", 4]}
    entry, result = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    node = onnx.helper.make_node("MatMul", ["input", "weights"], ["logits"])
    constant = onnx.numpy_helper.from_array(weights.astype(np.float32), "weights")
    graph = onnx.helper.make_graph([node], "net", [entry], [result], [constant])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")
    return {"X_val": X, "y_val": draw_labels(X @ weights, 0.5), "expected": softmax(X @ weights, axis=1)}


def check_onnx(names: Names) -> None:
    same_distribution(names["logits"], names["expected"])
    check_calibrated(names, names["expected"], names["y_val"])


READERS = {
    "what-to-do-with-them": Reader(start_arrays, check_arrays),
    "scikit-learn": Reader(start_sklearn, check_sklearn, files=("forest.csv", "logits.npz")),
    "one-probability-per-row": Reader(start_binary, check_binary, files=("spam.csv",)),
    "xgboost": Reader(start_xgboost, check_boosted, ("xgboost",), files=("logits.npz",)),
    "lightgbm": Reader(start_lightgbm, check_boosted, ("lightgbm",), files=("logits.npz",)),
    "catboost": Reader(start_catboost, check_boosted, ("catboost",), files=("logits.npz",)),
    "pytorch": Reader(start_pytorch, check_pytorch, files=("logits.npz",)),
    "torchvision": Reader(start_torchvision, check_photos, ("torchvision",), is_trained=False),
    "timm": Reader(start_timm, check_timm, ("timm",), is_trained=False),
    "keras": Reader(start_keras, check_keras, ("keras",)),
    "hugging-face-trainer": Reader(
        start_trainer, check_classifier("logits.npz"), ("transformers", "accelerate")
    ),
    "hugging-face-pipelines": Reader(
        start_pipeline, check_classifier("pipeline.csv"), ("transformers",), files=("pipeline.csv",)
    ),
    "answer-options-of-a-language-model": Reader(
        start_language_model, check_language_model, ("transformers",), is_trained=False
    ),
    "onnx": Reader(start_onnx, check_onnx),
    "pandas": Reader(lambda: {"table": prediction_table()}, check_table),
    "polars": Reader(start_polars, check_table, files=("predictions.parquet",)),
    "only-the-confidence-of-the-prediction": Reader(start_confidences, check_confidences),
}

if __name__ == "__main__":
    follow(sys.argv[1])
