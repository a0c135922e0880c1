"""Make a recording (rosbag2, MCAP) of published episodes (RLDS, TFRecord), for `physis replay`."""

from __future__ import annotations

import argparse
import array
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Header

from physis_core.errors import InputError
from physis_core.units import NS_PER_S
from physis_ros.replay.bag_writer import BagWriter
from physis_ros.replay.rlds import Episode, episodes, image_format

JOINTS_TOPIC = '/joint_states'
# Not zero: a stamp of zero means that there is none.
_BEGIN_NS = NS_PER_S


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('file', type=Path, help='a TFRecord file of episodes')
    parser.add_argument('--out', type=Path, required=True, help='folder of the recording, new')
    parser.add_argument('--hz', type=float, default=5.0, help='steps per second of the data set')
    parser.add_argument('--episodes', type=int, help='how many of them; default: all')
    parser.add_argument('--state', default='steps/observation/state',
                        help='feature that becomes the joint positions')
    parser.add_argument('--joints', nargs='+', metavar='NAME',
                        help='names of its values; default: state_0, state_1, ...')


def run(args: argparse.Namespace) -> int:
    """Convert and say what was written."""
    if not args.hz > 0:
        raise InputError(f'--hz is {args.hz:g}; it must be positive')
    if args.episodes is not None and not 1 <= args.episodes <= sys.maxsize:
        raise InputError(f'--episodes is {args.episodes}; it goes from 1 to {sys.maxsize}')
    found = list(islice(episodes(args.file, args.state), args.episodes))
    if not found:
        raise InputError(f'{args.file} has no episodes')
    joints = _names(args.joints, found)
    with closing(BagWriter(args.out)) as bag:
        steps = write(bag, found, args.hz, joints)
    print(f'{args.out}: {len(found)} episodes, {steps} steps, {steps / args.hz:.1f} s; '
          f'{", ".join(map(camera_topic, found[0].images))}, {JOINTS_TOPIC} ({", ".join(joints)})')
    return 0


def camera_topic(camera: str) -> str:
    """Where the images of a camera go."""
    return f'/camera/{camera}/image_raw/compressed'


def write(bag: BagWriter, found: Sequence[Episode], hz: float, joints: Sequence[str]) -> int:
    """Write the episodes, one after the other; returns the number of their steps."""
    step = 0
    for episode in found:
        for index, positions in enumerate(episode.states):
            time_ns = _BEGIN_NS + round(step * NS_PER_S / hz)
            header = Header(stamp=Time(nanoseconds=time_ns).to_msg())
            # States come first: an observation is made when the images are there.
            bag.write(JOINTS_TOPIC, JointState(
                header=header, name=list(joints),
                position=array.array('d', positions.astype(np.float64).tobytes())), time_ns)
            for camera, images in episode.images.items():
                image = images[index]
                bag.write(camera_topic(camera), CompressedImage(
                    header=header, format=image_format(image) or '',
                    data=array.array('B', image)), time_ns)
            step += 1
    return step


def _names(wanted: Sequence[str] | None, found: Sequence[Episode]) -> list[str]:
    (width, *others) = sorted({episode.states.shape[1] for episode in found})
    if others:
        raise InputError(f'the states have {width} values in one episode and {others[0]} in '
                         'another')
    if wanted is None:
        return [f'state_{index}' for index in range(width)]
    if len(wanted) != width or len(set(wanted)) != width:
        raise InputError(f'--joints names {len(set(wanted))} values, the state has {width}')
    return list(wanted)
