"""The search space: file, parameters, settings, and back."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FixedTrial
from torch import nn

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.tune.space import Choices, Range, parse_space, read_space, setting, split_schedule

DEFAULT = Experiment("CartPole-v1", 1000)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "LunarLander-v3"])
def test_the_packages_own_space_holds_the_packages_own_settings(env_id):
    """As parameters and back they are what they were."""
    own = load_experiment(env_id)
    space = parse_space(read_space()).including(own).including(DEFAULT)
    for experiment in (own, DEFAULT):
        settings = space.sample(FixedTrial(space.params(experiment)))
        again = experiment.with_hyperparams(settings)
        for name in space.dimensions:
            if not name.endswith("_schedule"):
                # A schedule's first value may be written otherwise: 6e-4, 0.0006.
                assert split_schedule(setting(again, name)) == split_schedule(setting(experiment, name)), name


def test_what_a_sampler_suggests_builds_a_model():
    space = parse_space(read_space())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    settings = space.sample(study.ask())
    assert settings.keys() >= {"n_steps", "gamma", "learning_rate", "use_sde", "kl_control", "policy_kwargs"}
    assert set(DEFAULT.with_hyperparams(settings).policy_kwargs) == {"net_arch", "activation_fn"}


def test_choices_are_widened_by_what_they_lack():
    choices = Choices({"minibatch": True, "off": False})
    assert choices.including(True) is choices
    assert choices.including("rollout").values == {"minibatch": True, "off": False, "rollout": "rollout"}
    assert Choices({64: 64}).including([64, 64]).encode([64, 64]) == "[64, 64]"
    # True equals 1 in Python, but is another setting.
    assert Choices({1: 1}).including(True).encode(True) != 1


@given(st.floats(0.5, 0.99999), st.floats(0.5, 0.99999))
def test_a_distance_to_one_is_exact_both_ways(value, other):
    low, high = min(value, other), max(value, other)
    if low < high:
        dimension = Range(low, high, "near_one")
        assert dimension.suggest(FixedTrial({"x": dimension.encode(value)}), "x") == value


@given(st.floats(1e-6, 1e-1))
def test_a_widened_range_holds_the_value(value):
    wide = Range(1e-4, 1e-3, "log").including(value)
    assert wide.low <= value <= wide.high and wide.encode(value) == value


def test_a_range_takes_the_nearest_where_it_cannot_be_widened():
    assert Range(1e-8, 0.1, "log").including(0.0).encode(0.0) == 1e-8
    # Below 0.5, the distance to 1 and back is not exact.
    assert Range(0.8, 0.99, "near_one").including(0.3) == Range(0.8, 0.99, "near_one")
    with pytest.raises(ValueError, match="must be a number"):
        Range(0, 1).encode("lin_1")


def test_a_range_of_whole_numbers_has_others_where_the_baseline_has():
    space = parse_space({"vf_coef": {"low": 0, "high": 1}, "n_epochs": {"low": 3, "high": 8}}).including(DEFAULT)
    assert [type(each) for name in ("vf_coef", "n_epochs") for each in space.dimensions[name].examples()] == [
        *(float, float, int, int)
    ]
    assert space.dimensions["n_epochs"] == Range(3, 10)
    assert Range(0.1, 0.9).including(1) == Range(0.1, 1)


@pytest.mark.parametrize("policy", ["MultiInputAttentionPolicy", "MlpPolicy"])
def test_defaults_of_a_policy_are_found_in_its_bases(policy):
    experiment = DEFAULT.replace(policy=policy)
    assert setting(experiment, "policy_kwargs.activation_fn") is nn.Tanh
    assert (setting(experiment, "n_steps"), setting(experiment, "n_envs")) == (2048, 1)
    assert [setting(experiment.replace(normalize=value), "normalize") for value in (None, {})] == [False, True]
    parse_space(read_space()).including(experiment)


def test_mistakes_in_a_space():
    with pytest.raises(ValueError, match="clip_range_schedule needs clip_range in the search space"):
        parse_space({"clip_range_schedule": {"choices": ["constant"]}})


def test_a_range_has_the_number_that_a_schedule_starts_from():
    space = parse_space({"clip_range": {"low": 0.1, "high": 0.4}})
    assert space.params(DEFAULT.with_hyperparams({"clip_range": "lin_0.3"})) == {"clip_range": 0.3}


def test_schedules():
    space = parse_space({"clip_range": {"low": 0.1, "high": 0.4}, "clip_range_schedule": {"choices": ["constant"]}})
    experiment = DEFAULT.replace(hyperparams={"clip_range": "cos_0.3"})
    space = space.including(experiment)
    assert space.params(experiment) == {"clip_range": 0.3, "clip_range_schedule": "cos"}
    assert space.sample(FixedTrial(space.params(experiment))) == {"clip_range": "cos_0.3"}
    choices = {"clip_range_vf": {"choices": [0.2, None]}, "clip_range_vf_schedule": {"choices": ["constant", "lin"]}}
    sampled = [settings["clip_range_vf"] for _, _, settings in parse_space(choices).examples()]
    assert sampled == [0.2, None, 0.2, "lin_0.2"]
    params = {"clip_range_vf": None, "clip_range_vf_schedule": "lin"}
    assert parse_space(choices).sample(FixedTrial(params)) == {"clip_range_vf": None}
    assert [split_schedule(value) for value in ("lin_0.1", "lin_1e-3_0")] == [("lin", 0.1), ("lin", 1e-3)]
    constants = {0.1: 0.1, "stop": "stop", None: None, "3e-4": 3e-4}
    assert all(split_schedule(value) == ("constant", start) for value, start in constants.items())


def test_examples_are_all_choices_and_the_ends_of_ranges():
    space = parse_space({
        "clip_range": {"low": 0.1, "high": 0.4},
        "clip_range_schedule": {"choices": ["constant", "cos"]},
        "policy_kwargs": {"net_arch": {"choices": {"small": [8]}}},
    })  # fmt: skip
    assert list(space.examples()) == [
        ("clip_range", 0.1, {"clip_range": 0.1}),
        ("clip_range", 0.4, {"clip_range": 0.4}),
        ("clip_range_schedule", "constant", {"clip_range": 0.1}),
        ("clip_range_schedule", "cos", {"clip_range": "cos_0.1"}),
        ("policy_kwargs.net_arch", [8], {"policy_kwargs": {"net_arch": [8]}}),
    ]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"gama": {"choices": [1]}}, "unknown key 'gama': did you mean 'gamma'"),
        ({"n_timesteps": {"choices": [1]}}, "'n_timesteps'"),
        ({"gamma": {"choices": []}}, "not empty"),
        ({"gamma": {"low": 0.9}}, "must have choices"),
        (
            {"gamma": {"low": 0.9, "high": 1, "scale": "near_one"}},
            "a near_one range from 0.9 to 1 is impossible: it needs numbers, low < high < 1",
        ),
        (
            {"gamma": {"low": 0.0, "high": 1, "scale": "log"}},
            "a log range from 0.0 to 1 is impossible: it needs numbers, 0 < low < high",
        ),
        ({"gamma": {"low": "0.5", "high": 1}}, "a linear range from '0.5' to 1 is impossible: it needs numbers"),
        ({"gamma": {"low": 0.5, "high": 0.5}}, "a linear range from 0.5 to 0.5 is impossible"),
        ({"gamma": {"low": 0.5, "high": 0.6, "scale": "exp"}}, "scale='exp' must be one of"),
        ({"policy_kwargs": {"activation_fn": {"choices": {"x": "nn.Nope"}}}}, "nn.Nope"),
        ({"policy_kwargs": [1]}, "policy_kwargs must be a mapping"),
        ({"n_steps": {"choices": [64, 2.5]}}, "n_steps: 2.5 must be a whole number"),
        ({"batch_size": {"low": 0, "high": 64}}, "batch_size: 0 must be a whole number"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, contents, message):
    path = tmp_path / "space.yml"
    path.write_text(str(contents))
    with pytest.raises(ValueError, match=message) as error:
        read_space(path)
    assert "space.yml" in str(error.value)
