"""Read and check options of the commands, such as class names, training counts, groups and label noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hetcal import artefact, logits_files
from hetcal._binary_probs import fitted_names, refuse_swapped
from hetcal._columns import column_order, counted_names
from hetcal._display import printable

__all__ = [
    "ADD_GROUPS",
    "check_column_order",
    "parse_gamma",
    "read_class_names",
    "read_counts",
    "read_groups",
    "read_label_noise",
    "required_groups",
    "select_class_names",
]

ADD_GROUPS = "add a column 'group' to a table, or an array 'groups' to an .npz file"


def select_class_names(
    path: Path | None, data: logits_files.LogitsFile, model: Any = None
) -> list[str] | None:
    """Return the class names in the file `path`, or those of the logits file if `path` is None.

    The result is None if neither file gives class names. If the logits file has a single class column, this
    column gives the name of class 1. If `path` is None and one of the two classes of the fitted `model` has
    that name, class 0 receives the name of the other.
    """
    if path is None:
        if data.has_one_column and data.class_names is not None:
            return fitted_names(data.class_names, getattr(model, "class_names_", None))
        return data.class_names
    names = read_class_names(path, data.val.logits.shape[1])
    columns = data.class_names
    if data.has_one_column and columns is not None:
        refuse_swapped(names, columns[1], "--classes")
    if columns is not None and names != columns and sorted(names) == sorted(columns):
        raise ValueError(
            f"--classes must list the classes in the order of the columns ({', '.join(columns[:9])}), got "
            f"{', '.join(names[:9])}; omit --classes, since the columns already have these names"
        )
    return names


def read_class_names(path: Path, n_classes: int) -> list[str]:
    """Read one class name from each line that is not blank, and replace unprintable characters."""
    names = [printable(line) for line in _read_lines(path, "--classes")]
    if len(names) != n_classes:
        raise ValueError(
            f"--classes must name {n_classes} classes, one per line, got {len(names)} in {str(path)!r}; "
            "list every class once"
        )
    return names


def read_groups(path: Path) -> list[str]:
    """Read one group per line. Only the end of the file may have blank lines."""
    groups = [line.strip() for line in _read_text(path, "--groups").rstrip().splitlines()]
    if "" in groups:
        raise ValueError(
            f"--groups must have a group on every line, got blank line {groups.index('') + 1} in "
            f"{str(path)!r}; write a name such as 'unknown' there"
        )
    return groups


def read_counts(path: Path) -> list[int]:
    """Read the last comma-separated field of each line that is not blank, and truncate it to an integer.

    The first line is skipped as a header unless its last field consists of digits and at most one point.
    """
    fields = [line.split(",")[-1].strip() for line in _read_lines(path, "--train-counts")]
    if fields and not fields[0].replace(".", "", 1).isdigit():
        fields = fields[1:]
    try:
        return [int(float(field)) for field in fields]
    except (ValueError, OverflowError):  # int(float("inf")) raises OverflowError
        raise ValueError(
            f"--train-counts must contain one finite number per line, got something else in {str(path)!r}; "
            "write numbers only, in the order of the classes"
        ) from None


def read_label_noise(noise_rate: str | None, transition: Path | None) -> list[Any] | float | None:
    """Return the noise rate or rates, or the rows of the transition matrix, or None if neither is passed."""
    if noise_rate is not None and transition is not None:
        raise ValueError(
            "--noise-rate must be left out if --transition is passed, got both; pass one of them"
        )
    if noise_rate is not None:
        rates = _parse_numbers(noise_rate, "--noise-rate must be a number, or one number per class,")
        if not all(0 <= rate < 1 for rate in rates):
            raise ValueError(
                f"--noise-rate must be at least 0 and less than 1, got {noise_rate!r}; pass the fraction of "
                "the labels that were replaced by random ones"
            )
        return rates[0] if len(rates) == 1 else rates
    if transition is None:
        return None
    lines = _read_lines(transition, "--transition")
    rule = f"--transition must contain numbers, separated by commas, in every line of {str(transition)!r},"
    rows = [_parse_numbers(line, rule) for line in lines]
    uneven = next((i for i, row in enumerate(rows) if len(row) != len(rows)), None)
    if uneven is not None or not rows:
        width = len(rows[uneven]) if uneven is not None else 0
        raise ValueError(
            f"--transition must contain a square matrix, got {width} numbers in line {(uneven or 0) + 1} of "
            f"{len(rows)} in {str(transition)!r}; write one line per true class, with one number per class"
        )
    return rows


def parse_gamma(text: str | None) -> float | str | None:
    """Parse ``--gamma``: a number, ``inf``, ``cv`` or ``bayes``; None stays None."""
    if text is None or text in ("cv", "bayes"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--gamma must be a number, inf, cv or bayes, got {text!r}; pass one of these"
        ) from None


def check_column_order(model: Any, names: list[str] | None, data: logits_files.LogitsFile) -> None:
    """Raise an error if labels are numbers and the columns are in another order than in the fit."""
    if names is None or data.labels_by_name or data.has_one_column:
        return
    fitted = getattr(model, "class_names_", None)
    if column_order(fitted, names) is not None:
        raise ValueError(
            "labels must be class names if the columns are in another order than in the fit, got numbers in "
            f"{data.path!r}; write the labels as class names, or put the columns in the order "
            f"{', '.join((fitted or counted_names(len(names)))[:9])}"
        )


def required_groups(model: Any, rows: logits_files.Split, path: Path) -> Any:
    """Return the groups of the rows if the calibrator was fitted by group, otherwise None."""
    if not artefact.uses_groups(model):
        return None
    if rows.groups is None:
        raise ValueError(
            "LOGITS must have a group for every row, since the calibrator was fitted by group, got none in "
            f"{path.name!r}; {ADD_GROUPS}"
        )
    return rows.groups


def _parse_numbers(text: str, rule: str) -> list[float]:
    """Parse numbers separated by commas; `rule` is the beginning of the message if this fails."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{rule} got {text!r}; write numbers such as 0.1,0.9") from None


def _read_lines(path: Path, option: str) -> list[str]:
    """Read the lines of a text file that are not blank."""
    return [line.strip() for line in _read_text(path, option).splitlines() if line.strip()]


def _read_text(path: Path, option: str) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(
            f"{option} must be a text file in UTF-8, got another encoding or binary data in {str(path)!r}; "
            "save it as plain text in UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{option} must be a readable file, got {str(path)!r} ({error.strerror}); check the path"
        ) from None
