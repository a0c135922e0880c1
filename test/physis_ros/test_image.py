"""Every encoding gives the same colours, and an image that lies about itself is refused."""

from __future__ import annotations

import array
import io
import struct
import zlib

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from sensor_msgs.msg import CompressedImage, Image

from physis_core.errors import InputError
from physis_ros.ingest.compressed import decoded
from physis_ros.ingest.image import PACKED, packed, pixels_of, resized

RGB = np.array([[[200, 40, 90], [10, 250, 130]], [[0, 0, 255], [70, 80, 60]]], np.uint8)


def message(pixels: np.ndarray, encoding: str, padding: int = 0) -> Image:
    rows = pixels.reshape(pixels.shape[0], -1)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    found = Image(height=pixels.shape[0], width=pixels.shape[1], encoding=encoding,
                  step=rows.shape[1])
    found.data = array.array('B', rows.tobytes())
    return found


@pytest.mark.parametrize(('encoding', 'pixels'), [
    ('rgb8', RGB),
    ('bgr8', RGB[:, :, ::-1]),
    ('rgba8', np.dstack([RGB, np.full((2, 2), 9, np.uint8)])),
    ('bgra8', np.dstack([RGB[:, :, ::-1], np.full((2, 2), 9, np.uint8)])),
])
@pytest.mark.parametrize('padding', [0, 5])
def test_colours_are_where_they_belong(encoding: str, pixels: np.ndarray, padding: int) -> None:
    assert (pixels_of('front', message(pixels, encoding, padding)) == RGB).all()


@pytest.mark.parametrize('encoding', PACKED)
def test_what_is_packed_is_read_back(encoding: str) -> None:
    pixels = np.repeat(RGB[:, :, :1], 3, 2) if encoding in ('mono8', '8UC1') else RGB
    assert (pixels_of('front', message(packed(pixels, encoding), encoding)) == pixels).all()


def test_grey_becomes_three_equal_channels() -> None:
    grey = np.array([[[1], [2]], [[3], [4]]], np.uint8)
    assert (pixels_of('front', message(grey, 'mono8')) == np.repeat(grey, 3, 2)).all()


def test_an_rgb_image_is_not_copied() -> None:
    image = message(RGB, 'rgb8')
    assert np.shares_memory(pixels_of('front', image), np.frombuffer(image.data, np.uint8))


@pytest.mark.parametrize(('encoding', 'cell'), [
    ('bayer_rggb8', [[0, 1], [1, 2]]), ('bayer_bggr8', [[2, 1], [1, 0]]),
    ('bayer_gbrg8', [[1, 2], [0, 1]]), ('bayer_grbg8', [[1, 0], [2, 1]])])
def test_a_bayer_pattern_of_one_colour_is_that_colour(encoding: str, cell: list[list[int]]
                                                      ) -> None:
    colour = np.array([200, 100, 50], np.uint8)
    mosaic = np.tile(colour[np.array(cell)], (4, 4))[:, :, None]
    assert (pixels_of('front', message(mosaic, encoding)) == colour).all()


@pytest.mark.parametrize(('encoding', 'order'), [
    ('yuv422', (1, 0, 2, 0)), ('yuv422_yuy2', (0, 1, 0, 2))])
def test_yuv_of_one_colour_is_that_colour(encoding: str, order: tuple[int, ...]) -> None:
    red, green, blue = 200.0, 100.0, 50.0
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    yuv = (luma, 128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402)
    pair = np.array([round(yuv[part]) for part in order], np.uint8)
    pixels = pixels_of('front', message(np.tile(pair, (4, 3)).reshape(4, 6, 2), encoding))
    assert pixels.shape == (4, 6, 3)
    assert np.abs(pixels.astype(int) - [200, 100, 50]).max() <= 2


def test_an_unknown_encoding_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r'camera `wrist`: encoding `32FC1` is not supported .*'
                                         'set `cameras.wrist.encoding` or republish'):
        pixels_of('wrist', message(RGB, '32FC1'))


def test_the_encoding_can_be_overridden() -> None:
    assert (pixels_of('front', message(RGB[:, :, ::-1], '8UC3'), 'bgr8') == RGB).all()


def test_data_that_is_too_short_is_refused() -> None:
    short = message(RGB, 'rgb8')
    short.data = short.data[:-1]
    with pytest.raises(InputError, match='needs 12 bytes, the message has 11'):
        pixels_of('front', short)


@pytest.mark.parametrize(('height', 'width'), [(0, 0), (0, 2)])
def test_an_empty_image_is_refused(height: int, width: int) -> None:
    with pytest.raises(InputError, match='refused'):
        pixels_of('front', Image(height=height, width=width, encoding='rgb8'))


@pytest.mark.parametrize('size', [(128, 128), (96, 128), (480, 640), (50, 60)])
def test_resizing_keeps_the_picture(size: tuple[int, int]) -> None:
    """A gradient stays a gradient, whichever way it is resized."""
    height, width = size
    ramp = np.broadcast_to(np.linspace(0, 255, width)[None, :, None], (height, width, 3))
    small = resized(np.rint(ramp).astype(np.uint8), 64, 64)
    assert small.shape == (64, 64, 3) and small.flags.c_contiguous
    expected = (np.arange(64) + 0.5) / 64 * 255
    assert np.abs(small[10, 2:-2, 1] - expected[2:-2]).max() < 4


@pytest.mark.parametrize('encoding', ['bgr8', 'mono8', 'rgba8'])
def test_resizing_keeps_the_colours_of_every_layout(encoding: str) -> None:
    channels = {'bgr8': 3, 'mono8': 1, 'rgba8': 4}[encoding]
    pixels = np.zeros((480, 640, channels), np.uint8)
    pixels[:, :, 0] = 200
    seen = resized(pixels_of('front', message(pixels, encoding, padding=7)), 64, 64)
    expected = {'bgr8': [0, 0, 200], 'mono8': [200, 200, 200], 'rgba8': [200, 0, 0]}[encoding]
    assert (seen == expected).all()


def test_a_compressed_image() -> None:
    image_module = pytest.importorskip('PIL.Image')
    picture = np.zeros((480, 640, 3), np.uint8)
    picture[:, :320] = (250, 20, 20)
    stored = io.BytesIO()
    image_module.fromarray(picture).save(stored, 'JPEG')
    pixels = decoded('front', CompressedImage(format='jpeg', data=stored.getvalue()), 64, 64)
    assert pixels.shape[0] >= 64
    small = resized(pixels, 64, 64)
    assert np.abs(small[32, 8].astype(int) - [250, 20, 20]).max() < 12
    assert small[32, 56].max() < 12


def png(width: int, height: int, kind: bytes = b'IDAT') -> bytes:
    """A PNG whose second piece is of a kind."""
    def piece(name: bytes, content: bytes) -> bytes:
        return (struct.pack('>I', len(content)) + name + content
                + struct.pack('>I', zlib.crc32(name + content)))
    return (b'\x89PNG\r\n\x1a\n'
            + piece(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0))
            + piece(kind, zlib.compress(bytes(10))))


@pytest.mark.parametrize('data', [
    b'', b'no image', png(4, 4), png(4, 4)[:30], png(4, 4, b'\xf1\x36\xa1P'), png(60_000, 60_000),
    b'P6 4 .4 255 '], ids=['empty', 'text', 'short', 'cut', 'piece', 'bomb', 'number'])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    pytest.importorskip('PIL.Image')
    with pytest.raises(InputError, match='cannot be decoded'):
        decoded('front', CompressedImage(format='jpeg', data=data), 64, 64)


def test_what_a_message_says_does_not_fill_the_log() -> None:
    with pytest.raises(InputError, match=r'encoding `x+` is not supported') as told:
        pixels_of('front', Image(height=1, width=1, encoding='x' * 100_000, data=[0]))
    assert len(str(told.value)) < 400
