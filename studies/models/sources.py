"""The models of the table: how each is built, with random weights, and on what it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from configs import PICTURES, TEXTS
from members import DISTILLED_AND_CONV, SETTINGS, TIMM
from torch import nn
from verbs import CLASSES

__all__ = ["LIBRARIES", "Case", "cases"]

LIBRARIES = ("torchvision", "timm", "transformers")
SIZES = (32, 64, 96, 128, 160, 224, 256, 299, 331, 384)
Build = Callable[[], tuple[nn.Module, Any, str]]


@dataclass(frozen=True)
class Case:
    """One model of the table; ``build`` gives model, batch and size."""

    library: str
    family: str
    name: str
    build: Build


def cases(library: str) -> Iterator[Case]:
    """Give the models of one library, in a fixed order."""
    yield from {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[
        library
    ]()


# ------------------------------------------------------------------ torchvision
def _torchvision() -> Iterator[Case]:
    import torchvision

    for name in sorted(torchvision.models.list_models(module=torchvision.models)):
        builder = torchvision.models.get_model_builder(name)
        family = builder.__module__.rpartition(".")[2]
        yield Case("torchvision", family, name, _torchvision_build(name))


def _torchvision_build(name: str) -> Build:
    def build() -> tuple[nn.Module, Any, str]:
        import torchvision

        settings: dict[str, Any] = {"num_classes": CLASSES}
        if name in ("googlenet", "inception_v3"):
            settings |= {"aux_logits": True, "init_weights": False}
        if name.startswith("vit_"):
            return _smallest(lambda size: torchvision.models.get_model(
                name, image_size=size, **settings), step=_patch(name))  # fmt: skip
        if name == "maxvit_t":
            return _smallest(lambda size: torchvision.models.get_model(
                name, input_size=(size, size), **settings))  # fmt: skip
        model = torchvision.models.get_model(name, **settings)
        return _smallest(lambda _: model)

    return build


def _patch(name: str) -> int:
    """vit_h_14 has patches of 14, whose multiples the side has to be."""
    return 14 if name.endswith("_14") else 32


# ------------------------------------------------------------------ timm
def _timm() -> Iterator[Case]:
    for family, name in TIMM.items():
        yield Case("timm", family, name, _timm_build(name))
    for family, name in DISTILLED_AND_CONV:
        yield Case("timm", family, name, _timm_build(name))


def _timm_build(name: str) -> Build:
    def build() -> tuple[nn.Module, Any, str]:
        import timm

        settings = {"num_classes": CLASSES, **SETTINGS.get(name, {})}
        fixed = timm.create_model(name, **settings)
        model, pixels, size = _smallest(lambda _: fixed)
        if int(size) < 160:
            return model, pixels, size
        try:  # its grid is fixed when it is built
            return _smallest(lambda side: timm.create_model(name, img_size=side, **settings))
        except (TypeError, AttributeError):
            return model, pixels, size

    return build


# ------------------------------------------------------------------ transformers
def _transformers() -> Iterator[Case]:
    for family, (config, model, settings) in TEXTS.items():
        build = _transformers_build(config, model, settings, text=True)
        yield Case("transformers", family, model, build)
    for family, (config, model, settings) in PICTURES.items():
        build = _transformers_build(config, model, settings, text=False)
        yield Case("transformers", family, model, build)


def _transformers_build(config: str, model: str, settings: dict[str, Any], *, text: bool) -> Build:
    def build() -> tuple[nn.Module, Any, str]:
        import transformers

        made = getattr(transformers, config)(**settings, num_labels=CLASSES)
        net = getattr(transformers, model)(made).eval()
        if text:
            ids = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(0))
            mask = torch.ones(2, 7, dtype=torch.long)
            # two rows of different lengths
            ids[1, 5:], mask[1, 5:] = made.pad_token_id if made.pad_token_id is not None else 0, 0
            if model.startswith(("Bart", "T5")):
                ids[:, 6], mask[:, 6] = made.eos_token_id, 1  # they read the last such token
            return net, {"input_ids": ids, "attention_mask": mask}, "7 tokens"
        net, pixels, size = _smallest(lambda _: net, start=settings.get("image_size", 32))
        return net, {"pixel_values": pixels}, size

    return build


# ------------------------------------------------------------------ the smallest pictures
def _smallest(
    make: Callable[[int], nn.Module], *, start: int = 0, step: int = 1
) -> tuple[nn.Module, Any, str]:
    """Build and run a model at growing sizes until it gives finite logits."""
    failed: Exception | None = None
    for wanted in SIZES:
        size = -(-max(wanted, start) // step) * step
        try:
            model = make(size).eval()
            pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                output = model(pixels)
        except TypeError:
            raise  # an argument that the model does not have
        except Exception as error:  # too small for its strides, windows or grid
            failed = error
            continue
        logits = getattr(output, "logits", output)
        if tuple(logits.shape) == (2, CLASSES) and bool(torch.isfinite(logits).all()):
            return model, _more(pixels), str(size)
    raise RuntimeError(f"no size up to {SIZES[-1]} ran: {failed}")


def _more(pixels: torch.Tensor) -> torch.Tensor:
    """Eight rows, the first two as they were."""
    draw = torch.Generator().manual_seed(1)
    return torch.cat([pixels, torch.randn(6, *pixels.shape[1:], generator=draw)])
