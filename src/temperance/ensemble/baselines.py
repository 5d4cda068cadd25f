"""The rivals of the normalization-based ensemble, each as its own paper defines it, in one table.

Every function makes an ensemble out of a model: ``logits = ensemble(x)`` are ``[M, B, C]`` in
evaluation, and ``ensemble.targets(y)``, called after the forward, has the targets that belong to
the logits, in training too. So one loop trains them all::

    logits = ensemble(x)
    targets = ensemble.targets(y)
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    losses = losses.view(targets.shape).mean(1)  # one for each member
    loss = losses.sum() if BASELINES[name].loss == "sum" else losses.mean()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from temperance.ensemble.batch_ensemble import batch_ensemble
from temperance.ensemble.deep_ensemble import deep_ensemble
from temperance.ensemble.film_ensemble import film_ensemble
from temperance.ensemble.masksembles import masksembles
from temperance.ensemble.mc_dropout import mc_dropout
from temperance.ensemble.mimo import mimo
from temperance.ensemble.packed import packed

__all__ = ["BASELINES", "Baseline"]


@dataclass(frozen=True)
class Baseline:
    """A method, and what one has to know to run it fairly.

    Attributes:
        name: key of the table.
        title: the name that papers use.
        build: ``build(model, members, *, seed=0, ...)`` gives the ensemble.
        reference: where it is defined.
        protocol: how rows reach the members in training: ``repeat``, ``split``, ``single`` (one
            model is trained) or ``paired`` (rows of several members side by side).
        loss: how the members' mean losses are put together: ``mean`` or ``sum``. It sets the rate
            at which what is a member's own learns.
        needs: what the model must have.
        takes_example: whether ``build`` takes ``example=``, one batch, and needs it where neither a
            library nor nested Sequentials show the output layer.
        keeps_weights: whether the weights of the model are kept.
        parameters: how many there are, P of the model, M members, C features or classes.
        training_work: of a step, in steps of the model on the same batch.
        prediction_work: of a prediction with all members, likewise.
    """

    name: str
    title: str
    build: Callable[..., Any]
    reference: str
    protocol: str
    loss: str
    needs: str
    takes_example: bool
    keeps_weights: bool
    parameters: str
    training_work: str
    prediction_work: str


_ALL = (
    Baseline(
        "deep_ensemble",
        "Deep ensemble",
        deep_ensemble,
        "Lakshminarayanan et al., NeurIPS 2017, arXiv 1612.01474",
        protocol="repeat",
        loss="sum",
        needs="layers with reset_parameters, or a function that builds the model",
        takes_example=False,
        keeps_weights=False,
        parameters="M P",
        training_work="M",
        prediction_work="M",
    ),
    Baseline(
        "mc_dropout",
        "MC dropout",
        mc_dropout,
        "Gal and Ghahramani, ICML 2016, arXiv 1506.02142",
        protocol="single",
        loss="mean",
        needs="dropout layers, or layers with weights and p",
        takes_example=False,
        keeps_weights=True,
        parameters="P",
        training_work="1",
        prediction_work="M",
    ),
    Baseline(
        "batch_ensemble",
        "BatchEnsemble",
        batch_ensemble,
        "Wen et al., ICLR 2020, arXiv 2002.06715",
        protocol="repeat",
        loss="mean",
        needs="linear layers or convolutions",
        takes_example=False,
        keeps_weights=True,
        parameters="P + sum over layers of M (in + out) + (M - 1) bias",
        training_work="M",
        prediction_work="M",
    ),
    Baseline(
        "masksembles",
        "Masksembles",
        masksembles,
        "Durasov et al., CVPR 2021, arXiv 2012.08334",
        protocol="split",
        loss="mean",
        needs="two linear layers or convolutions, of 10 features or more",
        takes_example=False,
        keeps_weights=True,
        parameters="P",
        training_work="1",
        prediction_work="M",
    ),
    Baseline(
        "mimo",
        "MIMO",
        mimo,
        "Havasi et al., ICLR 2021, arXiv 2010.06610",
        protocol="paired",
        loss="sum",
        needs="floating inputs, a first layer that alone reads them, a linear output layer",
        takes_example=True,
        keeps_weights=False,
        parameters="P + (M - 1) (first weight + output layer)",
        training_work="about R, the batch repetition",
        prediction_work="about 1",
    ),
    Baseline(
        "packed",
        "Packed-Ensembles",
        packed,
        "Laurent et al., ICLR 2023, arXiv 2210.09184",
        protocol="repeat",
        loss="mean",
        needs="Linear, Conv, BatchNorm, GroupNorm and LayerNorm only, no attention",
        takes_example=True,
        keeps_weights=False,
        parameters="inner layers: alpha^2 / (M gamma) of P",
        training_work="about alpha^2 / (M gamma)",
        prediction_work="about alpha^2 / (M gamma)",
    ),
    Baseline(
        "film_ensemble",
        "FiLM-Ensemble",
        film_ensemble,
        "Turkoglu et al., NeurIPS 2022, arXiv 2206.00050",
        protocol="repeat",
        loss="mean",
        needs="BatchNorm",
        takes_example=False,
        keeps_weights=True,
        parameters="P + sum over BatchNorms of 2 C (M - 1)",
        training_work="M",
        prediction_work="M",
    ),
)

BASELINES: Mapping[str, Baseline] = MappingProxyType({b.name: b for b in _ALL})
"""All rivals by name."""
