"""A text for the model: it holds until another one is given, and goes where the model takes it.

A text is an input like any other, of type uint8 ``[n]``: UTF-8, filled up with zeros.  What the
words mean is the model's matter.
"""

from __future__ import annotations

import numpy as np

from physis_core.errors import InputError
from physis_core.models.protocol import ModelDescription, TensorSpec
from physis_ros.ingest.source import Source

_TEXT_DTYPE = 'uint8'


class Instruction:
    """The newest instruction; used by one thread."""

    def __init__(self, name: str, description: ModelDescription, stale_ns: int) -> None:
        """Make one without a text.

        Args:
            name: of the model's input, among its observation or its prompt.
            description: of the model.
            stale_ns: an older text is not used; 0: it is used until another one comes.

        Raises:
            InputError: the model has no such input, or one that is not a text.
        """
        self.source = Source(name, stale_ns, frozen_ns=0)
        self.is_prompt = name in description.prompt
        inputs = description.prompt if self.is_prompt else description.observation
        self._spec = text_input(name, description.name, inputs.get(name))

    @property
    def prompt(self) -> dict[str, np.ndarray]:
        """What a stream of the model is opened with."""
        if not self.is_prompt:
            return {}
        return {self.source.name: self.encoded(self.source.text)}

    def encoded(self, text: str) -> np.ndarray:
        """The text as the model takes it.

        Raises:
            InputError: it is too long, or has a zero in it.
        """
        data = text.encode()
        room = self._spec.elements
        if len(data) > room:
            raise InputError(f'the instruction takes {len(data)} bytes, the model takes at most '
                             f'{room}; shorten it, the one before is kept')
        if b'\0' in data:
            raise InputError('the instruction has a character of code 0; leave it out, the one '
                             'before is kept')
        return np.frombuffer(data.ljust(room, b'\0'), np.uint8)

    def take(self, text: str, now_ns: int) -> bool:
        """Take a text, an empty one to have none any more; whether that changed it.

        Raises:
            InputError: it cannot be given to the model; nothing was changed.
        """
        value = self.encoded(text)
        source = self.source
        changed = text != source.text
        if text:
            source.take(value, now_ns, now_ns)
        else:
            source.clear()
        source.text = text
        return changed


def text_input(name: str, model: str, spec: TensorSpec | None) -> TensorSpec:
    """The input of a model, if it takes a text.

    Raises:
        InputError: there is none of that name, or it takes something else.
    """
    if spec is None:
        raise InputError(f'model `{model}` has no input `{name}`; correct `instruction.input`, or '
                         'leave it empty')
    if spec.dtype != _TEXT_DTYPE or len(spec.shape) != 1:
        raise InputError(f'input `{name}` of model `{model}` is {spec.dtype} {list(spec.shape)}, '
                         f'an instruction is text ({_TEXT_DTYPE} [bytes]); it cannot be '
                         '`instruction.input`')
    return spec
