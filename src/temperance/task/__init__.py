"""Data to task: collect features, measure statistics."""
