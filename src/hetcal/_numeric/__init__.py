"""Numerical code for input that is already validated: sources of rows, passes over logits, solvers."""
