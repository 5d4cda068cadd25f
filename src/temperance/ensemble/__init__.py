"""One backbone, many members: the normalization-based implicit ensemble and its rivals."""

from temperance.ensemble.baselines import BASELINES, Baseline
from temperance.ensemble.batch_ensemble import batch_ensemble
from temperance.ensemble.convert import HEADS, INITS, convert
from temperance.ensemble.deep_ensemble import deep_ensemble
from temperance.ensemble.diversity import (
    FORMS,
    diversity_loss,
    diversity_range,
    require_distinct,
)
from temperance.ensemble.film_ensemble import film_ensemble
from temperance.ensemble.groups import GAMMA_RATE, parameter_groups
from temperance.ensemble.loss import LOSSES, member_loss
from temperance.ensemble.masksembles import masksembles
from temperance.ensemble.mc_dropout import mc_dropout
from temperance.ensemble.member_linear import MemberLinear
from temperance.ensemble.members import PROTOCOLS, Ensemble
from temperance.ensemble.mimo import mimo
from temperance.ensemble.norms import FoundNorm, find_norms
from temperance.ensemble.packed import packed
from temperance.ensemble.predict import predict_members
from temperance.ensemble.recognize import recognize
from temperance.ensemble.revert import fold_member, revert
from temperance.ensemble.sharing import (
    LayerSharing,
    SharingStatistics,
    disagreement,
    sharing_statistics,
)
from temperance.ensemble.sigma_norm import NormFacts, SigmaNorm, sigma_norms
from temperance.ensemble.step import backward_each
from temperance.ensemble.swap import SPREAD, START

__all__ = [
    "BASELINES",
    "FORMS",
    "GAMMA_RATE",
    "HEADS",
    "INITS",
    "LOSSES",
    "PROTOCOLS",
    "SPREAD",
    "START",
    "Baseline",
    "Ensemble",
    "FoundNorm",
    "LayerSharing",
    "MemberLinear",
    "NormFacts",
    "SharingStatistics",
    "SigmaNorm",
    "backward_each",
    "batch_ensemble",
    "convert",
    "deep_ensemble",
    "disagreement",
    "diversity_loss",
    "diversity_range",
    "film_ensemble",
    "find_norms",
    "fold_member",
    "masksembles",
    "mc_dropout",
    "member_loss",
    "mimo",
    "packed",
    "parameter_groups",
    "predict_members",
    "recognize",
    "require_distinct",
    "revert",
    "sharing_statistics",
    "sigma_norms",
]
