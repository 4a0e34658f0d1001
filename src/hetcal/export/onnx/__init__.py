"""ONNX graphs of calibrators; :mod:`hetcal.onnx` is the public interface."""
