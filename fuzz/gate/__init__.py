"""The gate: a candidate build against a baseline."""
