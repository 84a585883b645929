"""The causal transformer of the sequence models: each token sees itself and the tokens before it."""

from __future__ import annotations

import torch
from torch import nn


class CausalTransformer(nn.Module):
    """Blocks with causal attention, and a last normalisation: [B, T, width] to [B, T, width]."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.blocks(tokens, mask=causal, is_causal=True)
