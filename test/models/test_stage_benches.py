"""`physis bench stage` and `physis bench single`: what they report, not how fast it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from families import small

from physis_core.cli.lone_stages import LoneStages
from physis_core.cli.main import main
from physis_core.runtime.kv_pool import Row


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(['bench', *arguments, '--threads', '1', '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_stage_reports_each_batch_against_the_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    result = report(capsys, 'stage', 'dit', '--batch', '1', '3', '--repeats', '2', '--blocks', '2')
    assert (result['tokens'], result['context_tokens'], result['blocks']) == (5, 25, 2)
    assert (result['attention'], result['cuda_graphs']) == ('torch', 0)  # of a CPU
    assert result['attention_block_ms']['torch'] > 0
    assert result['device_gflops'] > 0 and result['device_gbytes_per_s'] > 0
    # q, k, v and output, feed-forward, scores and read.
    assert result['stage_gflop'] == pytest.approx(
        (2 * 5 * 12 * 128 ** 2 + 4 * 5 * 25 * 128) / 1e9, rel=1e-6)
    measured = [row['batch'] for row in result['batches']]
    assert measured + result['batches_left_out'] == [1, 3]
    for row in result['batches']:
        assert 0 < row['p50_ms'] <= row['p99_ms']
        assert row['of_roofline'] == pytest.approx(row['roofline_ms'] / row['p50_ms'])


def test_operations_and_bytes_of_a_wan_block_are_those_counted_by_hand() -> None:
    stages = LoneStages(small('wan'), range(2), [0], 1, 'cpu')
    shape = stages.description
    tokens, dim, ffn, chunks, words = 2 * 2 * 3, 64, 96, 1 + 3, 5
    assert (shape.tokens, shape.dim) == (tokens, dim)
    # q, k, v, o of self-attention, q and o of the prompt's (its k and v are kept), feed-forward;
    # scores and read of the window and of the prompt.
    assert stages.flops(0, Row(0, stages.full, 0)) == (
        2 * tokens * (6 * dim ** 2 + 2 * dim * ffn) + 4 * tokens * dim * (chunks * tokens + words))
    weights = 4 * sum(parameter.numel() for parameter in stages.model.stack['0'].parameters())
    assert stages.weight_bytes(0) == weights > 0
    # Keys and values of the window, and a hidden state in and out.
    assert stages.bytes_read(0, 3) == weights + 3 * 4 * tokens * dim * (2 * chunks + 2)


def test_single_compares_sequential_and_multiplexed(capsys: pytest.CaptureFixture[str]) -> None:
    result = report(capsys, 'single', 'dit', '--blocks', '2', '--chunks', '2')
    sequential, multiplexed = result['ways']
    assert (sequential['batch'], multiplexed['batch'], result['all_blocks']) == (1, 4, 8)
    for way in result['ways']:
        assert way['period_all_blocks_ms'] == pytest.approx(4 * way['period_ms'])
    assert result['change_percent'] == pytest.approx(
        100 * (multiplexed['period_ms'] / sequential['period_ms'] - 1))


@pytest.mark.parametrize(('arguments', 'message'), [
    (['stage', 'wan9'], 'is not known; choose one of'),
    (['stage', 'dit', '--blocks', '9'], 'has 8 blocks'),
    (['stage', 'dit', '--device', 'cuda:99'], 'cannot be used'),
    (['single', 'lingbot-va'], '`clean`')])
def test_wrong_requests_are_one_sentence(
        arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['bench', *arguments]) == 2
    assert message in capsys.readouterr().err
