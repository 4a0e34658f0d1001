"""Calibration of rows that are distributed over a Dask cluster.

The rows are divided into blocks. A pass over the rows runs one task per block. If blocks stay in the memory
of the cluster, a task normally runs on the worker that holds its block. The results of the tasks are small,
and they are merged in a fixed order. A fit is therefore bit-identical for any number of workers, even if a
worker is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from hetcal.dask.parts import array_parts, frame_parts, is_frame, load_dask, parquet_parts
from hetcal.dask.source import DaskRows, Store, client_or_current

__all__ = ["DaskRows", "read_parquet", "rows"]


def rows(
    logits: Any,
    labels: ArrayLike | str,
    *,
    columns: str | list[str] | None = None,
    sample_weight: ArrayLike | str | None = None,
    groups: ArrayLike | str | None = None,
    client: Any = None,
    persist: bool = True,
) -> DaskRows:
    """Rows of a Dask array or dataframe, for calibrators and for :func:`hetcal.evaluate`.

    Parameters
    ----------
    logits : Dask array (n, K), or Dask dataframe
        Each chunk of rows, or each partition, is a block. Blocks of 10 to 200 MB work best.
    labels, sample_weight, groups : (n,) Dask or NumPy arrays; for a dataframe, names of its columns
    columns : names, for a dataframe
        Columns of the logits in the order of the classes, or one column of lists.

        By default, the columns of the other arguments and index columns, such as ``__null_dask_index__``, are
        left out. If several columns remain, the numeric ones contain the logits. If a single column remains,
        it must contain lists.

        The columns that are used by default may have numbers as names, such as ``10`` or ``logit_10``. If
        these numbers are not 0, 1, 2, … in order, labels refer to them: label 10 means the column with
        number 10.
    client : distributed.Client, optional
        The current client by default. If there is none, Dask's local scheduler runs the tasks.
    persist : bool
        Whether validated blocks stay in the cluster's memory between passes; Dask spills to disk what does
        not fit. If False, or without a client, blocks are read again in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> import hetcal
    >>> z, y = np.eye(3)[[0, 1, 2, 0]] * 2, np.array([0, 1, 0, 2])
    >>> source = rows(da.from_array(z, chunks=(2, 3)), y)
    >>> source
    DaskRows(2 blocks)
    >>> cal = hetcal.TemperatureScaling().fit(source)
    >>> round(cal.alpha_, 4)  # two of four correct
    0.3466
    >>> cal.predict_proba(source).to_dask_array().compute().round(2)[:2]
    array([[0.5 , 0.25, 0.25],
           [0.25, 0.5 , 0.25]])
    """
    load_dask()
    arguments = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
    present = {name: value for name, value in arguments.items() if value is not None}
    if is_frame(logits):
        parts = frame_parts(logits, columns, present)
    elif columns is not None:
        raise ValueError(
            f"columns must be left out unless logits are a Dask dataframe, got {columns!r}; pass a dataframe "
            "or leave out columns"
        )
    else:
        parts = array_parts(logits, present)
    return DaskRows(Store(parts, client_or_current(client), persist))


def read_parquet(
    path: str | Path | Any,
    *,
    labels: str = "label",
    logits: str | list[str] | None = None,
    sample_weight: str | None = None,
    groups: str | None = None,
    block_rows: int | None = None,
    client: Any = None,
    persist: bool = True,
) -> DaskRows:
    """Rows of a Parquet file or folder that every worker can read; each task reads one or more row groups.

    Parameters
    ----------
    path : file, folder or `pyarrow.dataset.Dataset`
    labels : column of the class numbers
    logits : columns in the order of the classes, or one column of lists
        By default, the numeric columns whose names start with ``logit_``, if there are at least two. If not,
        the only column of lists or, without columns of lists, all numeric columns. The columns of the other
        arguments and columns that store the index of a data frame are not used. With fewer than two
        ``logit_`` columns, several columns of lists or several numeric columns ``prob_…`` raise an error.

        The columns that are used by default may have numbers as names, such as ``10`` or ``logit_10``. If
        these numbers are not 0, 1, 2, … in order, labels refer to them: label 10 means the column with
        number 10.
    sample_weight, groups : columns, optional
    block_rows : int, optional
        Maximum number of rows in a block of several row groups. By default, such a block has at most about
        16 million logits. A row group is never divided, so each must fit in the memory of a worker.
    client, persist : as in :func:`rows`
    """
    load_dask()
    other_columns = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
    parts = parquet_parts(path, logits, other_columns, block_rows)
    return DaskRows(Store(parts, client_or_current(client), persist))
