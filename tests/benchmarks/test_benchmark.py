"""The parts of ``benchmarks/benchmark.py`` that figures pass through."""

import benchmark
import numpy as np
import pytest
from compiled import needs_compiler


def test_a_clock_adds_up_and_passes_results_on(monkeypatch):
    times = iter([10.0, 12.0, 20.0, 20.5])
    monkeypatch.setattr(benchmark, "perf_counter", lambda: next(times))
    seconds = {"update": 0.0}
    double = benchmark.clocked(seconds, "update", lambda number: 2 * number)
    assert [double(1), double(number=2)] == [2, 4]
    assert seconds == {"update": 2.5}


@pytest.mark.parametrize("name", ["Atari-shapes-x8", "Dict-x8"])
def test_replayed_observations_are_in_the_space(name):
    workload = benchmark.WORKLOADS[name]
    env = workload.make_env(seed=0)
    obs = env.reset()
    for _ in range(3):
        first = {key: value[0] for key, value in obs.items()} if isinstance(obs, dict) else obs[0]
        assert env.observation_space.contains(first)
        obs, rewards, dones, infos = env.step(np.zeros(workload.n_envs, dtype=int))
        assert len(rewards) == len(dones) == len(infos) == workload.n_envs and not dones.any()


def test_shrunk_workloads_keep_two_full_minibatches():
    for workload in [workload.shrunk() for workload in (benchmark.WORKLOADS | benchmark.THREADS).values()]:
        assert workload.n_envs * workload.n_steps == 2 * workload.batch_size


@pytest.mark.parametrize(
    "algorithm",
    ["SB3", "PPO_Plus eager", pytest.param("PPO_Plus compiled", marks=[pytest.mark.exhaustive, needs_compiler])],
)
def test_sections_add_up_to_a_round(algorithm):
    trainee = benchmark.Trainee(algorithm, benchmark.WORKLOADS["CartPole-v1-x8"].shrunk(), seed=0, device="cpu")
    sections = trainee.sections()
    assert list(sections) == list(benchmark.SECTIONS)
    assert all(value > 0 for value in sections.values())
    assert set(trainee.memory()) == {"peak", "added"}
