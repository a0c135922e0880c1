"""Train a demo model from seeds: demonstrations, encoder, world action model, evaluation."""

import argparse
import json
import multiprocessing
from pathlib import Path

import torch

from physis_core.errors import InputError
from physis_core.models.so101.network import Network
from physis_core.models.so101.stages import WEIGHTS, So101Model, load_network
from physis_ros.demo import training
from physis_ros.demo.demonstrations import Demonstrations, generate
from physis_ros.demo.evaluation import Trial, evaluate, world_errors
from physis_ros.demo.scene import Scene

STAGES = ('demos', 'encoder', 'wam', 'evaluate')
SHARDS = 2  # fixed, so that the demonstrations do not depend on the number of processes
_SEEDS_PER_RUN, _SEEDS_PER_SHARD = 1_000_000, 100_000  # never those of the evaluation
_DELAYS_S = (0.0, 0.08, 0.16, 0.32, 0.64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('model', choices=['so101'], help='the model to train')
    parser.add_argument('--stage', choices=[*STAGES, 'all'], default='all',
                        help='what to do; each stage reads what the one before left in --out')
    parser.add_argument('--out', type=Path, default=Path('out/train'),
                        help='folder of demonstrations, weights and results (about 1.5 GB)')
    parser.add_argument('--seed', type=int, default=0, help='seed of everything random')
    parser.add_argument('--episodes', type=int, default=650, help='demonstrations to record')
    parser.add_argument('--processes', type=int, default=SHARDS, choices=range(1, SHARDS + 1),
                        help='processes that record demonstrations')
    parser.add_argument('--evaluate-episodes', type=int, default=50,
                        help='closed-loop episodes per delay')
    parser.add_argument('--weights', type=Path,
                        help=f'weights to evaluate; by default those in --out, or {WEIGHTS.name} '
                        'of the package')


def run(args: argparse.Namespace) -> int:
    """Run the stages that were asked for."""
    for name, least in (('seed', 0), ('episodes', SHARDS), ('evaluate_episodes', 1)):
        if getattr(args, name) < least:
            raise InputError(f'--{name.replace("_", "-")} is {getattr(args, name)}; '
                             f'the least is {least}')
    torch.set_num_threads(1)
    stages = STAGES if args.stage == 'all' else (args.stage,)
    for stage in stages:
        {'demos': _demos, 'encoder': _encoder, 'wam': _wam, 'evaluate': _evaluate}[stage](args)
    return 0


def _demos(args: argparse.Namespace) -> None:
    shards = [(args.episodes // SHARDS + (shard < args.episodes % SHARDS), args.seed, shard,
               args.out) for shard in range(SHARDS)]
    with multiprocessing.get_context('spawn').Pool(args.processes) as pool:
        pool.starmap(_record_shard, shards)


def _record_shard(episodes: int, seed: int, shard: int, out: Path) -> None:
    torch.set_num_threads(1)
    first_seed = seed * _SEEDS_PER_RUN + (shard + 1) * _SEEDS_PER_SHARD
    generate(episodes, first_seed, f'demonstrations {shard + 1}/{SHARDS}').save(
        out / f'demos-{shard}.npz')


def _encoder(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    demos, model = Demonstrations.load(args.out), Network()
    error_mm = training.train_encoder(demos, model, training.ENCODER_SCHEDULE, args.seed)
    training.set_world_latent(demos, model)
    training.export(model, _encoder_path(args))
    print(f'cube and goal are found to {error_mm:.1f} mm (held-out median per coordinate)')


def _wam(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    model = Network()
    model.load_state_dict(load_network(_encoder_path(args)).state_dict())
    weights = _weights_path(args)
    average = training.train_wam(
        Demonstrations.load(args.out), model, training.WAM_SCHEDULE, args.seed, weights)
    training.export(average, weights)
    print(f'wrote {weights} ({weights.stat().st_size / 1e6:.1f} MB)')


def _evaluate(args: argparse.Namespace) -> None:
    weights = args.weights or (_weights_path(args) if _weights_path(args).exists() else WEIGHTS)
    model = So101Model(weights)
    scenes = [Scene() for _ in range(args.evaluate_episodes)]
    trials = [*(Trial(delay_s) for delay_s in _DELAYS_S),
              *(Trial(delay_s, image_age_max_s=0.033) for delay_s in _DELAYS_S),
              Trial(0.08, blank_cameras=True)]
    outcomes = []
    for trial in trials:
        outcomes.append(evaluate(model, scenes, trial))
        print(outcomes[-1])
    for scene in scenes:
        scene.close()
    errors = []
    if list(args.out.glob('demos-*.npz')):
        errors = world_errors(model, Demonstrations.load(args.out), list(_DELAYS_S))
        for error in errors:
            print(f'delay {1000 * error.delay_s:4.0f} ms  world latent, mean squared error: '
                  f'model {error.model:.3f}, copy-last {error.copy_last:.3f}')
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'evaluation.json').write_text(json.dumps({
        'success': [{**vars(outcome.trial), 'episodes': len(outcome.success),
                     'success_rate': outcome.success_rate} for outcome in outcomes],
        'world_latent': [vars(error) for error in errors]}, indent=2))


def _encoder_path(args: argparse.Namespace) -> Path:
    return args.out / 'encoder.safetensors'


def _weights_path(args: argparse.Namespace) -> Path:
    return args.out / 'weights.safetensors'
