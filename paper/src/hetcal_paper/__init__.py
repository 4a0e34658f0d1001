"""The paper's experiments: data, networks, the grid of runs, the engine, results and figures.

The logits files that training writes are the border: `data`, `models`, `engine` and `train` know no
calibrator, `results` and `paper` know no network. Training needs the extra ``hetcal[train]``; importing
this package itself loads neither torch nor a data set.
"""
