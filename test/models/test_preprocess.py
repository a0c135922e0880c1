"""Camera images: what the steps compute, and that the kernel computes the same."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib import util
from pathlib import Path

import pytest
import torch

from physis_core.errors import InputError
from physis_core.models.kit import preprocess
from physis_core.models.kit.preprocess import CameraFormat, prepared

SIZES = [(48, 64), (17, 23), (96, 128), (5, 200)]


def picture(rows: int = 48, columns: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (2, rows, columns, 3), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(0))


def test_without_resizing_only_range_and_layout_change() -> None:
    images = picture()
    ready = prepared(images, CameraFormat(48, 64))
    assert ready.shape == (2, 3, 48, 64)
    assert torch.allclose(ready, images.permute(0, 3, 1, 2) / 127.5 - 1.0, atol=1e-6)


def test_blue_first_images_are_turned_round_and_channels_have_their_own_range() -> None:
    images = picture()
    wanted = CameraFormat(48, 64, mean=(0.1, 0.2, 0.3), spread=(1.0, 0.5, 0.25))
    swapped = CameraFormat(48, 64, bgr=True, mean=wanted.mean, spread=wanted.spread)
    assert torch.equal(prepared(images.flip(-1), swapped), prepared(images, wanted))
    white = prepared(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8), CameraFormat(
        2, 2, mean=wanted.mean, spread=wanted.spread))
    assert torch.allclose(white[0, :, 0, 0], torch.tensor([0.9, 1.6, 2.8]))


def test_halving_averages_four_pixels() -> None:
    images = picture()
    halved = prepared(images, CameraFormat(24, 32, mean=(0, 0, 0), spread=(1, 1, 1)))
    blocks = images.float().unflatten(1, (24, 2)).unflatten(3, (32, 2)).mean((2, 4)) / 255
    assert torch.allclose(halved, blocks.permute(0, 3, 1, 2), atol=1e-5)


@pytest.mark.parametrize('images', [
    torch.zeros(2, 4, 4, 3, dtype=torch.int32), torch.zeros(4, 4, 3, dtype=torch.uint8),
    torch.zeros(2, 4, 4, 1, dtype=torch.uint8)])
def test_other_arrays_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match='uint8 of shape'):
        prepared(images, CameraFormat(2, 2))


@pytest.mark.skipif(not (util.find_spec('cupy') and torch.cuda.is_available()),
                    reason='needs CuPy (extra `gpu`) and a CUDA device')
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('bgr', [False, True])
def test_the_kernel_agrees_with_torch_and_hands_over_without_a_copy(
        size: tuple[int, int], bgr: bool) -> None:
    wanted = CameraFormat(*size, bgr=bgr, mean=(0.4, 0.5, 0.6), spread=(0.2, 0.3, 0.4))
    import cupy

    images = picture().cuda()
    fused, stepwise = prepared(images, wanted), preprocess._in_steps(images, wanted)
    assert fused.is_cuda
    assert cupy.get_default_memory_pool().total_bytes() == 0  # all memory is torch's
    assert (fused - stepwise).abs().max() < 1e-4


@pytest.mark.skipif(not shutil.which('g++'), reason='needs g++ to compile the kernel for the CPU')
def test_the_kernel_compiled_for_the_cpu_agrees_with_torch(tmp_path: Path) -> None:
    """One thread after the other: its arithmetic, without a GPU."""
    source = tmp_path / 'camera.cpp'
    source.write_text('\n'.join((
        '#include <cmath>', '#include <algorithm>', 'using std::min;', '#define __global__',
        'static struct { long x; } blockIdx, blockDim, threadIdx;', preprocess._SOURCE,
        'extern "C" void at(long index) { blockIdx.x = index; blockDim.x = 1; threadIdx.x = 0; }')))
    library = tmp_path / 'camera.so'
    subprocess.run(['g++', '-shared', '-fPIC', '-O1', '-o', library, source], check=True)
    kernel = ctypes.CDLL(str(library))
    images = picture(12, 16)
    for size in ((12, 16), (5, 7), (20, 33)):
        for bgr in (False, True):
            wanted = CameraFormat(*size, bgr=bgr, mean=(0.4, 0.5, 0.6), spread=(0.2, 0.3, 0.4))
            output = torch.empty(2, 3, *size)
            scale, offset = preprocess._scale_offset(wanted, images.device)
            pointers = [ctypes.c_void_p(tensor.data_ptr())
                        for tensor in (images, output, scale, offset)]
            for index in range(2 * size[0] * size[1]):
                kernel.at(ctypes.c_long(index))
                kernel.camera(*pointers[:2], 2, 12, 16, *size, int(bgr), *pointers[2:])
            assert (output - prepared(images, wanted)).abs().max() < 1e-5
