"""The model and the plan that a node's parameters ask for, checked against its sources."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path

from physis_core.errors import InputError
from physis_core.models.protocol import ModelDescription
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import MODES
from physis_core.planning.plan import Plan
from physis_core.runtime.engine import EngineOptions
from physis_core.units import ns_from_s
from physis_ros.parameters import Settings

POSITIONS = 'positions'
PREFIX = 'prefix'
"""Input of models for real-time chunking: the positions already promised, [points, joints]."""
_WRENCH = 6


@dataclass(frozen=True)
class Policy:
    """What runs.

    Attributes:
        spec: the model.
        description: of the model.
        plan: how it runs.
        joints: joint names, in the order of the columns of positions.
        compute: what workers compute on: `cpu`, or `cuda`, worker ``i`` on GPU ``i``.
        stall_s: a worker that does not look up for longer hangs [s].
    """

    spec: ModelSpec
    description: ModelDescription
    plan: Plan
    joints: tuple[str, ...]
    compute: str = 'cpu'
    stall_s: float = EngineOptions.stall_s

    @property
    def points(self) -> int:
        """Control points of a chunk."""
        return self.description.outputs[POSITIONS].shape[0]

    @property
    def control_period_ns(self) -> int:
        """Time between two control points."""
        return ns_from_s(self.description.semantics.control_period_s)

    @property
    def prefix_points(self) -> int:
        """Control points that the model wants to know as already promised; 0: none."""
        prefix = self.description.observation.get(PREFIX)
        return 0 if prefix is None else prefix.shape[0]

    def image_size(self, camera: str) -> tuple[int, int]:
        """Height and width of the images that the model takes from a camera."""
        height, width = self.description.observation[camera].shape[:2]
        return height, width


def make_policy(settings: Settings) -> Policy:
    """The policy of the parameters.

    Raises:
        InputError: no such model or plan, or they do not fit the cameras and joints.
    """
    spec = ModelSpec(settings['model'], _options(settings['model_options']))
    description = describe(spec)
    plan = _plan(settings, description)
    policy = Policy(spec, description, plan, tuple(settings['joints.names']),
                    settings['compute'], settings['stall_s'])
    _check_actions(policy)
    _check_inputs(policy, settings)
    return policy


def crowded(policy: Policy, cpus: int) -> str:
    """Why the plan cannot keep its promises on this machine; empty: it can."""
    devices = policy.plan.devices
    if policy.compute != 'cpu' or devices <= cpus:
        return ''
    return (f'{devices} worker processes share {cpus} CPUs: they keep one another waiting, and '
            f'chunks will be late; set `workers` to at most {cpus}, or give a `plan_file` made for '
            'so many devices')


def idle_workers(policy: Policy, settings: Settings) -> str:
    """Which of the workers that were asked for are not started; empty: all are."""
    used, asked = policy.plan.devices, settings['workers']
    if settings['plan_file'] or used >= asked:
        return ''
    return (f'`workers` is {asked}: plan `{policy.plan.mode}` of the '
            f'{policy.description.graph.stages} stages has work for {used}, so no more are started')


def _options(text: str) -> dict[str, object]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f'parameter `model_options` is `{text}`, which is not JSON ({error})'
                         ) from error
    if not isinstance(options, dict):
        raise InputError(f'parameter `model_options` is `{text}`; it must be a JSON object')
    return options


def _plan(settings: Settings, description: ModelDescription) -> Plan:
    file = settings['plan_file']
    if not file:
        plan = MODES[settings['plan_mode']](description.graph, settings['workers'])
        return replace(plan, link='nccl') if settings['compute'] == 'cuda' else plan
    try:
        return Plan.load(Path(file))
    except InputError as error:
        raise InputError(f'parameter `plan_file`: {error}') from error


def _check_actions(policy: Policy) -> None:
    description = policy.description
    outputs, name = description.outputs, description.name
    if POSITIONS not in outputs:
        raise InputError(f'model `{name}` makes no actions (its outputs are '
                         f'{", ".join(outputs)}); a robot needs one with `{POSITIONS}`')
    if len(outputs[POSITIONS].shape) != 2:
        raise InputError(f'output `{POSITIONS}` of model `{name}` has shape '
                         f'{outputs[POSITIONS].shape}; a robot needs (points, joints)')
    semantics = description.semantics
    fitting = f'{policy.points / semantics.latents_per_chunk:g}'
    if policy.control_period_ns <= 0:
        raise InputError(
            f'model `{name}` does not say how far apart its control points are: give its '
            f'description `semantics=OutputSemantics(control_points_per_latent={fitting}, '
            'control_period_s=...)`')
    if not isclose(semantics.control_points_per_chunk, policy.points):
        raise InputError(
            f'model `{name}` says that a chunk has {semantics.control_points_per_chunk:g} control '
            f'points, and its output `{POSITIONS}` has {policy.points}: give its `OutputSemantics` '
            f'control_points_per_latent={fitting}, not {semantics.control_points_per_latent:g}')
    joints = outputs[POSITIONS].shape[-1]
    if len(policy.joints) != joints:
        raise InputError(f'parameter `joints.names` has {len(policy.joints)} names, model '
                         f'`{name}` moves {joints} joints; name them in the order of the model')
    if len(set(policy.joints)) != joints:
        raise InputError(f'parameter `joints.names` names a joint twice: {list(policy.joints)}')


def _check_inputs(policy: Policy, settings: Settings) -> None:
    description = policy.description
    wanted, name = description.observation, description.name
    cameras: list[str] = settings['camera_names']
    instruction: str = settings['instruction.input']
    singles = {parameter: settings[parameter]
               for parameter in ('joints.input', 'wrench.input') if settings[parameter]}
    for parameter, source in (*(('camera_names', camera) for camera in cameras),
                              *singles.items()):
        if source not in wanted:
            raise InputError(f'model `{name}` has no input `{source}`; its inputs are '
                             f'{", ".join(wanted)}: correct `{parameter}`')
    given = [*cameras, *singles.values(), *([instruction] if instruction else [])]
    twice = [source for source in given if given.count(source) > 1]
    if twice:
        raise InputError(f'input `{twice[0]}` of model `{name}` has two sources; name it once '
                         'in `camera_names`, `joints.input`, `wrench.input`, `instruction.input`')
    missing = [source for source in (*wanted, *description.prompt)
               if source not in given and source != PREFIX]
    if missing:
        raise InputError(f'model `{name}` needs input `{missing[0]}`, and no source is named so; '
                         'add it to `camera_names`, or set `joints.input`, `wrench.input` or '
                         '`instruction.input`')
    for camera in cameras:
        shape = wanted[camera].shape
        if len(shape) != 3 or shape[2] != 3:
            raise InputError(f'input `{camera}` of model `{name}` has shape {shape}, which is no '
                             'RGB image; it cannot be one of `camera_names`')
    for source, dtype in (*((camera, 'uint8') for camera in cameras),
                          *((single, 'float32') for single in singles.values())):
        if wanted[source].dtype != dtype:
            raise InputError(f'input `{source}` of model `{name}` is {wanted[source].dtype}; its '
                             f'source gives {dtype}: describe it so, and convert it in encode()')
    for parameter, what, values in (('joints.input', 'joints', len(policy.joints)),
                                    ('wrench.input', 'numbers of a wrench', _WRENCH)):
        source = singles.get(parameter)
        if source is not None and wanted[source].elements != values:
            raise InputError(f'input `{source}` of model `{name}` has {wanted[source].elements} '
                             f'values for {values} {what}; correct `{parameter}`')
