"""Validation, passes over logits and solvers: what everything else stands on."""
