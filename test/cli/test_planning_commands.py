"""The planning commands: what they print, and one sentence for every bad input."""

import json
import re

import pytest

from physis_core.cli.main import main
from physis_core.cli.report import print_table
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile


def object_of(capsys, *arguments):
    """The JSON object on the last line of a command's output."""
    assert main([*arguments, '--json']) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_capacity(capsys):
    seen = object_of(capsys, 'capacity', '--devices', '24', '--memory-gb', '78', '--slo-ms', '1600',
                     '--bmax', '8', '--device-model', 'h100')
    assert list(seen) == ['wan2.1-1.3b', 'wan2.2-5b', 'wan2.1-14b', 'ltx-2.x', 'h3']
    for row in seen.values():
        assert {'even', 'best_fit', 'best_fit_lds', 'wrap', 'portfolio', 'upper_bound',
                'search_ms'} <= row.keys()
        assert row['even'] <= row['portfolio'] <= int(row['upper_bound'])
    assert [row['wrap'] for row in seen.values()] == [77, 79, 38, 54, 17]


def test_capacity_under_a_response_limit(capsys):
    seen = object_of(capsys, 'capacity', '--devices', '4', '--models', 'h3',
                     '--max-response-ms', '2000')['h3']
    assert 0 < seen['within_response'] <= seen['portfolio']
    assert seen['response_ms'] <= 2000


def test_plan(capsys):
    seen = object_of(capsys, 'plan', 'wan2.1-1.3b', '--devices', '1,8,30', '--t-ms', '0.8,2.105')
    assert [seen[count]['lower_bound_ms'] for count in ('1', '8', '30')] == [276.6, 34.575, 9.22]
    for plans in seen.values():
        assert {'sequential', 'wave', 'streamdiffusionv2', 'full_split'} <= {
            one['mode'] for one in plans['front']}
        assert all({'mode', 'period_ms', 'response_ms', 'batch', 'weight_copies'} <= one.keys()
                   for one in plans['front'])
        assert plans['front'][0]['period_ms'] <= 1.07 * plans['lower_bound_ms']


def test_a_plan_is_written_drawn_and_simulated(capsys, tmp_path):
    plan, picture = tmp_path / 'plan.json', tmp_path / 'plan.svg'
    assert main(['plan', 'so101', '--devices', '2', '--t-ms', '1,1', '--out', str(plan),
                 '--plot', str(picture)]) == 0
    out, err = capsys.readouterr()
    assert 'streamdiffusionv2' in out
    assert [line.partition(': ')[0] for line in err.splitlines()] == [str(plan), str(picture)]
    assert Plan.from_json(plan.read_text()).devices == 2
    assert picture.read_text().startswith('<?xml')
    seen = object_of(capsys, 'simulate', '--plan', str(plan), '--t-ms', '1,1', '--chunks', '120',
                     '--warmup', '60', '--deadline-ms', '500')
    assert seen['delivered'] == 60 and seen['missed'] == 0
    assert seen['period_ratio'] == pytest.approx(1, abs=0.1)
    assert len(seen['utilisation']) == 2


@pytest.mark.parametrize('mode', ['streamdiffusionv2', 'by_step_2-2', 'full_split', 'sequential'])
def test_a_plan_without_jitter_keeps_its_period_however_few_chunks_count(capsys, tmp_path, mode):
    path = tmp_path / 'plan.json'
    times = ('--t-ms', '0.8,2.105')
    planned = object_of(capsys, 'plan', 'wan2.1-1.3b', '--devices', '4', *times, '--mode', mode,
                        '--out', str(path))['4']['front']
    one, = (each for each in planned if each['mode'] == mode)
    for chunks in ('100', '200'):
        seen = object_of(capsys, 'simulate', '--plan', str(path), *times, '--chunks', chunks,
                         '--warmup', '80')
        assert seen['period_ratio'] == 1.0 and seen['period_ms'] == one['period_ms']
        assert seen['mean_batch'] == one['batch']
        assert seen['response_ms'] == pytest.approx(one['response_ms'], rel=0.01)
        assert max(seen['utilisation']) == 1.0


def test_tables_fit_a_terminal_of_80_columns_and_nothing_is_cut_off(capsys, monkeypatch):
    monkeypatch.setattr('rich.console.Console.is_terminal', True)
    monkeypatch.setenv('COLUMNS', '80')
    assert main(['pareto', 'wan2.1-1.3b', '--devices', '1,30', '--t-ms', '0.8,2.105']) == 0
    lines = re.sub('\x1b\\[[0-9;]*m', '', capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80 and not any('…' in line for line in lines)
    assert any('streamdiffusionv2' in line for line in lines)
    assert not any('points' in line for line in lines)  # a video model makes none


def test_two_rows_of_one_mode_have_names_and_the_one_that_is_written_is_marked(capsys, tmp_path):
    plan, times = tmp_path / 'plan.json', ('--t-ms', '0.8,2.105')
    front = object_of(capsys, 'plan', 'wan2.1-1.3b', '--devices', '8', *times)['8']['front']
    first, second = (next(one for one in front if one['mode'] == name)
                     for name in ('streamdiffusionv2', 'streamdiffusionv2#2'))
    assert first['period_ms'] < second['period_ms']
    assert first['response_ms'] > second['response_ms']
    assert main(['plan', 'wan2.1-1.3b', '--devices', '4,8', *times, '--out', str(plan),
                 '--mode', 'streamdiffusionv2#2']) == 0
    out, err = capsys.readouterr()
    marked, = (line.split() for line in out.splitlines() if line.rstrip().endswith('*'))
    assert marked[:2] == ['streamdiffusionv2#2', f'{second["period_ms"]:.4g}']
    assert err.endswith('plan `streamdiffusionv2#2` on 8 device(s)\n')
    written = Plan.from_json(plan.read_text()).prediction
    assert written is not None and written.period_us == round(second['period_ms'] * 1e3)
    assert main(['plan', 'wan2.1-1.3b', '--devices', '8', *times]) == 0
    assert 'taken' not in capsys.readouterr().out


@pytest.mark.parametrize('arguments, says', [
    ('', 'computed from shapes for h100, not measured'),
    ('--t-ms 0.8,2.1', 'as --t-ms gives them'),
])
def test_what_is_predicted_is_called_so_and_says_from_what(capsys, arguments, says):
    for command in ('plan', 'pareto'):
        assert main([command, 'wan2.1-1.3b', '--devices', '1', *arguments.split()]) == 0
        out = ' '.join(capsys.readouterr().out.split())
        assert 'predicted' in out and says in out


def test_a_table_shows_no_exponent(capsys):
    print_table('', ('name',), [[3.456e-06], [12345678.0], [0.0], [1.5]])
    shown = capsys.readouterr().out.split()
    assert shown == ['name', '0.0000035', '12345678', '0', '1.5']


def test_simulate_a_line(capsys):
    line = ('simulate', '--stages', '20', '--chunks', '400')
    seen = object_of(capsys, *line, '--cv', '0')
    assert seen['total_periods'] == 419 and seen['period_ratio'] == 1
    jittered = object_of(capsys, *line, '--cv', '0.05', '--slots', '1', '--warmup', '100')
    barrier = object_of(capsys, *line, '--cv', '0.05', '--slots', '1', '--barrier')
    assert 1 < jittered['period_ratio'] < barrier['period_ratio']
    assert object_of(capsys, *line, '--cv', '0.05', '--pace-ms', '1.2')['response_periods'] < 21


def test_admit_generated_and_from_a_file(capsys, tmp_path):
    trace = tmp_path / 'trace.json'
    assert main(['admit', '--generate', 'fleet', '--devices', '4', '--out', str(trace)]) == 0
    capsys.readouterr()
    seen = object_of(capsys, 'admit', '--trace', str(trace), '--devices', '4')
    for name in ('even', 'best_fit'):
        assert seen['ours']['carried_load'] > seen[name]['carried_load']
    assert seen['ours']['admitted'] + seen['ours']['refused'] == seen['sessions']
    assert sum(seen['ours']['refused_for'].values()) == seen['ours']['refused']


def test_pareto(capsys, tmp_path):
    seen = object_of(capsys, 'pareto', 'so101', '--devices', '1,2', '--t-ms', '1,1',
                     '--plot', str(tmp_path / 'front.png'))
    assert {one['devices'] for one in seen['front']} == {1, 2}
    for one in seen['front']:
        assert one['response_ms'] < one['age_ms']
        # late binding: mean age (D+1)/(2D) of the response, here with D = 4
        assert one['age_ms'] - one['late_binding_age_ms'] == pytest.approx(
            one['response_ms'] * (1 - 5 / 8))
    assert (tmp_path / 'front.png').stat().st_size > 1000


def test_profile_measures_what_is_here(capsys, tmp_path):
    path = tmp_path / 'profile.json'
    seen = object_of(capsys, 'profile', 'so101', '--bmax', '2', '--blocks', '1', '--repeats', '5',
                     '--device', 'cpu', '--out', str(path))
    profile = Profile.load(path, seen['device'])
    assert profile.max_batch == 2 and profile.source == 'measured'
    assert profile.groups[0].kv_bytes == 2 * 5 * 6 * 128 * 4  # K and V, 5 chunks, 6 tokens, fp32
    plans = object_of(capsys, 'plan', 'so101', '--devices', '2', '--profile', str(path))
    assert plans['2']['lower_bound_ms'] > 0


def test_bench_planning(capsys):
    seen = object_of(capsys, 'bench', 'planning', '--plan-devices', '10', '--devices', '4',
                     '--streams', '5', '--admissions', '10')
    assert seen['admissions'] == 10
    assert seen['plan_period_over_bound'] < 1.1


@pytest.mark.parametrize('arguments, says', [
    ('plan wan9 --json', 'model `wan9` has no preset; choose one of'),
    ('plan h3 --devices 1', '`h3` needs 143 GB'),
    ('plan so101 --devices 0', '--devices is `0`; each is at least 1'),
    ('plan so101 --devices two', '--devices is `two`; write whole numbers'),
    ('plan so101 --t-ms 1', '--t-ms is `1`; write two numbers'),
    ('plan so101 --bmax 0', '--bmax is 0'),
    ('plan so101 --device-model b9', '`b9` is not described'),
    ('plan so101 --goal 50Hz', 'does not say what is counted'),
    ('plan so101 --slo-ms 5 --goal 1fps', 'give one of them'),
    ('plan so101 --devices 1 --t-ms 1,1 --slo-ms 1', 'no plan has a period of 1 ms or less'),
    ('plan so101 --devices 1 --t-ms 1,1 --mode magic', 'mode `magic` is not among'),
    ('plan so101 --devices 1 --t-ms 1,1 --plot plan.xyz', 'has the ending `.xyz`'),
    ('plan so101 --cluster nowhere', 'cluster `nowhere` is neither'),
    ('plan so101 --profile nowhere.json', 'nowhere.json cannot be read'),
    ('capacity --slo-ms 1', 'is shorter than its slowest stage'),
    ('capacity --devices 0', '0 devices; give from 1 to 10000'),
    ('capacity --memory-gb -1', '--memory-gb is -1'),
    ('capacity --slo-ms x', "invalid float value: 'x'"),
    ('capacity --devices 99999999999999999999', 'devices; give from 1 to 10000'),
    ('capacity --memory-gb inf', '--memory-gb is inf; give more than 0'),
    ('capacity --bmax 99999999999999999999', '--bmax is 99999999999999999999; it goes from 1 to'),
    ('plan so101 --devices 99999999999999999999 --t-ms 1,1', 'devices; give from 1 to 10000'),
    ('plan so101 --devices 99999999999999999999', 'devices; give from 1 to 10000'),
    ('plan so101 --memory-gb 1e308 --t-ms 1,1', '--memory-gb is 1e+308; give more than 0'),
    ('plan so101 --t-ms inf,1', '--t-ms is `inf,1`; both are at least 0'),
    ('plan so101 --devices 1 --out /', '`/` is a folder; give the name of a file to write'),
    ('plan so101 --devices 1 --out /nowhere/x', 'there is no folder `/nowhere`; make it first'),
    ('plan so101 --devices 1 --out /dev/full', '`/dev/full` cannot be written (No space left'),
    ('plan so101 --devices 1 --plot /nowhere/x.png', 'there is no folder `/nowhere`; make it'),
    ('plan so101 --profile /bin/sh', '/bin/sh cannot be read'),
    ('simulate --plan /bin/sh', '/bin/sh cannot be read'),
    ('simulate --stages 99999999999', '--stages is 99999999999; the most is 100000'),
    ('simulate --stages 2 --chunks 99999999999', '--chunks is 99999999999; the most is'),
    ('simulate --stages 2 --slots 99999999999999999999', '--slots is 99999999999999999999; the'),
    ('admit --generate fleet --devices 99999999', '99999999 devices; give from 1 to 10000'),
    ('admit --generate fleet --memory-gb inf', '--memory-gb is inf; give more than 0'),
    ('admit --generate fleet --bmax 99999999', '--bmax is 99999999; it goes from 1 to'),
    ('admit --generate fleet --out /nowhere/x', 'there is no folder `/nowhere`; make it first'),
    ('profile so101 --out /nowhere/x', 'there is no folder `/nowhere`; make it first'),
    ('simulate', 'give either --stages'),
    ('simulate --stages 0', '--stages is 0'),
    ('simulate --stages 2 --chunks 5 --warmup 4', 'leave no interval'),
    ('simulate --stages 2 --slots -1', '-1 slots'),
    ('simulate --stages 2 --cv 99', 'coefficient of variation 99'),
    ('simulate --plan nowhere.json', 'nowhere.json cannot be read'),
    ('admit', 'give either --trace FILE or --generate NAME'),
    ('admit --trace nowhere.json', 'nowhere.json cannot be read'),
    ('profile nothing', 'model `nothing` is not known'),
    ('profile so101 --bmax 0 --device cpu', '--bmax is 0'),
    ('profile so101 --device quantum', 'device `quantum` cannot be used'),
])
def test_bad_input_is_one_sentence(capsys, arguments, says):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert err.count('\n') == 1 and out == ''
