"""What all causal video backbones have in common, around the blocks of a family."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph
from physis_core.models.kit.schedule import Schedule
from physis_core.models.protocol import History, ModelDescription, TensorSpec

Module = TypeVar('Module', bound=nn.Module)

DTYPES = ('float32', 'bfloat16')


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a backbone is run as a stream; every family adds its shape.

    Attributes:
        size: name of the published size that the other options start from.
        blocks: L, transformer blocks.
        channels: channels of a latent.
        height: rows of a latent.
        width: columns of a latent.
        latents: latents per chunk.
        window: earlier chunks that a task reads.
        sinks: first chunks that stay visible for ever.
        steps: D, denoising steps.
        shift: of the noise levels, towards noise.
        kv_mode: a :class:`~physis_core.graph.KVMode`.
        renoise: every step ends with fresh noise, as distilled models sample; else Euler steps.
        text_tokens: tokens of a prompt.
        text_dim: width of a prompt's tokens.
        dtype: of weights, hidden states and KV: `float32` or `bfloat16`.
        weights: a checkpoint file or folder; empty: random weights.
        seed: of random weights.
    """

    least_text_tokens: ClassVar[int] = 1

    size: str = ''
    blocks: int = 1
    channels: int = 16
    height: int = 2
    width: int = 2
    latents: int = 1
    window: int = 6
    sinks: int = 0
    steps: int = 4
    shift: float = 5.0
    kv_mode: str = KVMode.SAME_STEP.value
    renoise: bool = True
    text_tokens: int = 512
    text_dim: int = 4096
    dtype: str = 'float32'
    weights: str = ''
    seed: int = 0

    def __post_init__(self) -> None:
        least = {'blocks': 1, 'channels': 1, 'height': 1, 'width': 1, 'latents': 1, 'steps': 1,
                 'text_tokens': self.least_text_tokens}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f'option `{name}` is {getattr(self, name)}; the least is {low}')
        if self.shift <= 0:
            raise InputError(f'option `shift` is {self.shift}; it must be positive')
        if self.dtype not in DTYPES:
            raise InputError(f'option `dtype` is {self.dtype}; choose one of {", ".join(DTYPES)}')
        if self.kv_mode not in {mode.value for mode in KVMode}:
            raise InputError(f'option `kv_mode` is {self.kv_mode}; choose one of '
                             f'{", ".join(mode.value for mode in KVMode)}')

    @property
    def graph(self) -> StageGraph:
        """The stages."""
        return StageGraph(self.steps, self.blocks, KVMode(self.kv_mode),
                          window_chunks=self.window, sink_chunks=self.sinks)

    @property
    def latent(self) -> tuple[int, int, int, int]:
        """Shape of one chunk's video latents, ``[channels, latents, height, width]``."""
        return self.channels, self.latents, self.height, self.width

    @property
    def prompt(self) -> dict[str, TensorSpec]:
        """The prompt: encoded text ``[text_tokens, text_dim]``; empty without one."""
        if not self.text_tokens:
            return {}
        return {'text': TensorSpec((self.text_tokens, self.text_dim))}


class Backbone(nn.Module):
    """A family's denoiser as stages; see :class:`~physis_core.models.protocol.StageModel`.

    Parameters are named as in diffusers.  A subclass holds ``stack``, the blocks by index, under
    the family's name for it, and settles what depends on (step, block) alone after loading.
    """

    stack_name = 'blocks'

    def __init__(self, description: ModelDescription, shift: float) -> None:
        super().__init__()
        self.description = description
        self.schedule = Schedule.shifted(description.graph, shift)
        self.dtype = description.hidden.torch_dtype

    @property
    def stack(self) -> nn.ModuleDict:
        """The blocks held, by index."""
        stack = getattr(self, self.stack_name)
        assert isinstance(stack, nn.ModuleDict)
        return stack

    @property
    def held(self) -> list[int]:
        """The indices of the blocks held, ascending."""
        return sorted(int(block) for block in self.stack)

    # -- after loading -------------------------------------------------------------------------

    @abstractmethod
    def settle(self) -> None:
        """Compute once what the parameters outside the blocks determine, and drop the rest."""

    @abstractmethod
    def settle_block(self, block: int) -> None:
        """The same for one block."""

    # -- stages --------------------------------------------------------------------------------

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """Condition ``[1]``: the lead [s]; a plain video model observes nothing."""
        return torch.tensor([lead_s])

    def context(self, prompt: Mapping[str, np.ndarray]) -> Any:
        """What the prompt determines, for the blocks held."""
        inputs = {}
        for name, spec in self.description.prompt.items():
            if name not in prompt:
                raise InputError(f'the prompt lacks `{name}`; give an array of shape {spec.shape}')
            part = torch.as_tensor(prompt[name])
            if tuple(part.shape) != spec.shape:
                raise InputError(f'prompt `{name}` has shape {tuple(part.shape)}; this model takes '
                                 f'{spec.shape}, pad or cut it')
            inputs[name] = part.to(self._device, self.dtype)[None]
        return self.prompt_context(**inputs)

    @abstractmethod
    def prompt_context(self, *, text: Tensor) -> Any:
        """The same of encoded text ``[1, text_tokens, text_dim]``."""

    @abstractmethod
    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Hidden states ``[B, tokens, dim]`` of latents ``[B, *latent]``."""

    @abstractmethod
    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]`` to the same shape."""

    @abstractmethod
    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """The clean latents that the head predicts, float32 ``[B, *latent]``."""

    def step_update(self, hidden: Tensor, latents: Tensor, conditions: Tensor,
                    noises: Tensor | None, steps: Tensor) -> Tensor:
        """Latents at the next, cleaner step."""
        return self.schedule.next_latents(
            latents, self.clean(hidden, latents, steps), noises, steps)

    def decode(self, latent: Tensor, condition: Tensor) -> dict[str, np.ndarray]:
        """``latents`` of the chunk, for the family's video decoder."""
        return {'latents': latent.float().cpu().numpy().copy()}

    def levels(self, steps: Tensor) -> Tensor:
        """Noise levels ``[B, 1, 1, 1, 1]`` of a batch."""
        return torch.tensor(self.schedule.levels, device=steps.device)[steps].view(-1, 1, 1, 1, 1)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device


def cast(module: Module, dtype: torch.dtype) -> Module:
    """Bring parameters to ``dtype``; tables of modulation stay float32, as they are published."""
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if not name.endswith('scale_shift_table'):
                setattr(owner, name, nn.Parameter(parameter.to(dtype)))
    return module


def held_blocks(blocks: int, wanted: Collection[int] | None) -> list[int]:
    """The blocks to hold: those wanted, or all."""
    if wanted is None:
        return list(range(blocks))
    beyond = sorted(block for block in wanted if not 0 <= block < blocks)
    if beyond:
        raise InputError(f'block {beyond[0]} does not exist; blocks go from 0 to {blocks - 1}')
    return sorted(set(wanted))
