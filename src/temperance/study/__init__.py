"""The study engine: sweeps over temperatures, rules refitted and judged on them.

A *trial* is one planned training, an *outcome* is what it gave, a ledger row is what is kept of it.
"""

__all__: list[str] = []
