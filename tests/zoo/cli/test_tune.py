"""``ppo-plus tune`` and ``ppo-plus tune worker``."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune"], "--env"),
        (["tune", "--env", "CartPole-v1", "-params", "policy:NopePolicy"], "policy='NopePolicy' is unknown"),
        (["tune", "--env", "CartPole-v1", "--vec-env", "envpool"], "vec_env='envpool' must be one of dummy, subproc"),
        (["tune", "--env", "Foo-v0"], "Environment `Foo` doesn't exist"),
        (
            ["tune", "worker", "--study-name", "x", "--storage", "postgresql+psycopg://me:secret@127.0.0.1:1/x"],
            "refused",
        ),
        (
            ["tune", "worker", "--study-name", "x", "--storage", "sqlite:///none.db"],
            "no study 'x': start it with the command tune",
        ),
        ("tune --env CartPole-v1 --trial 3".split(), "no study 'CartPole-v1': start it with the command tune"),
        ("tune --env CartPole-v1 --budget 0m".split(), "'0' must be a number of seconds"),
        ("tune --algo sac --env CartPole-v1".split(), "invalid choice: 'sac'"),
        ("tune --algo ppo --env Foo-v0".split(), "Environment `Foo` doesn't exist"),
        ("tune --env CartPole-v1 --sampler auto".split(), "sampler='auto' must be one of 'tpe', 'random', 'gp'"),
        (
            "tune --env CartPole-v1 --pruner halving".split(),
            "pruner='halving' must be one of 'median', 'hyperband', 'none'",
        ),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)
