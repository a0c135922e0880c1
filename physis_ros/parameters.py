"""Parameters of the nodes: declared once, with description, unit and range.

Numbers are accepted as integer or as floating point (`500` and `500.0` are the same on a command
line).  A value out of range is one sentence naming the value, the range and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterUninitializedException
from rclpy.node import Node
from rclpy.parameter import Parameter

from physis_core.errors import InputError

# Set by whoever starts a node and known to rclpy, declared at this moment or not.
_OF_RCLPY = ('use_sim_time', 'start_type_description_service')
_OF_RCLPY_PREFIX = 'qos_overrides.'

Value = bool | int | float | str | Sequence[str] | Sequence[float]


@dataclass(frozen=True)
class Setting:
    """One parameter.

    Attributes:
        name: as in YAML files; its suffix is its unit.
        default: also says the type.
        description: one sentence.
        low: least value of a number, or of each number of a list.
        high: greatest value.
        choices: allowed texts.
        fixed_from: state of the node from which on it cannot be changed any more: when
            it is `configured` or `active`, or `never`.
    """

    name: str
    default: Value
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fixed_from: Literal['configured', 'active', 'never'] = 'configured'

    def checked(self, value: Any) -> Any:
        """The value in its own type.

        Raises:
            InputError: wrong type, out of range or not among the choices.
        """
        value = self._typed(value)
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if (self.low is not None and number < self.low) or (
                    self.high is not None and number > self.high):
                raise InputError(f'parameter `{self.name}` is {number}; it must be '
                                 f'{self._range()} ({self.description})')
        if self.choices and value not in self.choices:
            raise InputError(f'parameter `{self.name}` is `{value}`; choose one of '
                             f'{", ".join(self.choices)}')
        return value

    def descriptor(self) -> ParameterDescriptor:
        """What `ros2 param describe` shows.

        The range stands in the text: rclpy would enforce a range of the descriptor while the node
        is being constructed, where all it can do is end the process with a trace-back.
        """
        constraints = f'one of {", ".join(self.choices)}' if self.choices else ''
        if self.low is not None or self.high is not None:
            constraints = self._range()
        return ParameterDescriptor(
            name=self.name, description=self.description, additional_constraints=constraints,
            dynamic_typing=True)

    def _typed(self, value: Any) -> Any:
        default = self.default
        if isinstance(default, bool):
            fits = isinstance(value, bool)
        elif isinstance(default, int):
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif isinstance(default, float):
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(value) if fits else value
        elif isinstance(default, str):
            fits = isinstance(value, str)
        else:
            # An empty list says nothing about its type, nor does rcl ([] arrives as bytes).
            # The ROS idiom for an empty list of texts is a list with one empty text.
            value = [] if value is None else [item for item in value if item != '']
            wanted = str if all(isinstance(item, str) for item in default) and default else None
            fits = all(isinstance(item, wanted or (str, int, float)) for item in value)
        if not fits:
            kind = 'list' if isinstance(default, tuple) else type(default).__name__
            raise InputError(f'parameter `{self.name}` is {value!r}; it must be of type '
                             f'{kind} ({self.description}){_unquoted(default, value)}')
        return value

    def _range(self) -> str:
        if self.low is None:
            return f'at most {self.high}'
        if self.high is None:
            return f'at least {self.low}'
        return f'between {self.low} and {self.high}'


class Settings:
    """The parameters of a node; read with `settings['name']`."""

    def __init__(self, node: Node, settings: Sequence[Setting]) -> None:
        """Declare them.  A wrong value does not fail here but where it is read."""
        self._node = node
        self._settings: dict[str, Setting] = {}
        self._fixed: Callable[[Setting], str] = lambda setting: ''
        for setting in settings:
            self.add(setting)

    def add(self, setting: Setting) -> None:
        """Declare one more."""
        self._settings[setting.name] = setting
        default = setting.default
        self._node.declare_parameter(
            setting.name, list(default) if isinstance(default, tuple) else default,
            setting.descriptor())

    def refuse_bad_changes(self, fixed: Callable[[Setting], str]) -> None:
        """From now on a change is refused with its reason, if the value is not acceptable, or if
        it would not count any more.

        ``fixed`` says why a parameter cannot be changed now; empty: it can.
        """
        self._fixed = fixed
        self._node.add_on_set_parameters_callback(self._on_set)

    def check(self) -> None:
        """Raise InputError for the first parameter that is not known or not acceptable."""
        refuse_unknown(self._node)
        for name in self._settings:
            self[name]

    def __getitem__(self, name: str) -> Any:
        """The checked value."""
        try:
            value = self._node.get_parameter(name).value
        except ParameterUninitializedException:
            value = None
        return self._settings[name].checked(value)

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            setting = self._settings.get(parameter.name)
            if setting is None:
                continue
            try:
                value = setting.checked(parameter.value)
                reason = '' if value == self[parameter.name] else self._fixed(setting)
            except InputError as error:
                reason = str(error)
            if reason:
                return SetParametersResult(successful=False, reason=reason)
        return SetParametersResult(successful=True)


def refuse_unknown(node: Node) -> None:
    """Refuse what was set from outside and is not a parameter of the node.

    To be called when all parameters are declared: rclpy drops the others without a word.

    Raises:
        InputError: names the first of them, and the parameter that is spelled most like it.
    """
    # What was set has no public name in rclpy, unless every parameter is declared unseen.
    given: Sequence[str] = list(node._parameter_overrides)
    known = list(node.list_parameters([], 0).names)
    for name in given:
        if name in known or name in _OF_RCLPY or name.startswith(_OF_RCLPY_PREFIX):
            continue
        raise InputError(f'parameter `{name}` is not known to {node.get_name()}; '
                         f'{_advice(name, known)}')


def _advice(name: str, known: Sequence[str]) -> str:
    section, _, rest = name.partition('.')
    camera = rest.rpartition('.')[0]
    if section == 'cameras' and camera and not any(
            other.startswith(f'cameras.{camera}.') for other in known):
        return (f'`camera_names` does not name a camera `{camera}`: add it there, or correct or '
                'remove this section')
    return f'the closest that is known is `{_closest(name, known)}`: correct or remove it'


def _closest(name: str, known: Sequence[str]) -> str:
    """The known name that is spelled most like it; of equals the first."""
    return max(known, key=lambda other: difflib.SequenceMatcher(None, name, other).ratio())


def _unquoted(default: Value, value: Any) -> str:
    """A hint where a word became true or false on its way through YAML."""
    items = value if isinstance(value, list) else [value]
    if isinstance(default, bool) or not any(isinstance(item, bool) for item in items):
        return ''
    return ('; without quotes, y, n, yes, no, on and off are true or false in YAML: write '
            "'y' for the word")
