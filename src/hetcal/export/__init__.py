"""Fitted calibrators as maps, and their translation to PyTorch modules and ONNX graphs.

The submodules are not imported here, because `export.torch` and `export.onnx` need optional packages.
"""
