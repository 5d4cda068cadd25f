"""Task to temperature: the table of rules, and ``suggest``.

A rule is a frozen dataclass whose fields are its coefficients; ``rule(task)`` gives its
temperature. Any callable with ``needs`` (names of statistics) and ``norm`` is a rule, too; a
package may offer rules under the entry point ``temperance.rules``.
"""

from temperance.rules.cosine_scale import AdaCos, CosFaceBound, NormFace
from temperance.rules.dimension import Constant, SqrtDim
from temperance.rules.domain import Domain
from temperance.rules.hasegawa_sakai import HasegawaSakai, HasegawaSakaiCsgCn
from temperance.rules.suggestion import RULES, Rule, find_rule, suggest

__all__ = [
    "RULES",
    "AdaCos",
    "Constant",
    "CosFaceBound",
    "Domain",
    "HasegawaSakai",
    "HasegawaSakaiCsgCn",
    "NormFace",
    "Rule",
    "SqrtDim",
    "find_rule",
    "suggest",
]
