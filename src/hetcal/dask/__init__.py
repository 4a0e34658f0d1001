"""The same calibrators on rows that are spread over a Dask cluster.

A pass over the rows is one task per block, on the worker that holds it, and a sum of their small results in
an order that is always the same: neither the number of workers nor the loss of one changes a bit of a fit.
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
    """Rows of a Dask array or dataframe, for any calibrator and for :func:`hetcal.evaluate`.

    Parameters
    ----------
    logits : Dask array (n, K), or Dask dataframe
        A chunk of rows, or a partition, is a block: some 10 to 200 MB are best.
    labels, sample_weight, groups : (n,) arrays of Dask or numpy; for a dataframe, names of its columns
    columns : names, for a dataframe
        Columns of the logits in the order of the classes, or one column of lists. By default all columns of
        numbers, or the one column, that no other argument names; if these are named with whole numbers other
        than 0, 1, 2, … in order, labels go by these names.
    client : distributed.Client, optional
        The current one by default; without any, Dask's scheduler on this machine does the work.
    persist : bool
        Whether checked blocks stay in the cluster's memory between passes (Dask spills what does not fit), or
        are made anew in each. Without a client they never stay.

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
    >>> round(cal.alpha_, 4)  # two of four right
    0.3466
    >>> cal.predict_proba(source).to_dask_array().compute().round(2)[:2]
    array([[0.5 , 0.25, 0.25],
           [0.25, 0.5 , 0.25]])
    """
    load_dask()
    beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
    given = {name: value for name, value in beside.items() if value is not None}
    if is_frame(logits):
        parts = frame_parts(logits, columns, given)
    elif columns is not None:
        raise ValueError(f"columns must be left out where logits are no Dask dataframe, got {columns!r}")
    else:
        parts = array_parts(logits, given)
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
    """Rows of a Parquet file or folder that every worker can read; each task reads some row groups of it.

    Parameters
    ----------
    path : file, folder or `pyarrow.dataset.Dataset`
    labels : column of the class numbers
    logits : columns in the order of the classes, or one column of lists
        By default all columns of numbers, or the one column of lists, that no other argument names and that
        are no index of a data frame. If these columns are named with whole numbers other than 0, 1, 2, … in
        order, labels go by these names: label 10 is the column named 10.
    sample_weight, groups : columns
    block_rows : int, optional
        Row groups are read together up to so many rows (about 16 million logits by default). A row group is
        never cut: write them with no more rows than a worker should hold at once.
    client, persist : as in :func:`rows`
    """
    load_dask()
    beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
    parts = parquet_parts(path, logits, beside, block_rows)
    return DaskRows(Store(parts, client_or_current(client), persist))
