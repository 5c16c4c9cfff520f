"""What one process does alone beside others: ``benchmarks/benchmark_processes.py``."""

import benchmark_processes as benchmark

from ppo_plus.distributed.ranks import Ranks


def test_one_process_waits_for_no_other():
    workload = benchmark.updates_of(width=4, batch_size=4)
    model = benchmark.trainee(workload, Ranks())
    benchmark.learning(model)
    benchmark.updating(model)
    assert model._n_updates == 2
