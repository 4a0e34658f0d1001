"""Fitted calibrators as maps, and their translation to PyTorch modules and ONNX graphs.

This module imports nothing, because `torch` and `onnx` need optional packages while `maps` does not.
"""
