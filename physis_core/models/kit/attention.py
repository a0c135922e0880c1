"""Attention with the history of a stream, and with a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.kit.rope import Rope
from physis_core.models.protocol import History

KeysValues = tuple[Tensor, Tensor]
Prompt = tuple[KeysValues, ...]
"""Keys and values of each part of a prompt, ``[1, tokens, heads, head_dim]``.

One of each row, ``[B, ...]``, in a call; one of each step, ``[passes, ...]``, where a model keeps
them so until :func:`at_steps`.
"""


class Attention(nn.Module):
    """Projections of one attention layer; parameters are named as in diffusers.

    Args:
        dim: width of the hidden state.
        heads: attention heads.
        head_dim: width of one head.
        source_dim: width of what keys and values are made of (0: ``dim``).
        bias: whether the projections have one.
        norm_per_head: RMS norm of each head on its own instead of the full width.
        eps: of the RMS norm.
        gated: a gate per head, ``2 * sigmoid`` of a projection of the input.
        image: keys and values of an image too, by projections of their own.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, *, source_dim: int = 0,
                 bias: bool = True, norm_per_head: bool = False, eps: float = 1e-6,
                 gated: bool = False, image: bool = False) -> None:
        super().__init__()
        width = heads * head_dim
        source_dim = source_dim or dim
        self.to_q = nn.Linear(dim, width, bias)
        self.to_k = nn.Linear(source_dim, width, bias)
        self.to_v = nn.Linear(source_dim, width, bias)
        self.norm_q = nn.RMSNorm(head_dim if norm_per_head else width, eps)
        self.norm_k = nn.RMSNorm(head_dim if norm_per_head else width, eps)
        self.to_out = nn.ModuleList([nn.Linear(width, dim, bias)])
        if gated:
            self.to_gate_logits = nn.Linear(dim, heads)
        if image:
            self.add_k_proj = nn.Linear(source_dim, width, bias)
            self.add_v_proj = nn.Linear(source_dim, width, bias)
            self.norm_added_k = nn.RMSNorm(width, eps)
        self._heads = (heads, head_dim)
        self._norm_per_head = norm_per_head
        self._gated = gated

    def queries(self, hidden: Tensor) -> Tensor:
        """``[B, tokens, dim]`` to normalised queries ``[B, tokens, heads, head_dim]``."""
        return self._normalised(self.to_q(hidden), self.norm_q)

    def keys_values(self, source: Tensor) -> KeysValues:
        """``[B, tokens, source_dim]`` to keys and values ``[B, tokens, heads, head_dim]``."""
        return (self._normalised(self.to_k(source), self.norm_k),
                self.to_v(source).unflatten(-1, self._heads))

    def image_keys_values(self, source: Tensor) -> KeysValues:
        """The same of an image, where the layer has projections for it."""
        return (self._normalised(self.add_k_proj(source), self.norm_added_k),
                self.add_v_proj(source).unflatten(-1, self._heads))

    def output(self, read: Tensor, hidden: Tensor) -> Tensor:
        """What was read ``[B, tokens, heads, head_dim]``, gated by the input, to ``dim``."""
        if self._gated:
            read = read * (2.0 * self.to_gate_logits(hidden).sigmoid()).unsqueeze(-1)
        output: Tensor = self.to_out[0](read.flatten(2))
        return output

    def with_history(self, hidden: Tensor, history: History, rope: Rope, *, registers: int = 0,
                     seen: Tensor | None = None, private: int = 0) -> Tensor:
        """Self-attention over the row's own chunk and its history, ``[B, tokens, dim]``.

        Args:
            hidden: ``[B, tokens, dim]``.
            history: what the rows attend to besides.
            rope: the positions.
            registers: how many tokens, the first ones, later chunks do not see.
            seen: bool ``[B, 1, tokens or 1, registers]``, where they are seen; None: everywhere.
            private: how many tokens, the first ones, the others of their chunk do not see.
        """
        positions = history.positions
        keys, values = self.keys_values(hidden)
        keys = rope.place_inside(keys, positions)
        kept, kept_values, mask = history.extend(keys[:, registers:], values[:, registers:])
        kept = rope.place_chunks(kept, positions)
        visible = token_mask(mask, hidden.shape[1] - registers)
        if registers:
            own = rope.place_own(keys[:, :registers], positions)
            kept = torch.cat([own, kept], 1)
            kept_values = torch.cat([values[:, :registers], kept_values], 1)
            visible = _beside(seen, visible, registers, kept.shape[1] - registers)
        queries = rope.place_own(rope.place_inside(self.queries(hidden), positions), positions)
        if not private:
            return self.output(attend(queries, kept, kept_values, visible), hidden)
        others = visible if visible is None else visible[..., private:]
        read = torch.cat([
            attend(queries[:, :private], kept, kept_values, visible),
            attend(queries[:, private:], kept[:, private:], kept_values[:, private:], others)], 1)
        return self.output(read, hidden)

    def with_prompts(self, hidden: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Cross-attention to each row's prompt; what the parts of a prompt say is added."""
        queries = self.queries(hidden)
        if all(prompt is prompts[0] for prompt in prompts):
            read = _read_prompt(queries, prompts[0])
        else:
            read = torch.cat([_read_prompt(queries[row:row + 1], prompt)
                              for row, prompt in enumerate(prompts)])
        return self.output(read, hidden)

    def _normalised(self, vectors: Tensor, norm: nn.Module) -> Tensor:
        if self._norm_per_head:
            normalised: Tensor = norm(vectors.unflatten(-1, self._heads))
            return normalised
        full: Tensor = norm(vectors)
        return full.unflatten(-1, self._heads)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of ``[B, tokens, heads, head_dim]``; heads are never copied.

    ``mask`` is True where a key may be seen, and broadcasts to ``[B, heads, queries, keys]``.
    """
    return functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), mask
    ).transpose(1, 2)


def at_steps(prompts: Sequence[Prompt], steps: Tensor) -> list[Prompt]:
    """The prompts of rows at their steps, ``[B]``; a prompt that no step changes stays as it is.

    The steps are not read by the CPU, which would have to wait for a GPU.
    """
    if all(len(keys) == 1 for keys, _ in prompts[0]):
        return list(prompts)
    if all(prompt is prompts[0] for prompt in prompts):
        return [_selected(prompts[0], steps)] * len(prompts)
    return [_selected(prompt, steps[row:row + 1]) for row, prompt in enumerate(prompts)]


def _selected(prompt: Prompt, steps: Tensor) -> Prompt:
    return tuple((keys.index_select(0, steps), values.index_select(0, steps))
                 for keys, values in prompt)


def _read_prompt(queries: Tensor, prompt: Prompt) -> Tensor:
    rows = len(queries)
    first, *others = (attend(queries, keys.expand(rows, -1, -1, -1),
                             values.expand(rows, -1, -1, -1)) for keys, values in prompt)
    return sum(others, first)


def token_mask(mask: Tensor | None, tokens: int) -> Tensor | None:
    """A mask of chunks ``[B, chunks]`` as a mask of keys ``[B, 1, 1, chunks * tokens]``."""
    return None if mask is None else mask.repeat_interleave(tokens, 1)[:, None, None]


def _beside(first: Tensor | None, second: Tensor | None, first_keys: int, second_keys: int
            ) -> Tensor | None:
    """The mask of two groups of keys; None: all of a group is visible."""
    known = first if first is not None else second
    if known is None:
        return None
    everywhere = known.new_ones(1)
    first = everywhere.expand(first_keys) if first is None else first
    second = everywhere.expand(second_keys) if second is None else second
    shape = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    return torch.cat([first.expand(*shape, -1), second.expand(*shape, -1)], -1)
