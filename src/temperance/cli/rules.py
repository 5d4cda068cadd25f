"""``temperance rules``: the table of rules with their sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from temperance.cli.output import print_json, print_table


def rules(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the temperature rules: formula, source, and when to trust which."""
    rows = [_row(name) for name in _names()]
    if as_json:
        print_json({"rules": rows})
        return
    columns = ("rule", "norm", "needs", "formula", "source")
    print_table("Temperature rules", columns, [[_text(r[c]) for c in columns] for r in rows])
    print_table(
        "When to trust which", ("rule", "trust"), [[_text(r["rule"]), r["trust"]] for r in rows]
    )


def _names() -> list[str]:
    from temperance.rules import RULES

    return list(RULES)


def _row(name: str) -> dict[str, Any]:
    from temperance.rules import RULES

    rule = RULES[name]
    return {
        "rule": name,
        "norm": rule.norm,
        "needs": list(rule.needs),
        "formula": rule.formula,
        "source": rule.reference,
        "coefficients": asdict(rule),
        "domain": {"M": rule.domain.feature_dim, "C": rule.domain.n_classes},
        "domain_source": rule.domain.source,
        "fallback": rule.fallback,
        "trust": rule.trust,
    }


def _text(value: Any) -> str:
    return ", ".join(value) or "-" if isinstance(value, list) else str(value)
