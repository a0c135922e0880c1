"""A Matplotlib figure without a display, written to the format that the file name asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from physis_core.errors import InputError

COLOURS = ('#3b6fb6', '#e08a2e', '#4f9d69', '#b5519b', '#8c6d46', '#5aa7b5', '#c0504d', '#7f7f7f')


@contextmanager
def canvas(path: Path, width: float, height: float) -> Iterator[Axes]:
    """Axes to draw on; the picture is written when the block ends.

    Raises:
        InputError: the file's ending is not a picture format, or it cannot be written.
    """
    figure = Figure(figsize=(width, height), layout='constrained')
    FigureCanvasAgg(figure)
    yield figure.add_subplot()
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip('.') not in known:
        raise InputError(f'picture `{path}` has the ending `{path.suffix}`; use one of '
                         f'{", ".join(sorted(known))}')
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f'picture `{path}` cannot be written ({error.strerror}); '
                         'choose another place') from error
