"""The demo model as stages: an SO-101 arm that carries a cube to a disc, seen by two cameras."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph
from physis_core.models.kit.options import read_options
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.models.so101 import network
from physis_core.models.so101.network import Network
from physis_core.units import OutputSemantics

JOINT_NAMES = (
    'shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper')
CONTROL_PERIOD_S = 0.02
CAMERA_NAMES = ('front', 'wrist')
WEIGHTS = Path(__file__).with_name('weights.safetensors')

_IMAGE = TensorSpec((network.IMAGE_SIZE, network.IMAGE_SIZE, 3), 'uint8')
_OBSERVED = network.OBSERVED_TOKENS * network.DIM


@dataclass(frozen=True)
class So101Options:
    """Options of the `so101` model.

    Attributes:
        weights: path of the .safetensors file; by default the one that ships with the package.
    """

    weights: str = str(WEIGHTS)


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """The model's description; see `So101Options`."""
    read_options(So101Options, options, 'so101')
    return ModelDescription(
        name='so101',
        graph=StageGraph(
            network.STEPS, network.BLOCKS, KVMode.SAME_STEP, window_chunks=network.WINDOW_CHUNKS),
        tokens=network.TOKENS,
        dim=network.DIM,
        kv_heads=network.HEADS,
        head_dim=network.HEAD_DIM,
        latent=TensorSpec((network.LATENT,)),
        condition=TensorSpec((_OBSERVED + network.JOINTS + network.WORLD,)),
        observation={**dict.fromkeys(CAMERA_NAMES, _IMAGE),
                     'joints': TensorSpec((network.JOINTS,))},
        outputs={'positions': TensorSpec((network.CONTROL_POINTS, network.JOINTS)),
                 'world': TensorSpec((network.WORLD,))},
        semantics=OutputSemantics(
            control_points_per_latent=network.CONTROL_POINTS, control_period_s=CONTROL_PERIOD_S))


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> So101Model:
    """The model with the weights of `blocks` (None: all), of encoders, embeddings and head."""
    return So101Model(Path(read_options(So101Options, options, 'so101').weights), blocks)


class So101Model:
    """The stages of `so101`; see `physis_core.models.protocol.StageModel`.

    A condition is one flat vector: the observed tokens (state and cameras), the normalised
    joints, and the world latent of the observation. The state token carries the lead, so
    modulation depends on (step, block) only.
    """

    def __init__(self, weights: Path = WEIGHTS, blocks: Collection[int] | None = None) -> None:
        self.description = describe({'weights': str(weights)})
        self.network = load_network(weights, blocks)
        self._rotations = network.rotations(1 + self.description.graph.history_slots)

    @torch.inference_mode()
    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """Condition of the chunk whose first control point is due `lead_s` after the capture.

        `observation` holds `front` and `wrist` (uint8 RGB `[64, 64, 3]`) and `joints` (radians,
        `[6]`, in the order of `JOINT_NAMES`).
        """
        for name, spec in self.description.observation.items():
            _check(name, observation, spec)
        images = np.stack([observation[name] for name in CAMERA_NAMES])
        return self.encode_batch(images[None], observation['joints'][None], np.array([lead_s]))[0]

    @torch.inference_mode()
    def encode_batch(self, images: np.ndarray, joints_rad: np.ndarray, leads_s: np.ndarray
                     ) -> Tensor:
        """Conditions `[B, ...]` of images `[B, 2, 64, 64, 3]`, joints `[B, 6]` and leads `[B]`."""
        if not ((leads_s >= 0.0) & (leads_s <= network.LEAD_MAX_S)).all():
            raise InputError(
                f'lead of {leads_s.tolist()} s: the model was trained for 0 to '
                f'{network.LEAD_MAX_S} s between capture and execution; shorten the delay')
        place = self.network.kind.device
        joints = self.network.normalised(torch.from_numpy(joints_rad.astype(np.float32)).to(place))
        seen = self.network.look(torch.from_numpy(images).to(place))
        leads = torch.from_numpy(leads_s.astype(np.float32)).to(place)
        state = self.network.state_token(joints, leads)
        observed = torch.cat([state[:, None], seen], 1)
        world = self.network.world_latent(seen, joints)
        return torch.cat([observed.flatten(1), joints, world], -1)

    def context(self, prompt: Mapping[str, np.ndarray]) -> None:
        """There is no prompt."""

    @torch.inference_mode()
    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Hidden states `[B, 6, 128]`; the steps enter through the blocks' modulation."""
        observed = conditions[:, :_OBSERVED].unflatten(-1, (-1, network.DIM))
        return self.network.embed(observed, latents)

    @torch.inference_mode()
    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, `[B, 6, 128]` to the same shape."""
        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            all_keys, all_values, mask = history.extend(keys, values)
            turns = self._rotations[history.positions].repeat_interleave(
                network.TOKENS, 1).unsqueeze(2)
            if mask is not None:
                mask = mask.repeat_interleave(network.TOKENS, 1)[:, None, None]
            return network.attention(
                network.rotated(queries, turns[:, :network.TOKENS]),
                network.rotated(all_keys, turns), all_values, mask)
        return self.network.blocks[str(block)](hidden, steps, attend)

    @torch.inference_mode()
    def step_update(self, hidden: Tensor, latents: Tensor, conditions: Tensor,
                    noises: Tensor | None, steps: Tensor) -> Tensor:
        """Latents at the next, cleaner step (deterministic: no fresh noise)."""
        base = network_base(conditions[:, _OBSERVED:])
        return network.denoised(latents, self.network.clean(hidden, base), steps)

    @torch.inference_mode()
    def decode(self, latent: Tensor, condition: Tensor) -> dict[str, np.ndarray]:
        """`positions` `[8, 6]` in radians, 20 ms apart, and the expected `world` `[16]`."""
        actions, world = latent.split((network.ACTION, network.WORLD))
        positions = self.network.in_radians(actions.unflatten(0, (-1, network.JOINTS)))
        return {'positions': positions.cpu().numpy(), 'world': world.cpu().numpy()}


def load_network(weights: Path, blocks: Collection[int] | None = None) -> Network:
    """Read a network from safetensors (stored in half precision, computed in float32)."""
    if not weights.is_file():
        raise InputError(f'weights {weights} do not exist; give the path of a .safetensors file, '
                         'or make one with `physis train so101`')
    model = Network(blocks)
    try:
        with safe_open(weights, framework='pt') as stored:
            missing = model.state_dict().keys() - set(stored.keys())
            if missing:
                raise InputError(f'weights {weights} lack {sorted(missing)[0]} (and '
                                 f'{len(missing) - 1} more tensors); retrain with '
                                 '`physis train so101`')
            model.load_state_dict(
                {name: stored.get_tensor(name).float() for name in model.state_dict()})
    except (SafetensorError, RuntimeError, OSError) as error:  # damaged, or of another network
        raise InputError(f'weights {weights} cannot be read ({" ".join(str(error).split())}); make '
                         'them again with `physis train so101`') from error
    return model.eval().requires_grad_(False)


def network_base(observed: Tensor) -> Tensor:
    """What latents are changes from: `[B, 6 + 16]` joints and world to `[B, 8 * 6 + 16]`."""
    joints, world = observed.split((network.JOINTS, network.WORLD), -1)
    return torch.cat([joints.repeat(1, network.CONTROL_POINTS), world], -1)


def _check(name: str, observation: Mapping[str, np.ndarray], spec: TensorSpec) -> None:
    if name not in observation:
        raise InputError(f'observation lacks `{name}`; so101 needs {spec.shape} {spec.dtype}')
    value = observation[name]
    if value.shape != spec.shape:
        raise InputError(f'observation `{name}` has shape {value.shape}; so101 needs {spec.shape}, '
                         'resize or crop it before')
    if spec.dtype == 'uint8' and value.dtype != np.uint8:
        raise InputError(f'observation `{name}` is {value.dtype}; so101 needs uint8 RGB, 0 to 255')
    if spec.dtype != 'uint8' and not np.isfinite(value).all():
        raise InputError(f'observation `{name}` is {value.tolist()}; every joint must be finite')
