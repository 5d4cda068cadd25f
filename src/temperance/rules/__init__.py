"""Task to temperature: the table of rules, and ``suggest``.

A rule is a frozen dataclass whose fields are its coefficients; ``rule(task)`` gives its
temperature. Any callable with ``needs`` (names of statistics) and ``norm`` is a rule, too; a
package may offer rules under the entry point ``temperance.rules``. ``load_rule`` reads a rule
that was fitted on runs of your own (``temperance fit``). ``training_facts`` reads from an optimizer
and a loader what a rule can know of a training; ``Budget`` is the rule that uses it.
"""

from temperance.rules.budget import Budget
from temperance.rules.budget_file import Coefficients, load_coefficients, save_coefficients
from temperance.rules.cosine_scale import AdaCos, CosFaceBound, NormFace
from temperance.rules.dimension import Constant, SqrtDim
from temperance.rules.domain import Domain
from temperance.rules.fitted import FittedRule
from temperance.rules.fitted_domain import FittedDomain
from temperance.rules.hasegawa_sakai import HasegawaSakai, HasegawaSakaiCsgCn
from temperance.rules.norm_alone import NormAlone
from temperance.rules.saved import load_rule, save_rule
from temperance.rules.statistics import StatisticsRule
from temperance.rules.suggestion import RULES, Rule, find_rule, suggest
from temperance.rules.training import Training
from temperance.rules.training_facts import training_facts

__all__ = [
    "RULES",
    "AdaCos",
    "Budget",
    "Coefficients",
    "Constant",
    "CosFaceBound",
    "Domain",
    "FittedDomain",
    "FittedRule",
    "HasegawaSakai",
    "HasegawaSakaiCsgCn",
    "NormAlone",
    "NormFace",
    "Rule",
    "SqrtDim",
    "StatisticsRule",
    "Training",
    "find_rule",
    "load_coefficients",
    "load_rule",
    "save_coefficients",
    "save_rule",
    "suggest",
    "training_facts",
]
