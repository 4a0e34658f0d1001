"""Numerical routines: sources of rows, passes over logits, and solvers. They expect validated input."""
