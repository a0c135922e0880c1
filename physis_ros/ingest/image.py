"""Images as arrays: every common encoding to RGB, resized once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sensor_msgs.msg import Image

from physis_core.errors import InputError

Pixels = NDArray[np.uint8]

# Channels in memory, and where red, green and blue are among them.
_INTERLEAVED = {
    'rgb8': (3, (0, 1, 2)), 'bgr8': (3, (2, 1, 0)), 'rgba8': (4, (0, 1, 2)),
    'bgra8': (4, (2, 1, 0)), '8UC3': (3, (2, 1, 0)), 'mono8': (1, (0, 0, 0)),
    '8UC1': (1, (0, 0, 0)),
}
# The colours of the 2x2 cell, row by row.
_BAYER = {'bayer_rggb8': 'rggb', 'bayer_bggr8': 'bggr', 'bayer_gbrg8': 'gbrg',
          'bayer_grbg8': 'grbg'}
# Order of the bytes of two pixels.
_YUV422 = {'yuv422': 'uyvy', 'uyvy': 'uyvy', 'yuv422_yuy2': 'yuyv', 'yuyv': 'yuyv'}
PACKED = tuple(_INTERLEAVED)
ENCODINGS = (*PACKED, *_BAYER, *_YUV422)


def pixels_of(camera: str, message: Image, encoding: str = '') -> Pixels:
    """RGB uint8 ``[height, width, 3]`` of an image message, without a copy where it can be.

    Args:
        camera: named in errors.
        message: any of ``ENCODINGS``.
        encoding: used instead of the message's own; empty: the message's.

    Raises:
        InputError: an encoding that is not supported, or data that is shorter than it says.
    """
    encoding = encoding or message.encoding
    height, width, step = message.height, message.width, message.step
    if encoding in _INTERLEAVED:
        row_bytes = width * _INTERLEAVED[encoding][0]
    elif encoding in _BAYER:
        row_bytes = width
    elif encoding in _YUV422:
        row_bytes = width * 2
    else:
        raise InputError(f'camera `{camera}`: encoding `{encoding:.40}` is not supported '
                         f'({", ".join(ENCODINGS)}); set `cameras.{camera}.encoding` or republish')
    step = step or row_bytes
    if not height or not width or step < row_bytes or len(message.data) < height * step:
        raise InputError(f'camera `{camera}`: {width}x{height} `{encoding}` with step {step} needs '
                         f'{height * max(step, row_bytes)} bytes, the message has '
                         f'{len(message.data)}; the frame is refused')
    rows = np.frombuffer(message.data, np.uint8, height * step).reshape(height, step)
    rows = rows[:, :row_bytes]
    if encoding in _BAYER:
        return _from_bayer(camera, rows, _BAYER[encoding])
    if encoding in _YUV422:
        return _from_yuv422(camera, rows, _YUV422[encoding])
    channels, order = _INTERLEAVED[encoding]
    pixels = rows.reshape(height, width, channels)
    if order == (0, 1, 2):
        return pixels[:, :, :3]
    if order == (2, 1, 0):
        return pixels[:, :, 2::-1]
    return np.broadcast_to(pixels, (height, width, 3))


def packed(pixels: Pixels, encoding: str) -> Pixels:
    """RGB uint8 ``[height, width, 3]`` as `pixels_of` reads it back: ``[height, width, channels]``.

    Args:
        pixels: of an image that came in this encoding.
        encoding: one of ``PACKED``.
    """
    channels, order = _INTERLEAVED[encoding]
    found = np.full((*pixels.shape[:2], channels), 255, np.uint8)
    found[:, :, list(order)] = pixels
    return found


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """The image at the size the model takes, ``[height, width, 3]``, contiguous."""
    if pixels.shape[:2] == (height, width):
        return np.ascontiguousarray(pixels)
    # torch takes rows of any stride, but none that run backwards: colours are turned at the end,
    # where there are few pixels. So the large image is read once, where it lies in the message.
    backwards = pixels.strides[2] < 0
    source = pixels[:, :, ::-1] if backwards else pixels
    if source.strides[2] == 0:  # one grey channel seen three times
        source = np.ascontiguousarray(source)
    small = torch.nn.functional.interpolate(
        torch.from_numpy(source).permute(2, 0, 1)[None], (height, width), mode='bilinear',
        antialias=True)[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(small[:, :, ::-1] if backwards else small)


def _from_bayer(camera: str, rows: Pixels, cell: str) -> Pixels:
    """Half-size planes of the cell, grown back by repetition: models see small images anyway."""
    height, width = rows.shape
    if height % 2 or width % 2:
        raise InputError(f'camera `{camera}`: a Bayer image of {width}x{height} has an odd side; '
                         'the frame is refused')
    planes = {'r': [], 'g': [], 'b': []}  # type: dict[str, list[Pixels]]
    for index, colour in enumerate(cell):
        planes[colour].append(rows[index // 2::2, index % 2::2])
    green = (planes['g'][0].astype(np.uint16) + planes['g'][1] + 1) // 2
    small = np.stack([planes['r'][0], green.astype(np.uint8), planes['b'][0]], -1)
    return small.repeat(2, 0).repeat(2, 1)


def _from_yuv422(camera: str, rows: Pixels, order: str) -> Pixels:
    """ITU-R BT.601, full range; two pixels share their colour."""
    height, row_bytes = rows.shape
    if row_bytes % 4:
        raise InputError(f'camera `{camera}`: a YUV 4:2:2 image of odd width {row_bytes // 2}; '
                         'the frame is refused')
    pairs = rows.reshape(height, -1, 4).astype(np.float32)
    luma = pairs[:, :, [index for index, name in enumerate(order) if name == 'y']]
    u = pairs[:, :, order.index('u'), None] - 128.0
    v = pairs[:, :, order.index('v'), None] - 128.0
    rgb = np.stack([luma + 1.402 * v, luma - 0.344136 * u - 0.714136 * v, luma + 1.772 * u], -1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8).reshape(height, -1, 3)
