"""Print the table of statistics for ``docs/methods.md``: ``python docs/docs_statistics.py``."""

from temperance.task.statistics import STATISTICS, StatisticSpec

COLUMNS = ("name", "formula", "unit", "x times a", "rotated", "shifted", "rows doubled", "source")


def row(spec: StatisticSpec) -> str:
    """One statistic as a line of the table."""
    scale = {None: "no law", 0: "same", 1: "a", 2: "a^2"}[spec.scale]
    cells = (
        f"`{spec.name}`",
        f"`{spec.formula}`".replace("|", "\\|"),
        spec.unit,
        scale,
        "same" if spec.rotation else "changes",
        "same" if spec.translation else "changes",
        spec.doubling,
        spec.reference,
    )
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The whole table."""
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join(head + [row(spec) for spec in STATISTICS.values()]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
