"""Fitted calibrators for other runtimes: the maps they are built from, PyTorch modules and ONNX graphs.

Nothing is imported here, because `maps` needs only NumPy while `torch` and `onnx` need optional packages.
"""
