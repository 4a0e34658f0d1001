"""Passes over logits, sources of rows and solvers, all of which work on validated input."""
