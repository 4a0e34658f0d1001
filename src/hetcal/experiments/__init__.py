"""Training runs of the paper: data, networks, the grid of runs and the engine.

The logits files that training writes are the border to the rest of the library: nothing here
knows a calibrator. Needs the extra ``hetcal[train]``; importing this package itself loads neither
torch nor a data set.
"""
