"""Task to temperature: the table of rules, and ``suggest``.

A rule is a frozen dataclass whose fields are its coefficients; ``rule(task)`` gives its
temperature. Any callable with ``needs`` (names of statistics) and ``norm`` is a rule, too; a
package may offer rules under the entry point ``temperance.rules``. ``load_rule`` reads a rule
that was fitted on runs of your own (``temperance fit``).
"""

from temperance.rules.cosine_scale import AdaCos, CosFaceBound, NormFace
from temperance.rules.dimension import Constant, SqrtDim
from temperance.rules.domain import Domain
from temperance.rules.fitted import FittedDomain, FittedRule
from temperance.rules.hasegawa_sakai import HasegawaSakai, HasegawaSakaiCsgCn
from temperance.rules.saved import load_rule, save_rule
from temperance.rules.statistics import StatisticsRule
from temperance.rules.suggestion import RULES, Rule, find_rule, suggest

__all__ = [
    "RULES",
    "AdaCos",
    "Constant",
    "CosFaceBound",
    "Domain",
    "FittedDomain",
    "FittedRule",
    "HasegawaSakai",
    "HasegawaSakaiCsgCn",
    "NormFace",
    "Rule",
    "SqrtDim",
    "StatisticsRule",
    "find_rule",
    "load_rule",
    "save_rule",
    "suggest",
]
