"""The step that benchmarks.sequence_models feeds: a decision transformer and its update."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks import windows

SIZES = {"0.1M": (64, 2), "1M": (128, 5), "10M": (288, 10)}  # width, layers
MOST_TOKENS = 60 * windows.BATCH  # of one pass of the model. A longer batch is timed by one of its windows


class Step:
    """A decision transformer and its update: tokens of returns, states and actions, the loss of the actions."""

    def __init__(self, length: int, size: str) -> None:
        width, layers = SIZES[size]
        self.windows = windows.BATCH if 3 * length * windows.BATCH <= MOST_TOKENS else 1
        self.scale = windows.BATCH // self.windows
        inputs = {"return_to_go": 1, "observation": 11, "action": 3}
        self.inputs = nn.ModuleDict({name: nn.Linear(size, width) for name, size in inputs.items()})
        self.times, self.head = nn.Embedding(windows.EPISODE, width), nn.Linear(width, 3)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(3 * length)
        parts = (self.inputs, self.times, self.head, self.blocks)
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-4)

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        batch = {name: batch[name][: self.windows] for name in windows.PARTS}
        time_embedding = self.times(batch["time"][..., 0].long())
        tokens = [self.inputs[name](batch[name]) + time_embedding for name in self.inputs]
        seen = self.blocks(torch.stack(tokens, 2).flatten(1, 2), mask=self.mask, is_causal=True)
        loss = (self.head(seen[:, 1::3]) - batch["action"]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
