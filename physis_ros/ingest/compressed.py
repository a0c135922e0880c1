"""Compressed images (JPEG, PNG) as arrays."""

from __future__ import annotations

import io

import numpy as np
from sensor_msgs.msg import CompressedImage

from physis_core.errors import InputError
from physis_ros.ingest.image import Pixels


def decoded(camera: str, message: CompressedImage, height: int, width: int) -> Pixels:
    """RGB uint8 ``[h, w, 3]`` of a compressed image, at least ``height`` by ``width`` if it was.

    A JPEG is decoded directly at the smallest of its scales that is not smaller than that.

    Raises:
        InputError: Pillow is not installed, or the data is no image.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(f'camera `{camera}`: compressed images need Pillow; install it with '
                         '`pip install pillow`, or subscribe to raw images') from error
    try:
        image = Image.open(io.BytesIO(message.data))
        image.draft('RGB', (width, height))
        return np.array(image.convert('RGB'))
    except Exception as error:  # a damaged one raises whatever its decoder came across
        raise InputError(f'camera `{camera}`: the `{message.format:.40}` image of '
                         f'{len(message.data)} bytes cannot be decoded ({error}); the frame is '
                         'refused') from error
