"""Weights from files: only what is held is read, and nothing is loaded half.

A checkpoint is a safetensors file, a folder of them, or a torch file (read with ``weights_only``
and memory-mapped), as published by a family's authors, by diffusers, or by the distillation of a
causal model (weights under ``generator_ema``, with the prefix of a sharded module).  Names are
brought to those of diffusers, and all of them are checked before the first tensor is read.
"""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from physis_core.errors import InputError
from physis_core.models.kit.backbone import Backbone, held_blocks

Take = Callable[[Tensor], Tensor]
_TORCH_ROOTS = ('generator_ema', 'generator', 'model', 'state_dict')
_PREFIXES = ('_fsdp_wrapped_module.', '_checkpoint_wrapped_module.', '_orig_mod.', 'module.')
_ROOTS = ('model.diffusion_model.', 'diffusion_model.', 'model.')
_LISTED = 5


class Part(NamedTuple):
    """One tensor of the model: how it is made of a stored one."""

    name: str
    shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]
    take: Take


@dataclass(frozen=True)
class KeyMap:
    """How the names in a family's files become the names of the model.

    Attributes:
        renames: patterns and replacements, each applied once, in order.
        fused: pattern of a stored name (after renaming) to the parts it holds.
        ignored: pattern of names (after renaming) that the model has no use for.
    """

    renames: tuple[tuple[str, str], ...] = ()
    fused: tuple[tuple[str, Callable[[str], Sequence[Part]]], ...] = ()
    ignored: str = ''

    def parts(self, stored: str) -> Sequence[Part]:
        """What a stored tensor contributes to the model; empty: it is ignored."""
        name = stored
        for prefix in _PREFIXES:
            name = name.replace(prefix, '')
        for root in _ROOTS:
            if name.startswith(root):
                name = name[len(root):]
                break
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        if self.ignored and re.search(self.ignored, name):
            return ()
        for pattern, parts in self.fused:
            if re.search(pattern, name):
                return parts(name)
        return (Part(name, lambda shape: shape, lambda tensor: tensor),)


class Weights(Protocol):
    """Where parameters come from."""

    def tensor(self, name: str) -> Tensor:
        """The parameter of that name."""
        ...


class RandomWeights:
    """Weights that depend on the seed and on their name alone."""

    def __init__(self, seed: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._seed = seed
        self._shapes = shapes

    def tensor(self, name: str) -> Tensor:
        """Matrices keep the variance, norms are near 1, the rest is small."""
        shape = self._shapes[name]
        if torch.get_default_device().type == 'meta':
            return torch.empty(shape)
        generator = torch.Generator('cpu').manual_seed(
            (self._seed << 32) + zlib.crc32(name.encode()))
        normal = torch.randn(shape, generator=generator, device='cpu')
        if 'norm' in name and name.endswith('weight') and len(shape) == 1:
            return 1.0 + 0.1 * normal
        if name.endswith('weight'):
            return normal * (shape[0] / normal.numel()) ** 0.5
        return 0.1 * normal


class Checkpoint:
    """The tensors of a checkpoint by their names in the model; nothing is read before asked for.

    Raises:
        InputError: there is no such file, or it is neither safetensors nor a torch file.
    """

    def __init__(self, path: Path, keys: KeyMap) -> None:
        self._path = path
        self._stored = _open(path)
        self._parts: dict[str, tuple[str, Part]] = {}
        for stored in self._stored.names():
            for part in keys.parts(stored):
                self._parts[part.name] = (stored, part)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name."""
        return {name: part.shape_of(self._stored.shape(stored))
                for name, (stored, part) in self._parts.items()}

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Compare with what the whole model has.

        Raises:
            InputError: names are unknown or missing, or shapes differ; the text lists them.
        """
        shapes = self.shapes()
        wrong = [f'{name} is {shapes[name]}, not {expected[name]}'
                 for name in sorted(shapes.keys() & expected.keys())
                 if shapes[name] != expected[name]]
        problems = [
            f'{len(names)} {what}: {", ".join(names[:_LISTED])}{", ..." * (len(names) > _LISTED)}'
            for what, names in (('missing', sorted(expected.keys() - shapes.keys())),
                                ('unknown', sorted(shapes.keys() - expected.keys())),
                                ('of another shape', wrong)) if names]
        if problems:
            raise InputError(f'weights {self._path} do not fit this model ({"; ".join(problems)}); '
                             'choose the size and the options they were made for')

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        stored, part = self._parts[name]
        return part.take(self._stored.read(stored))


Family = TypeVar('Family', bound=Backbone)


def assemble(make: Callable[[Collection[int]], Family], blocks: int,
             wanted: Collection[int] | None, weights: str, seed: int, keys: KeyMap) -> Family:
    """A model with the weights of the blocks wanted, on torch's default device.

    Args:
        make: makes the model that holds the given blocks.
        blocks: how many blocks the whole model has.
        wanted: the blocks to hold; None: all.
        weights: path of a checkpoint; empty: random weights.
        seed: of random weights.
        keys: the family's names.

    Raises:
        InputError: the checkpoint does not fit; nothing was loaded.
    """
    held = held_blocks(blocks, wanted)
    expected = parameter_shapes(make, range(blocks))
    source: Weights
    if weights:
        source = checkpoint = Checkpoint(Path(weights), keys)
        checkpoint.check(expected)
    else:
        source = RandomWeights(seed, expected)
    with torch.device('meta'):
        model = make(held)
    outside = [name for name, _ in model.named_parameters()
               if not name.startswith(f'{model.stack_name}.')]
    _fill(model, outside, source)
    model.settle()
    for block in held:
        _fill(model, [f'{model.stack_name}.{block}.{name}'
                      for name, _ in model.stack[str(block)].named_parameters()], source)
        model.settle_block(block)
    return model.requires_grad_(False).eval()


def parameter_shapes(make: Callable[[Collection[int]], Backbone], blocks: Collection[int]
                     ) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters, without memory for any."""
    with torch.device('meta'):
        return {name: tuple(parameter.shape)
                for name, parameter in make(blocks).named_parameters()}


def _fill(model: nn.Module, names: Iterable[str], source: Weights) -> None:
    for name in names:
        path, _, leaf = name.rpartition('.')
        module = model.get_submodule(path)
        like = getattr(module, leaf)
        tensor = source.tensor(name).to(torch.get_default_device(), like.dtype)
        setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))


# -- files -------------------------------------------------------------------------------------


class _Stored(Protocol):
    def names(self) -> Iterator[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...


class _Safetensors:
    def __init__(self, files: Sequence[Path]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            try:
                self._list(file)
            except (SafetensorError, OSError) as error:
                raise InputError(f'weights {file} cannot be read as safetensors ({error}); copy or '
                                 'download them again') from error

    def _list(self, file: Path) -> None:
        with safe_open(file, framework='pt') as stored:
            for name in stored.keys():  # noqa: SIM118 (not a mapping)
                self._files[name] = file
                self._shapes[name] = tuple(stored.get_slice(name).get_shape())

    def names(self) -> Iterator[str]:
        return iter(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework='pt') as stored:
            tensor: Tensor = stored.get_tensor(name)
        return tensor


class _TorchFile:
    def __init__(self, file: Path) -> None:
        try:
            content = torch.load(file, map_location='cpu', weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise InputError(f'weights {file} cannot be read as a file that holds only tensors '
                             f'({error}); write them as safetensors') from error
        for root in _TORCH_ROOTS:
            if isinstance(content.get(root), Mapping):
                content = content[root]
                break
        self._tensors: dict[str, Tensor] = {
            name: value for name, value in content.items() if isinstance(value, Tensor)}

    def names(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name].clone()  # the file stays mapped: keep none of its pages


def _open(path: Path) -> _Stored:
    if path.is_dir():
        files = sorted(path.glob('*.safetensors'))
        if not files:
            raise InputError(f'folder {path} holds no .safetensors file; give one that does')
        return _Safetensors(files)
    if not path.is_file():
        raise InputError(f'weights {path} do not exist; give a file or a folder of safetensors')
    if path.suffix == '.safetensors':
        return _Safetensors([path])
    if path.suffix in ('.pt', '.pth', '.bin', '.ckpt'):
        return _TorchFile(path)
    raise InputError(f'weights {path} end in `{path.suffix}`; give .safetensors, .pt, .pth, .bin, '
                     '.ckpt, or a folder of .safetensors')
