"""Camera images as a model wants them: colour order, size and range, in one pass.

On a GPU with CuPy one kernel reads each source pixel where it is needed and writes the result;
the tensor it returns shares that memory (DLPack).  Everywhere else torch does the same in steps.
Resizing is bilinear between pixel centres, without smoothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import util
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from physis_core.errors import InputError

_THREADS = 256
_SOURCE = r"""
extern "C" __global__ void camera(const unsigned char* image, float* output, int images, int height,
                                  int width, int rows, int columns, int swap,
                                  const float* scale, const float* offset) {
    long index = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (long)images * rows * columns) return;
    int column = index % columns, row = index / columns % rows, one = index / columns / rows;
    float y = fmaxf((row + 0.5f) * height / rows - 0.5f, 0.0f);
    float x = fmaxf((column + 0.5f) * width / columns - 0.5f, 0.0f);
    int top = (int)y, left = (int)x;
    int bottom = min(top + 1, height - 1), right = min(left + 1, width - 1);
    float down = y - top, across = x - left;
    const unsigned char* pixels = image + (long)one * height * width * 3;
    for (int channel = 0; channel < 3; ++channel) {
        int from = swap ? 2 - channel : channel;
        float above = pixels[(top * width + left) * 3 + from] * (1.0f - across)
                    + pixels[(top * width + right) * 3 + from] * across;
        float below = pixels[(bottom * width + left) * 3 + from] * (1.0f - across)
                    + pixels[(bottom * width + right) * 3 + from] * across;
        output[(((long)one * 3 + channel) * rows + row) * columns + column]
            = (above * (1.0f - down) + below * down) * scale[channel] + offset[channel];
    }
}
"""


@dataclass(frozen=True)
class CameraFormat:
    """What a model wants of its cameras.

    Attributes:
        height: rows of the result.
        width: columns of the result.
        bgr: whether the source is in the order blue, green, red; the result is red, green, blue.
        mean: subtracted from values in 0 to 1, per channel.
        spread: divided by afterwards, per channel.
    """

    height: int
    width: int
    bgr: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    spread: tuple[float, ...] = (0.5, 0.5, 0.5)


def prepared(images: Tensor, wanted: CameraFormat) -> Tensor:
    """Images ``[B, rows, columns, 3]`` to float32 ``[B, 3, height, width]``.

    Args:
        images: uint8, or, as training changes them, float32 of the same range, 0 to 255.
        wanted: what comes out.

    Raises:
        InputError: the images have another type or shape.
    """
    if (images.dtype not in (torch.uint8, torch.float32) or images.ndim != 4
            or images.shape[-1] != 3):
        raise InputError(f'images are {images.dtype} {tuple(images.shape)}; give uint8 of shape '
                         '(images, rows, columns, 3)')
    if images.is_cuda and images.dtype == torch.uint8 and util.find_spec('cupy'):
        return _in_one_kernel(images.contiguous(), wanted)
    return _in_steps(images, wanted)


def _in_steps(images: Tensor, wanted: CameraFormat) -> Tensor:
    pixels = (images.flip(-1) if wanted.bgr else images).permute(0, 3, 1, 2).contiguous().float()
    if pixels.shape[2:] != (wanted.height, wanted.width):
        pixels = functional.interpolate(pixels, (wanted.height, wanted.width), mode='bilinear')
    scale, offset = _scale_offset(wanted, images.device)
    return torch.addcmul(offset.view(3, 1, 1), pixels, scale.view(3, 1, 1))


def _in_one_kernel(images: Tensor, wanted: CameraFormat) -> Tensor:
    import cupy

    count, height, width, _ = images.shape
    output = torch.empty(count, 3, wanted.height, wanted.width, device=images.device)
    scale, offset = _scale_offset(wanted, images.device)
    arrays = [cupy.from_dlpack(tensor) for tensor in (images, output, scale, offset)]
    blocks = -(-count * wanted.height * wanted.width // _THREADS)
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(images.device).cuda_stream)
    with cupy.cuda.Device(images.device.index), stream:
        _kernel()((blocks,), (_THREADS,), (
            arrays[0], arrays[1], count, height, width, wanted.height, wanted.width,
            int(wanted.bgr), arrays[2], arrays[3]))
    return output


@lru_cache
def _kernel() -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, 'camera')


@lru_cache(64)
def _scale_offset(wanted: CameraFormat, device: torch.device) -> tuple[Tensor, Tensor]:
    """``value / 255`` less the mean, over the spread, as ``value * scale + offset``."""
    scale = [1.0 / (255.0 * spread) for spread in wanted.spread]
    offset = [-mean / spread for mean, spread in zip(wanted.mean, wanted.spread, strict=True)]
    with torch.inference_mode(False):  # training may come across what inference has made
        both = torch.tensor([scale, offset], device=device)
        return both[0], both[1]
