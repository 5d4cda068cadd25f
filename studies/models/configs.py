"""Tiny configurations of transformers' classifiers: (config class, model class, settings)."""

from __future__ import annotations

from typing import Any

__all__ = ["PICTURES", "TEXTS"]

Entry = tuple[str, str, dict[str, Any]]

_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_TEXT = {**_SIZES, "vocab_size": 50, "max_position_embeddings": 32}
_PICTURE = {**_SIZES, "image_size": 32, "patch_size": 8}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 8}


def _text(family: str, settings: dict[str, Any], config: str = "") -> Entry:
    return f"{config or family}Config", f"{family}ForSequenceClassification", settings


def _picture(family: str, settings: dict[str, Any], model: str = "") -> Entry:
    return f"{family}Config", model or f"{family}ForImageClassification", settings


TEXTS: dict[str, Entry] = {
    "bert": _text("Bert", _TEXT),
    "distilbert": _text(
        "DistilBert",
        {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    ),
    "roberta": _text("Roberta", {**_TEXT, "pad_token_id": 1}),
    "deberta": _text("Deberta", _TEXT),
    "deberta-v2": _text("DebertaV2", {**_TEXT, "relative_attention": True}),
    "albert": _text("Albert", {**_TEXT, "embedding_size": 8}),
    "electra": _text("Electra", {**_TEXT, "embedding_size": 8}),
    "mobilebert": _text(
        "MobileBert",
        {**_TEXT, "embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2},
    ),
    "mpnet": _text("MPNet", _TEXT),
    "modernbert": _text("ModernBert", {**_TEXT, "pad_token_id": 0}),
    "xlnet": _text("XLNet", {"vocab_size": 50, "d_model": 16, "n_layer": 2, "n_head": 2,
                             "d_inner": 32}),
    "bart": _text("Bart", {"vocab_size": 50, "d_model": 16, "encoder_layers": 1,
                           "decoder_layers": 1, "encoder_attention_heads": 2,
                           "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
                           "decoder_ffn_dim": 32, "max_position_embeddings": 32,
                           "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}),
    "t5": _text("T5", {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1,
                       "num_heads": 2, "pad_token_id": 0, "eos_token_id": 1,
                       "decoder_start_token_id": 0}),
    "gpt2": _text("GPT2", {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2,
                           "n_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
                           "eos_token_id": 2}),
    "llama": _text("Llama", _DECODER),
    "mistral": _text("Mistral", _DECODER),
    "qwen2": _text("Qwen2", _DECODER),
    "opt": _text("OPT", {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2,
                         "num_attention_heads": 2, "ffn_dim": 32, "max_position_embeddings": 32,
                         "word_embed_proj_dim": 16, "pad_token_id": 0}),
}  # fmt: skip

_STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}

PICTURES: dict[str, Entry] = {
    "vit": _picture("ViT", _PICTURE),
    "deit": _picture("DeiT", _PICTURE),
    "deit with teacher": _picture("DeiT", _PICTURE, "DeiTForImageClassificationWithTeacher"),
    "beit": _picture("Beit", _PICTURE),
    "dinov2": _picture("Dinov2", _PICTURE),
    "swin": _picture("Swin", {"image_size": 32, "patch_size": 2, "embed_dim": 8,
                              "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}),
    "swinv2": _picture("Swinv2", {"image_size": 32, "patch_size": 2, "embed_dim": 8,
                                  "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}),
    "convnext": _picture("ConvNext", _STAGES),
    "convnextv2": _picture("ConvNextV2", _STAGES),
    "resnet": _picture("ResNet", {**_STAGES, "embedding_size": 8}),
    "regnet": _picture("RegNet", {**_STAGES, "embedding_size": 8, "groups_width": 8}),
    "mobilevit": _picture("MobileViT", {"image_size": 64, "hidden_sizes": [16, 16, 16],
                                        "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
                                        "num_attention_heads": 2}),
    "mobilenet-v1": _picture("MobileNetV1", {"depth_multiplier": 0.25, "min_depth": 8}),
    "mobilenet-v2": _picture("MobileNetV2", {"depth_multiplier": 0.25}),
    "efficientnet": _picture("EfficientNet", {"width_coefficient": 0.25,
                                              "depth_coefficient": 0.25, "hidden_dim": 320}),
    "poolformer": _picture("PoolFormer", _STAGES),
    "pvt": _picture("Pvt", {"image_size": 64, "hidden_sizes": [8, 16, 16, 32],
                            "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}),
    "segformer": _picture("Segformer", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
                                        "num_attention_heads": [1, 2, 2, 4]}),
    "levit": _picture("Levit", {"image_size": 64, "hidden_sizes": [16, 16, 32],
                                "num_attention_heads": [2, 2, 4], "depths": [1, 1, 1],
                                "key_dim": [8, 8, 8]}),
    "levit with teacher": _picture("Levit", {"image_size": 64, "hidden_sizes": [16, 16, 32],
                                             "num_attention_heads": [2, 2, 4],
                                             "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
                                   "LevitForImageClassificationWithTeacher"),
    "focalnet": _picture("FocalNet", {"image_size": 32, "embed_dim": 8, "depths": [1, 1],
                                      "hidden_sizes": [8, 16], "focal_levels": [1, 1],
                                      "focal_windows": [3, 3]}),
}  # fmt: skip
