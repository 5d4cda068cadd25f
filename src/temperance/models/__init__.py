"""Reading a model: its output layer, its logits, its checkpoints, its cost."""

from temperance.models.checkpoints import (
    LoadReport,
    load_state,
    strip_prefixes,
)
from temperance.models.cost import COUNTED, NOT_COUNTED, multiply_adds
from temperance.models.files import read_safetensors, write_safetensors
from temperance.models.find import Head, find_head, find_heads
from temperance.models.load import find_state, load_checkpoint
from temperance.models.outputs import (
    LABEL_KEYS,
    call_model,
    device_of,
    logits_of,
    split_batch,
    to_device,
)
from temperance.models.probe import evaluating, unwrap

__all__ = [
    "COUNTED",
    "LABEL_KEYS",
    "NOT_COUNTED",
    "Head",
    "LoadReport",
    "call_model",
    "device_of",
    "evaluating",
    "find_head",
    "find_heads",
    "find_state",
    "load_checkpoint",
    "load_state",
    "logits_of",
    "multiply_adds",
    "read_safetensors",
    "split_batch",
    "strip_prefixes",
    "to_device",
    "unwrap",
    "write_safetensors",
]
