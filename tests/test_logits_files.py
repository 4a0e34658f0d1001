"""Logits files: every format is read, and damaged files raise an error with their name."""

from __future__ import annotations

import csv
import json
import pickle
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hetcal import Batches
from hetcal.logits_files import Split, load_logits, load_unlabelled, open_batches, save_table

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(30, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 30)


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    path.write_text(
        "\n".join([",".join(header), *(",".join(map(str, r)) for r in rows)]) + "\n", encoding="utf-8"
    )
    return path


def table_rows() -> list[list[object]]:
    return [[int(y), *(float(v) for v in z)] for z, y in zip(LOGITS, LABELS, strict=True)]


def test_npz_with_one_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    data = load_logits(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.val.logits, LOGITS)
    np.testing.assert_array_equal(data.judged.labels, LABELS)
    assert data.test is None
    assert data.class_names is None


def test_npz_with_validation_and_test_rows_groups_and_names(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        val_logits=LOGITS[:20], val_labels=LABELS[:20], val_groups=np.array(["a", "b"] * 10),
        test_logits=LOGITS[20:].astype(np.float16), test_labels=LABELS[20:].astype(np.uint8),
        test_groups=np.array(["b"] * 10),
        class_names=np.array(list("wxyz")), provenance=json.dumps({"title": "t"}),
    )  # fmt: skip
    data = load_logits(tmp_path / "a.npz")
    assert len(data.val.labels) == 20
    assert data.test is not None
    assert data.test.logits.dtype == np.float32
    assert data.test.groups is not None
    assert data.class_names == ["w", "x", "y", "z"]
    assert data.about["title"] == "t"
    assert set(load_unlabelled(tmp_path / "a.npz")[0]) == {"val_", "test_"}


def test_npy_pair_by_name_and_by_option(tmp_path: Path) -> None:
    np.save(tmp_path / "x_logits.npy", LOGITS)
    np.save(tmp_path / "x_labels.npy", LABELS)
    np.save(tmp_path / "other.npy", LABELS)
    for labels in (None, tmp_path / "other.npy"):
        np.testing.assert_array_equal(
            load_logits(tmp_path / "x_logits.npy", labels=labels).val.labels, LABELS
        )
    assert load_unlabelled(tmp_path / "x_logits.npy")[0][""].logits.shape == (30, 4)


def test_npy_without_labels_names_the_option(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", LOGITS)
    with pytest.raises(FileNotFoundError, match="--labels"):
        load_logits(tmp_path / "z.npy")


def test_csv_with_plain_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ["label", "logit_0", "logit_1", "logit_2", "logit_3"], table_rows())
    data = load_logits(path)
    np.testing.assert_allclose(data.val.logits, LOGITS, rtol=1e-6)
    assert data.class_names == ["0", "1", "2", "3"]


def test_csv_with_class_names_labels_by_name_group_and_split(tmp_path: Path) -> None:
    names = ["cat", "dog", "cow", "pig"]
    rows = [
        ["test" if i % 3 == 0 else "val", "north" if i % 2 else "south", names[y], *map(float, z)]
        for i, (z, y) in enumerate(zip(LOGITS, LABELS, strict=True))
    ]
    data = load_logits(write_csv(tmp_path / "a.csv", ["split", "group", "label", *names], rows))
    assert data.class_names == names
    assert data.test is not None
    np.testing.assert_array_equal(data.test.labels, LABELS[::3])
    assert data.val.groups is not None
    assert set(data.val.groups) == {"north", "south"}


def test_csv_without_labels_can_be_applied_to(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ["z0", "z1"], [[0.5, 2.0], [1.0, -1.0]])
    np.testing.assert_array_equal(load_unlabelled(path)[0][""].logits, [[0.5, 2.0], [1.0, -1.0]])
    with pytest.raises(ValueError, match="column 'label'"):
        load_logits(path)


def test_parquet_round_trip(tmp_path: Path) -> None:
    save_table(tmp_path / "a.parquet", {"label": LABELS, "logit": LOGITS})
    data = load_logits(tmp_path / "a.parquet")
    np.testing.assert_array_equal(data.val.logits, LOGITS)
    np.testing.assert_array_equal(data.val.labels, LABELS)


def test_class_names_do_not_merge_the_columns_of_several_arrays(tmp_path: Path) -> None:
    arrays = {"first": np.array([[0.25, 0.75]]), "second": np.array([[0.5, 0.5]])}
    save_table(tmp_path / "a.csv", arrays, ["cat", "dog"])
    values = np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1)
    np.testing.assert_array_equal(values, [0.25, 0.75, 0.5, 0.5])


@pytest.mark.parametrize("name", ["p.npz", "p.npy", "p.csv", "p.parquet"])
def test_probabilities_are_written_in_every_format(tmp_path: Path, name: str) -> None:
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    save_table(tmp_path / name, {"probs": probs})
    readers = {
        "p.npz": lambda p: np.load(p)["probs"],
        "p.npy": np.load,
        "p.csv": lambda p: np.loadtxt(p, delimiter=",", skiprows=1),
        "p.parquet": lambda p: np.stack(
            [v.to_numpy() for v in __import__("pyarrow.parquet").parquet.read_table(p)], axis=1
        ),
    }
    np.testing.assert_array_equal(readers[name](tmp_path / name), probs)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("label,z0,z1\n", "no rows"),
        ("label,z0,z1\n0,1.0\n", "got 2 at row 0"),
        ("label,z0,z1\n0,1.0,x\n", "got 'x' in column 'z1'"),
        ("label,z0,z1\n0,1.0,nan\n", "got NaN at row 0"),
        ("label,z0,z1\n7,1.0,3.0\n", "0..1"),
        ("label,z0,z1\nfox,1.0,3.0\n", "got 'fox' at row 0"),
        ("label,z0\n0,1.0\n", "got 1"),
        ("split,label,z0,z1\ntrain,0,1.0,3.0\n", "got 'train' at row 0"),
        ("split,label,z0,z1\ntest,0,1.0,3.0\n", "'val'"),
        ("label,z0,z1\n0,0.4,0.6\n1,0.2,0.8\n", "prob_<class>"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_logits(csv_file(tmp_path, text))


PROBS = np.array([[0.7, 0.2, 0.1], [0.0, 0.25, 0.75], [0.5, 0.5, 0.0]])


def test_probabilities_in_a_csv_become_log_probabilities(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "prob_cat,prob_dog,label\n0.25,0.75,dog\n1.0,0.0,cat\n")
    data = load_logits(path)
    np.testing.assert_allclose(data.val.logits, np.log([[0.25, 0.75], [1.0, 0.125]]))
    assert data.val.labels.tolist() == [1, 0]
    assert data.class_names == ["cat", "dog"]


def test_probabilities_in_an_npz_become_log_probabilities(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", val_probs=PROBS, val_labels=[0, 2, 1], test_probs=PROBS[:1], test_labels=[0])
    data = load_logits(tmp_path / "p.npz")
    floor = PROBS[PROBS > 0].min() / 2
    np.testing.assert_allclose(data.val.logits, np.log(np.maximum(PROBS, floor)))
    assert data.test is not None
    assert data.val.prob_floor == data.test.prob_floor == pytest.approx(floor)
    assert load_unlabelled(tmp_path / "p.npz")[0].keys() == {"val_", "test_"}


def test_columns_without_a_prefix_are_ignored_if_others_have_one(tmp_path: Path) -> None:
    text = "id,text,logit_cat,logit_dog,label,prediction\n0,a,1.5,0.5,cat,dog\n1,b,0.5,2.5,logit_dog,dog\n"
    data = load_logits(csv_file(tmp_path, text))
    assert data.val.logits.tolist() == [[1.5, 0.5], [0.5, 2.5]]
    assert data.val.labels.tolist() == [0, 1]  # labels are class names or column names
    assert data.class_names == ["cat", "dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,b,label\n0,1.5,2,0\n1,3,4,1\n2,5,2,0\n", "column 'id'"),
        ("a,b,true\n1.5,2,a\n", "got 'a' in column 'true' at row 0"),
        ("a,b\n1.5,2\n", "'label'"),
        ("label,a,b\n0,0.4,0.6\n1,0.2,0.8\n", "prob_<class>"),
        ("label,prob_a,prob_b\n0,0.4,0.1\n", "got 0.5 at row 0"),
    ],
)
def test_common_mistakes_in_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_logits(csv_file(tmp_path, text))


def test_probabilities_rounded_to_two_digits_are_read(tmp_path: Path) -> None:
    data = load_logits(csv_file(tmp_path, "label,prob_a,prob_b,prob_c\n0,0.33,0.33,0.33\n1,0.34,0.34,0.33\n"))
    np.testing.assert_allclose(data.val.logits[0], np.log(1 / 3))


def test_probabilities_are_not_read_in_batches(tmp_path: Path) -> None:
    save_table(tmp_path / "p.parquet", {"label": np.array([0, 2, 1]), "prob": PROBS})
    with pytest.raises(ValueError, match="prob_0"):
        open_batches(tmp_path / "p.parquet")


def test_truncated_npz_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    content = (tmp_path / "a.npz").read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.99):
        (tmp_path / "cut.npz").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ValueError, match=r"cut\.npz must"):
            load_logits(tmp_path / "cut.npz")


def test_flipped_bytes_in_npz_never_change_what_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    rng = np.random.default_rng(1)
    n_refused = longest = 0
    for _ in range(200):
        damaged = content.copy()
        damaged[rng.integers(len(damaged))] ^= int(rng.integers(1, 256))
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            data = load_logits(tmp_path / "b.npz")
        except ValueError as error:
            n_refused += 1
            longest = max(longest, len(str(error)))
        else:  # the damage is in bytes that are not used, such as a date
            np.testing.assert_array_equal(data.val.logits, LOGITS)
            np.testing.assert_array_equal(data.val.labels, LABELS)
    assert n_refused > 100
    assert longest < 400


def test_pickled_arrays_are_refused_and_not_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "x_logits.npy", trap, allow_pickle=True)
    np.save(tmp_path / "x_labels.npy", LABELS)
    (tmp_path / "y_logits.npy").write_bytes(pickle.dumps(Trap()))
    np.save(tmp_path / "y_labels.npy", LABELS)
    np.savez(tmp_path / "z.npz", logits=trap, labels=LABELS)
    (tmp_path / "p.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("x_logits.npy", "y_logits.npy", "z.npz", "p.npz"):
        with pytest.raises(ValueError, match="pickle"):
            load_logits(tmp_path / name)
    with pytest.raises(ValueError, match="pickle"):
        open_batches(tmp_path / "x_logits.npy")
    for name in ("old.npy", "old.npz"):  # protocol 0 has no signature
        (tmp_path / name).write_bytes(pickle.dumps(Trap(), 0))
        with pytest.raises(ValueError, match="complete"):
            load_unlabelled(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_the_remedy_for_pickled_text_works(tmp_path: Path) -> None:
    labels = np.array(["a", "b"] * 10, dtype=object)  # a column of text of pandas
    arrays = {"logits": np.eye(2)[[0, 1] * 10] * 3, "class_names": ["a", "b"]}
    np.savez(tmp_path / "text.npz", labels=labels, **arrays)
    with pytest.raises(ValueError, match=r"pickled objects in 'labels'.*dtype str"):
        load_logits(tmp_path / "text.npz")
    np.savez(tmp_path / "text.npz", labels=np.asarray(labels, dtype=str), **arrays)
    assert load_logits(tmp_path / "text.npz").val.labels.tolist() == [0, 1] * 10


def test_an_archive_named_npy_and_an_array_named_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS)
    (tmp_path / "a.npz").rename(tmp_path / "b.npy")
    with pytest.raises(ValueError, match=r"b\.npy must"):
        load_unlabelled(tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", LOGITS)
    (tmp_path / "c.npy").rename(tmp_path / "d.npz")
    with pytest.raises(ValueError, match=r"name it \.npy"):
        load_unlabelled(tmp_path / "d.npz")


def test_arrays_with_text_field_names(tmp_path: Path) -> None:
    records = np.zeros(3, dtype=[("é", float)])  # needs version 3 of the header
    np.save(tmp_path / "a.npy", records)
    with pytest.raises(TypeError, match="logits must"):
        load_unlabelled(tmp_path / "a.npy")


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        load_logits(tmp_path)
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        load_logits(tmp_path / "nothing.npz")
    (tmp_path / "a.mat").write_text("")
    with pytest.raises(ValueError, match=r"must .*\.npz"):
        load_logits(tmp_path / "a.mat")
    with pytest.raises(ValueError, match=" must "):
        save_table(tmp_path / "a.txt", {"p": LOGITS})


def test_the_error_lists_the_arrays_of_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", scores=LOGITS)
    with pytest.raises(ValueError, match=r"got \['scores'\]"):
        load_logits(tmp_path / "a.npz")


def test_sets_with_different_columns_are_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        val_logits=LOGITS,
        val_labels=LABELS,
        test_logits=LOGITS[:, :3],
        test_labels=LABELS % 3,
    )
    with pytest.raises(ValueError, match=r"test_logits must .*4"):
        load_logits(tmp_path / "a.npz")


def test_repeated_class_names_do_not_lose_columns(tmp_path: Path) -> None:
    probs = np.array([[0.5, 0.3, 0.2]])
    save_table(tmp_path / "p.csv", {"probs": probs}, ["twin", "twin", "other"])
    assert (tmp_path / "p.csv").read_text().split() == ["probs_0,probs_1,probs_2", "0.5,0.3,0.2"]
    with pytest.raises(ValueError, match="class_names"):
        save_table(tmp_path / "q.csv", {"probs": probs}, ["a", "b"])
    assert not (tmp_path / "q.csv").exists()


def test_an_npy_header_that_ends_too_soon_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x_labels.npy", LABELS)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), "  # no brace at the end
    (tmp_path / "x_logits.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"x_logits\.npy must"):
        load_logits(tmp_path / "x_logits.npy")


def test_parquet_columns_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for values in ([[1.0], [2.0, 3.0]], [{"a": 1}, None], [b"\xff", b"x"]):
        pq.write_table(pa.table({"label": [0, 1], "a": values, "b": [1.0, 2.0]}), tmp_path / "t.parquet")
        with pytest.raises(ValueError, match="in column 'a'"):
            load_logits(tmp_path / "t.parquet")
        pq.write_table(pa.table({"label": values, "0": [1.0, 2.0], "1": [3.0, 2.0]}), tmp_path / "t.parquet")
        with pytest.raises(ValueError, match="label must"):
            load_logits(tmp_path / "t.parquet")


def test_parquet_with_damaged_column_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_table(path, {"label": LABELS, "feline": LOGITS[:, 0], "canine": LOGITS[:, 1]})
    path.write_bytes(path.read_bytes().replace(b"feline", b"fel\x8dne"))
    with pytest.raises(ValueError, match=r"t\.parquet must"):
        load_logits(path)


def test_a_single_class_name_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, class_names=np.array("cat"))
    with pytest.raises(ValueError, match=r"class_names must .*got 1"):
        load_logits(tmp_path / "a.npz")


def test_invalid_unicode_is_refused(tmp_path: Path) -> None:
    names = np.frombuffer(b"\x00\x00\x2d\x00" * 3, dtype="<U1")  # above the largest code point
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, class_names=names)
    with pytest.raises(ValueError, match=r"a\.npz must"):
        load_logits(tmp_path / "a.npz")


def test_other_members_of_an_archive_are_ignored(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README", "rows of a test")
    assert load_logits(tmp_path / "a.npz").val.logits.shape == LOGITS.shape


def test_parquet_that_declares_too_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_table(path, {"logits": np.tile(LOGITS, (20, 1)), "label": np.tile(LABELS, 20)})
    rows = 20 * len(LABELS)
    content = path.read_bytes()
    # Zigzag varint of Thrift: 2n in groups of seven bits.
    count = bytes([0x80 | (2 * rows & 0x7F), 2 * rows >> 7])
    last = content.rindex(count)  # the count of the row group follows that of the file
    path.write_bytes(
        content[:last] + bytes([0x80 | (2 * rows & 0x7F), (2 * rows >> 7) + 64]) + content[last + 2 :]
    )
    with pytest.raises(ValueError, match=r"t\.parquet must"):
        load_logits(path)


def test_prefixed_columns_may_contain_consecutive_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,logit_a,logit_b\n0,1,2\n1,2,0\n0,3,1\n")
    assert load_logits(tmp_path / "a.csv").val.logits.tolist() == [[1, 2], [2, 0], [3, 1]]
    (tmp_path / "a.csv").write_text("label,a,b\n0,1,2\n1,2,0\n0,3,1\n")
    with pytest.raises(ValueError, match=r"column 'a'.*logit_<class>"):
        load_logits(tmp_path / "a.csv")


@pytest.mark.parametrize("order", "<>")
def test_names_with_invalid_characters_are_refused(tmp_path: Path, order: str) -> None:
    names = np.array([[0x61, 0x8A8A8A62], [0x62, 0]], f"{order}u4").view(f"{order}U2").ravel()
    np.savez(tmp_path / "a.npz", logits=np.eye(2), labels=[0, 1], class_names=names)
    with pytest.raises(ValueError, match=r"a\.npz must"):
        load_logits(tmp_path / "a.npz")


def numbered(names: list[int], prefix: str = "") -> tuple[list[str], np.ndarray, np.ndarray]:
    """Numbered column names, logits of a model that is always correct, and labels that are these numbers."""
    rng = np.random.default_rng(3)
    position = rng.integers(0, len(names), 60)
    logits = rng.normal(size=(60, len(names))).astype(np.float32)
    logits[np.arange(60), position] += 20
    return [f"{prefix}{name}" for name in names], logits, np.array(names)[position]


def accuracy(split: Split) -> float:
    return float(np.mean(split.logits.argmax(axis=1) == split.labels))


NUMBERS = {
    "in lexicographic order": [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9],
    "from 1": [1, 2, 3],
    "with gaps": [3, 7, 100],
    "with signs": [-1, 1],
    "permuted": [2, 0, 1],
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("prefix", ["", "logit_", "z_", "class "])
@pytest.mark.parametrize("case", NUMBERS)
def test_labels_are_the_numbers_of_numbered_columns(
    tmp_path: Path, kind: str, prefix: str, case: str
) -> None:
    columns, logits, labels = numbered(NUMBERS[case], prefix)
    table = {"label": labels, **dict(zip(columns, logits.T, strict=True))}
    save_table(tmp_path / f"a.{kind}", table)
    data = load_logits(tmp_path / f"a.{kind}")
    assert accuracy(data.val) == 1
    assert data.class_names == [str(name) for name in NUMBERS[case]]
    if kind == "parquet":
        (batch,) = open_batches(tmp_path / "a.parquet")
        assert np.mean(batch[0].argmax(axis=1) == batch[1]) == 1
        (batch,) = Batches.from_parquet(tmp_path / "a.parquet")
        assert np.mean(batch[0].argmax(axis=1) == batch[1]) == 1
        position = np.array([NUMBERS[case].index(label) for label in labels])
        save_table(tmp_path / "b.parquet", table | {"label": position})
        # Labels are positions in `columns`.
        (batch,) = Batches.from_parquet(tmp_path / "b.parquet", logits=columns)
        np.testing.assert_array_equal(batch[1], position)


@pytest.mark.parametrize("written", ["{}", "{}.0", " {} ", "{}e0", "logit_{}"])
def test_labels_of_numbered_columns_can_be_written_in_many_ways(tmp_path: Path, written: str) -> None:
    path = write_csv(
        tmp_path / "a.csv",
        ["label", "logit_10", "logit_2"],
        [[written.format(10), 5.5, 1], [written.format(2), 1, 3]],
    )
    assert load_logits(path).val.labels.tolist() == [0, 1]


@pytest.mark.parametrize("label", ["0", "4", "1.5", "nan", "inf", "-inf", "fox", "9" * 5000, "1e300", ""])
def test_labels_that_name_no_numbered_column_are_refused(tmp_path: Path, label: str) -> None:
    path = write_csv(tmp_path / "a.csv", ["label", "1", "2", "3"], [[3, 0, 1.5, 2], [label, 1, 2, 0]])
    with pytest.raises(ValueError, match=r"a.csv: label must .*at row 1") as caught:
        load_logits(path)
    assert len(str(caught.value)) < 300


def test_the_remedy_for_labels_that_count_from_0_works(tmp_path: Path) -> None:
    rows: list[list[object]] = [[0, 3.5, 1, 0], [2, 0, 1, 4]]
    with pytest.raises(ValueError, match="got '0' at row 0"):
        load_logits(write_csv(tmp_path / "a.csv", ["label", "z1", "z2", "z3"], rows))
    data = load_logits(write_csv(tmp_path / "a.csv", ["label", "0", "1", "2"], rows))
    assert data.val.labels.tolist() == [0, 2]
    assert data.class_names == ["0", "1", "2"]


@pytest.mark.parametrize("labels", [["1", "2"], ["1", "none"]])
def test_labels_that_may_be_names_or_numbers(tmp_path: Path, labels: list[str]) -> None:
    rows: list[list[object]] = [[label, 3.5, 1, 0] for label in labels]
    path = write_csv(tmp_path / "a.csv", ["label", "1", "2", "none"], rows)
    if "none" in labels:  # all labels are names, since one of them is not a number
        assert load_logits(path).val.labels.tolist() == [0, 2]
    else:
        with pytest.raises(ValueError, match=r"label must .*'1'"):
            load_logits(path)


@pytest.mark.parametrize(
    ("header", "label", "message"),
    [
        (["1", "2", "2"], "2", "got '2' and '2'"),
        (["1", "01", "3"], "1", "got '1' and '01'"),
        (["cat", "cat", "dog"], "cat", "got 'cat' at row 0"),
        (["logit_cat", "Logit_cat", "logit_dog"], "cat", "got 'cat' at row 0"),
        (["1", "9" * 5000, "3"], "1", "18 digits"),
        (["label", "a", "b"], "0", "'label', got 2"),
    ],
)
def test_ambiguous_columns_are_refused(tmp_path: Path, header: list[str], label: str, message: str) -> None:
    path = write_csv(tmp_path / "a.csv", ["label", *header], [[label, 1.5, 2, 0], [label, 0, 2, 1]])
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_logits(path)
    assert len(str(caught.value)) < 300


def test_columns_that_share_a_name_are_all_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ["label", "a", "a", "b"], [[1, 0.5, 3, 1], [2, 0, 0.5, 2]])
    data = load_logits(path)
    assert data.val.logits.tolist() == [[0.5, 3, 1], [0, 0.5, 2]]
    assert data.class_names == ["a", "a", "b"]
    assert accuracy(data.val) == 1


def test_columns_of_parquet_that_share_a_name_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = [pa.array(v) for v in ([1, 2], [0.5, 0.0], [3.0, 0.5], [1.0, 2.0])]
    pq.write_table(pa.table(columns, names=["label", "a", "a", "b"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: columns .*'a'"):
        load_logits(tmp_path / "a.parquet")
    for read in (open_batches, Batches.from_parquet):
        with pytest.raises(ValueError, match="path must"):
            read(tmp_path / "a.parquet")
    dataset = pytest.importorskip("pyarrow.dataset").dataset(pq.ParquetFile(tmp_path / "a.parquet").read())
    with pytest.raises(ValueError, match=r"columns .*'a'"):
        Batches.from_parquet(dataset)


@pytest.mark.parametrize("labels", [[0, 1], ["dog", "cat"]])
def test_labels_of_named_columns_are_positions_or_names(tmp_path: Path, labels: list[object]) -> None:
    path = write_csv(tmp_path / "a.csv", ["label", "dog", "cat"], [[labels[0], 2.5, 1], [labels[1], 0, 3]])
    assert load_logits(path).val.labels.tolist() == [0, 1]


@pytest.mark.parametrize("header", [",a,b,label", "Unnamed: 0,a,b,label", ",Unnamed: 0,a,b,label"])
def test_the_index_of_a_csv_is_not_a_class(tmp_path: Path, header: str) -> None:
    lead = ["7", "9", "8"] if header.count(",") == 3 else ["7,0", "9,1", "8,2"]
    lines = [f"{i},{row}" for i, row in zip(lead, ("1.5,2,1", "3,4,1", "5,2,0"), strict=True)]
    data = load_logits(csv_file(tmp_path, "\n".join([header, *lines]) + "\n"))
    assert data.class_names == ["a", "b"]
    assert data.val.logits.tolist() == [[1.5, 2], [3, 4], [5, 2]]


@pytest.mark.parametrize("index", ["unnamed", "named", "two levels", "range", "label", "group"])
def test_the_index_of_a_data_frame_is_not_a_class(tmp_path: Path, index: str) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(20, 3)), columns=["a", "b", "c"])
    frame["label"] = rng.integers(0, 3, 20)
    frame["group"] = rng.integers(0, 2, 20)
    keys = rng.permutation(20)
    stored = {
        "unnamed": lambda: frame.set_axis(keys, axis=0),
        "named": lambda: frame.set_axis(pd.Index(keys, name="key"), axis=0),
        "two levels": lambda: frame.set_axis(pd.MultiIndex.from_arrays([keys, keys[::-1]]), axis=0),
        "range": lambda: frame,
        "label": lambda: frame.set_index("label"),
        "group": lambda: frame.set_index("group"),
    }[index]()
    stored.to_parquet(tmp_path / "a.parquet")
    data = load_logits(tmp_path / "a.parquet")
    assert data.class_names == ["a", "b", "c"]
    batches = [
        *open_batches(tmp_path / "a.parquet", groups=True),
        *Batches.from_parquet(tmp_path / "a.parquet", groups="group"),
    ]
    assert data.val.groups is not None
    for z, y, _, g in ((data.val.logits, data.val.labels, None, data.val.groups.astype(int)), *batches):
        np.testing.assert_array_equal(z, frame[["a", "b", "c"]])
        np.testing.assert_array_equal(y, frame["label"])
        np.testing.assert_array_equal(g, frame["group"])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("label,prob_é,prob_b\né,0.5,0.5\n", encoding=encoding)
    with pytest.raises(ValueError, match=r"rows\.csv must be .* UTF-8, got the byte 0x[ef]\w"):
        load_logits(path)


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"index_columns": null}', b'{"index_columns": [{}]}', b"\xff"]
)
def test_damaged_pandas_metadata_are_ignored(tmp_path: Path, metadata: bytes) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"label": [0, 1], "a": [1.5, 0], "b": [1.0, 2]}).replace_schema_metadata(
        {"pandas": metadata}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert load_logits(tmp_path / "a.parquet").val.logits.shape == (2, 2)


def test_options_that_do_not_fit_the_format(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", LOGITS)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    save_table(tmp_path / "a.parquet", {"label": LABELS, "logit": LOGITS})
    save_table(tmp_path / "unlabelled.parquet", {"logit": LOGITS})
    with pytest.raises(ValueError, match="labels must"):
        load_logits(tmp_path / "a.npz", labels=tmp_path / "z.npy")
    with pytest.raises(ValueError, match="labels must"):
        open_batches(tmp_path / "a.parquet", labels=tmp_path / "z.npy")
    with pytest.raises(ValueError, match="path must"):
        open_batches(tmp_path / "z.npy", groups=True)
    with pytest.raises(ValueError, match="'group'"):
        open_batches(tmp_path / "a.parquet", groups=True)
    with pytest.raises(ValueError, match="'label'"):
        open_batches(tmp_path / "unlabelled.parquet")
    with pytest.raises(ValueError, match="path must"):
        open_batches(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_batches(tmp_path / "none.npy")
    np.savez(tmp_path / "b.npz", labels=LABELS)
    with pytest.raises(ValueError, match="must contain an array"):
        load_unlabelled(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("columns", "keyword"),
    [
        ({"prob_a": [0.5, 0.5], "prob_b": [0.5, 0.5]}, "probabilities"),
        ({"a": [0.5, 1.5], "b": ["x", "y"]}, "logits="),
        ({"a": [[0.5, 1.5], [1.0, 2.0]], "b": [[1.0], [2.0]]}, "logits="),
        ({"a": [[0.5, 1.5], None]}, "missing"),
    ],
)
def test_parquet_columns_that_are_not_logits(
    tmp_path: Path, columns: dict[str, list[object]], keyword: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": [0, 1], **columns}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=keyword):
        list(Batches.from_parquet(tmp_path / "a.parquet"))


def test_a_single_column_of_numbers_is_refused(tmp_path: Path) -> None:
    save_table(tmp_path / "a.parquet", {"label": LABELS, "logit": LOGITS})
    with pytest.raises(ValueError, match="columns"):
        list(Batches.from_parquet(tmp_path / "a.parquet", logits="logit_0"))


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_table(tmp_path / "a.parquet", {"label": LABELS, "logit": LOGITS})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (
        lambda: load_logits(tmp_path / "a.parquet"),
        lambda: open_batches(tmp_path / "a.parquet"),
        lambda: save_table(tmp_path / "b.parquet", {"logit": LOGITS}),
    ):
        with pytest.raises(ImportError, match=r"hetcal\[files\]"):
            call()
    assert not (tmp_path / "b.parquet").exists()


DELIMITERS = [",", ";", "\t", "|", " "]


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    lines = [["label", "dog", "cat"], ["cat", "1.5", "-2e-3"], ["dog", "0.25", "3"]]
    text = "\n".join(delimiter.join(line) for line in lines)
    rows = load_logits(csv_file(tmp_path, text)).val
    assert rows.logits.tolist() == [[1.5, -2e-3], [0.25, 3]]
    assert rows.labels.tolist() == [1, 0]


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_names_may_contain_other_delimiters(tmp_path: Path, delimiter: str) -> None:
    names = [f"q{other}r" for other in DELIMITERS if other != "\t"]
    header = [f"logit_{name}" for name in names]
    path = tmp_path / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [[name, *range(k, k + 4)] for k, name in enumerate(names)]
        csv.writer(file, delimiter=delimiter).writerows([["label", *header], *rows])
    data = load_logits(path)
    assert data.class_names == names
    assert data.val.labels.tolist() == [0, 1, 2, 3]
    assert data.val.logits.tolist() == [[k, k + 1, k + 2, k + 3] for k in range(4)]


def test_a_file_of_tabs_may_end_in_tsv(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("y_true\ta\tb\n0\t1.5\t2\n", encoding="utf-8")
    assert load_logits(path).val.logits.tolist() == [[1.5, 2]]


def test_columns_aligned_with_spaces(tmp_path: Path) -> None:
    text = "label     a     b\n    0   1.5  -2.0\n    1  10.0   3.0\n"
    assert load_logits(csv_file(tmp_path, text)).val.logits.tolist() == [[1.5, -2], [10, 3]]


def test_rows_longer_than_the_limit_of_a_csv_field(tmp_path: Path) -> None:
    n_classes = 30_000  # a row has more characters than a field may have
    lines = [["label", *range(n_classes)], *([y, *[0.125] * n_classes] for y in range(2))]
    text = "\n".join("\t".join(map(str, line)) for line in lines)
    assert load_logits(csv_file(tmp_path, text)).val.logits.shape == (2, n_classes)


@pytest.mark.parametrize(
    "text", ["label;a;b\n0;1,5;2,5\n", 'label,a,b\n0,"1,5","2,5"\n', "label\ta\n0\t,5\n"]
)
def test_decimal_commas_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"decimal points, got '1?,5' in column 'a' at row 0; .* points"):
        load_logits(csv_file(tmp_path, text))


@pytest.mark.parametrize("name", ["label", "Labels", "y", "y_true", "target"])
def test_usual_names_of_labels(tmp_path: Path, name: str) -> None:
    assert load_logits(csv_file(tmp_path, f"a,b,{name}\n1,2,b\n3,4,a\n")).val.labels.tolist() == [1, 0]


@pytest.mark.parametrize("header", ["confidence,predicted", "cat,Prediction", "confidence"])
def test_predictions_are_not_read_as_scores(tmp_path: Path, header: str) -> None:
    path = tmp_path / "top1.csv"
    values = ",".join(["0.5"] * len(header.split(",")))
    path.write_text(f"{header},label\n{values},0\n{values},1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must have a column of scores for each class, .*predicted=\.\.\."):
        load_logits(path)
    prefixed = ",".join(f"logit_{name}" for name in ("a", "b", "confidence"))
    path.write_text(f"{prefixed},predicted,label\n1,0,2,5,0\n0,1,3,5,1\n", encoding="utf-8")
    assert load_logits(path).class_names == ["a", "b", "confidence"]


def test_several_columns_of_labels_are_ambiguous(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "label,target,a,b\n0,1,1,2\n1,1,3,5\n")
    with pytest.raises(ValueError, match=r"one column of labels, got 'label' and 'target'; .*label_column"):
        load_logits(path)
    path = csv_file(tmp_path, "label,target,logit_a,logit_b\n0,1,1,2\n1,1,3,5\n")
    assert load_logits(path, label_column="label").val.labels.tolist() == [0, 1]
    assert load_logits(path, label_column="target").val.labels.tolist() == [1, 1]
    path = csv_file(tmp_path, "label,x,y\n0,1,2\n1,3,5\n")
    assert load_logits(path, label_column="label").class_names == ["x", "y"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_named_label_and_id_columns(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    columns = {"case": ["007", "008", "009"], "outcome": ["a", "b", "b"], "a": [1.0, 2, 5], "b": [2.0, 1, 3]}
    save_table(path, columns)
    data = load_logits(path, label_column="outcome", id_column="case")
    assert data.class_names == ["a", "b"]
    assert data.val.labels.tolist() == [0, 1, 1]
    assert data.val.ids is not None
    assert data.val.ids.tolist() == ["007", "008", "009"]
    splits, names = load_unlabelled(path, label_column="outcome", id_column="case")
    assert names == ["a", "b"]
    assert splits[""].ids is not None


def test_ids_are_divided_like_the_rows(tmp_path: Path) -> None:
    text = "id,split,label,a,b\nx,val,0,1,2\ny,test,1,2,1\nz,val,1,2,3\n"
    data = load_logits(csv_file(tmp_path, text), id_column="id")
    assert data.val.ids is not None
    assert data.val.ids.tolist() == ["x", "z"]
    assert data.test is not None
    assert data.test.ids is not None
    assert data.test.ids.tolist() == ["y"]


def test_errors_of_named_columns(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "id,label,a,b\nx,0,1,2\ny,1,2,1\n")
    with pytest.raises(
        ValueError, match=r"label_column must be .* got 'outcome'; choose one of id, label, a"
    ):
        load_logits(path, label_column="outcome")
    with pytest.raises(ValueError, match="id_column must differ from the column of the labels, got 'label'"):
        load_logits(path, label_column="label", id_column="label")
    np.savez(tmp_path / "z.npz", logits=LOGITS, labels=LABELS)
    with pytest.raises(ValueError, match=r"id_column must be left out for \.npz files"):
        load_logits(tmp_path / "z.npz", id_column="id")
    np.save(tmp_path / "logits.npy", LOGITS)
    with pytest.raises(ValueError, match=r"label_column must be left out for \.npy files"):
        open_batches(tmp_path / "logits.npy", label_column="y")
    with pytest.raises(ValueError, match="id_column must differ from the columns of the output"):
        save_table(tmp_path / "p.csv", {"probs": np.eye(2)}, ["a", "b"], {"prob_a": [1, 2]})


def test_named_columns_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    save_table(path, {"case": np.arange(3), "outcome": [0, 1, 1], "a": [1.0, 2, 5], "b": [2.0, 1, 3]})
    batches = open_batches(path, label_column="outcome", id_column="case")
    assert batches.class_names == ["a", "b"]
    assert [y for _, labels, _, _ in batches for y in labels] == [0, 1, 1]


P1 = [0.75, 0.5, 0.125, 0.0]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "labels", "names", "by_name"),
    [
        ("prob_1", [1, 0, 0, 1], ["0", "1"], False),
        ("prob_spam", [1, 0, 0, 1], ["not spam", "spam"], False),
        ("prob_spam", ["spam", "ham", "ham", "spam"], ["ham", "spam"], True),
        ("Prob_spam", ["spam"] * 2 + ["no"] * 2, ["no", "spam"], True),
    ],
)
def test_one_column_of_probabilities(
    tmp_path: Path, kind: str, column: str, labels: list[object], names: list[str], by_name: bool
) -> None:
    path = tmp_path / f"table.{kind}"
    save_table(path, {"note": ["n1", "n2", "n3", "n4"], "label": labels, column: P1})
    data = load_logits(path)
    assert data.has_one_column
    assert data.class_names == names
    assert data.labels_by_name == by_name
    assert data.val.labels.tolist() == [int(label in (1, "spam")) for label in labels]
    assert data.val.probs is not None
    assert data.val.probs.tolist() == [[1 - p, p] for p in P1]
    assert data.val.prob_floor == 0.0625


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_labels_are_not_a_class(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    save_table(path, {"label": np.array(["spam", None, "spam", "spam"], object), "prob_spam": P1})
    with pytest.raises(ValueError, match="label must name a class in every row, got '' at row 1"):
        load_logits(path)


def test_one_probability_per_row_of_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", probs=np.array(P1), labels=["y", "n", "n", "y"], class_names=["n", "y"])
    data = load_logits(tmp_path / "p.npz")
    assert data.val.labels.tolist() == [1, 0, 0, 1]
    assert data.val.probs is not None
    assert data.val.probs[:, 1].tolist() == P1


def test_the_fit_names_class_0_of_one_column(tmp_path: Path) -> None:
    save_table(tmp_path / "p.csv", {"prob_spam": P1})
    assert load_unlabelled(tmp_path / "p.csv")[1] == ["not spam", "spam"]
    for names in (["ham", "spam"], ["spam", "ham"]):
        assert load_unlabelled(tmp_path / "p.csv", fit_names=names)[1] == ["ham", "spam"]
