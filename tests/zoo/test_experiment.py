"""An experiment: settings of a file, resolved and checked; its environments and models."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from parametrization import sample
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)
from torch import nn, optim

from ppo_plus import MlpPolicy, SupervisedVecEnv
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.process import torch_threads
from ppo_plus.zoo.experiment import (
    Experiment,
    Part,
    load_experiment,
    load_model,
    load_statistics,
    make_envs,
    make_model,
    parse_settings,
    save_model,
    statistics_path,
)
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.installation import find_env

BUILTIN = yaml.safe_load(builtin_file().read_bytes())
FULL = """
Foo-v0:
  n_timesteps: !!float 1e5
  n_envs: 4
  policy: CnnPolicy
  normalize: {norm_reward: false}
  frame_stack: 3
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.MaxAndSkipEnv: {skip: 2}
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  vec_env_wrapper: {stable_baselines3.common.vec_env.VecFrameStack: {n_stack: 2}}
  callback: {stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes: {max_episodes: 5}}
  env_kwargs: {size: 3}
  monitor_kwargs: "dict(info_keywords=('is_success',))"
  policy_kwargs: "dict(net_arch=[8], activation_fn=nn.ReLU)"
  gamma: 0.9
  learning_rate: lin_0.001
"""


def test_splits_an_entry(settings):
    wrappers = "stable_baselines3.common.atari_wrappers."
    assert load_experiment("Foo-v0", settings(FULL), seed=7, vec_env="subproc") == Experiment(
        env_id="Foo-v0",
        n_timesteps=100_000,
        n_envs=4,
        policy="CnnPolicy",
        normalize={"norm_reward": False},
        frame_stack=3,
        env_wrapper=(
            Part(f"{wrappers}MaxAndSkipEnv", MaxAndSkipEnv, {"skip": 2}),
            Part(f"{wrappers}AtariWrapper", AtariWrapper, {}),
        ),
        vec_env_wrapper=(Part("stable_baselines3.common.vec_env.VecFrameStack", VecFrameStack, {"n_stack": 2}),),
        callback=(
            Part(
                "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes",
                StopTrainingOnMaxEpisodes,
                {"max_episodes": 5},
            ),
        ),
        env_kwargs={"size": 3},
        monitor_kwargs={"info_keywords": ("is_success",)},
        policy_kwargs={"net_arch": [8], "activation_fn": nn.ReLU},
        hyperparams={"gamma": 0.9, "learning_rate": "lin_0.001"},
        seed=7,
        vec_env="subproc",
    )


def test_settings_are_plain_and_read_back(settings):
    experiment = load_experiment("Foo-v0", settings(FULL))
    plain = yaml.safe_load(yaml.safe_dump(experiment.settings()))
    assert parse_settings("Foo-v0", plain) == experiment


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_entries_are_valid_and_read_back(name):
    env_id, _, variant = name.partition("/") if name != "atari" else ("ALE/Pong-v5", "", "")
    experiment = load_experiment(env_id, variant=variant or None)
    assert experiment.n_timesteps >= 20_000
    assert parse_settings(env_id, yaml.safe_load(yaml.safe_dump(experiment.settings()))) == experiment


@pytest.mark.filterwarnings("ignore:.*is out of date", "ignore:.*swig", "ignore:builtin type")
@pytest.mark.parametrize("name", sample(sorted(BUILTIN.keys() - {"default", "atari", "mujoco"}), 4, pytest.mark.slow))
def test_builtin_entries_build(name):
    env_id, _, variant = name.partition("/")
    # A package that is not installed (such as mujoco-py, or an older mujoco) is not this file's fault.
    try:
        find_env(env_id)
        gym.make(env_id).close()
    except (gym.error.Error, ImportError) as error:
        pytest.skip(f"{env_id} cannot be made here: {error}")
    experiment = load_experiment(env_id, variant=variant or None, overrides={"n_envs": 1})
    env = make_envs(experiment)
    make_model(experiment, env)
    env.close()


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_entries_of_minigrid_are_vectors():
    pytest.importorskip("minigrid", reason="pip install minigrid")
    entries = [name for name in BUILTIN if name.startswith("MiniGrid-")]
    assert len(entries) == 13
    for entry in entries:
        name, _, variant = entry.partition("/")
        find_env(name)
        env = make_envs(load_experiment(name, overrides={"n_envs": 1}, variant=variant or None))
        # The image alone, or with the mission's text.
        assert env.reset().shape == (1, 147 if entry == "MiniGrid-MultiRoom-N4-S5-v0" else 2835)
        env.step(np.array([0]))
        env.close()


def test_builtin_file_covers_the_classics_box2d_mujoco_and_atari():
    classics = {"CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"}
    box2d = {
        "LunarLander-v3",
        "LunarLanderContinuous-v3",
        "BipedalWalker-v3",
        "BipedalWalkerHardcore-v3",
        "CarRacing-v3",
    }
    mujoco = {name for name in gym.registry if name.endswith("-v5") and "mujoco" in str(gym.spec(name).entry_point)}
    assert len(mujoco) == 11
    assert {"default", "atari"} | classics | box2d | mujoco | {f"{name[:-1]}4" for name in mujoco} <= set(BUILTIN)
    assert sum(name.endswith("/gSDE") for name in BUILTIN) >= 4


def test_values_that_yaml_cannot_store_are_python_text(settings):
    text = """
Foo-v0:
  n_timesteps: 1
  env_kwargs: "dict(shape=(1, 2))"
  env_wrapper: {gymnasium.wrappers.ResizeObservation: "dict(shape=(8, 8))"}
  rollout_buffer_kwargs: "dict(activation=nn.ReLU)"
"""
    experiment = load_experiment("Foo-v0", settings(text))
    assert experiment.env_kwargs == {"shape": (1, 2)}
    assert experiment.env_wrapper[0].kwargs == {"shape": (8, 8)}
    assert experiment.hyperparams == {"rollout_buffer_kwargs": {"activation": nn.ReLU}}
    assert parse_settings("Foo-v0", yaml.safe_load(yaml.safe_dump(experiment.settings()))) == experiment


def test_defaults_of_an_entry(settings):
    path = settings("default: {n_timesteps: 10}")
    assert load_experiment("Foo-v0", path) == Experiment(env_id="Foo-v0", n_timesteps=10)


def test_own_entry_is_not_mixed_with_the_default(settings):
    path = settings("default: {n_timesteps: 10, gamma: 0.5}\nFoo-v0: {n_timesteps: 20}")
    experiment = load_experiment("Foo-v0", path)
    assert (experiment.n_timesteps, experiment.hyperparams) == (20, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", {}),
        ("false", None),
        ("null", None),
        ("\"{'norm_obs': True}\"", {"norm_obs": True}),
        ('"dict(norm_reward=False)"', {"norm_reward": False}),
        ('"False"', None),
    ],
)
def test_normalize(settings, text, expected):
    path = settings(f"default: {{n_timesteps: 1, normalize: {text}}}")
    assert load_experiment("Foo-v0", path).normalize == expected


def test_normalization_inside_the_policy(settings):
    path = settings("""
CartPole-v1:
  n_timesteps: 64
  n_steps: 32
  batch_size: 32
  policy: MlpPolicy
  normalize_observations: {clip: 5.0}
  normalize_values: true
""")
    experiment = load_experiment("CartPole-v1", path)
    model = make_model(experiment, make_envs(experiment), verbose=0).learn(64)
    assert unwrap_vec_normalize(model.env) is None
    assert model.policy.observation_normalizer.clip == 5.0
    assert model.policy.observation_normalizer.count == model.policy.value_normalizer.count == 64


def test_policy_kwargs_as_mapping_knows_classes(settings):
    text = "{activation_fn: nn.ELU, net_arch: [4], optimizer_class: th.optim.AdamW}"
    path = settings(f"default: {{n_timesteps: 1, policy_kwargs: {text}}}")
    expected = {"activation_fn": nn.ELU, "net_arch": [4], "optimizer_class": optim.AdamW}
    assert load_experiment("Foo-v0", path).policy_kwargs == expected


@pytest.mark.parametrize("text", ["{actor_keys: [policy]}", "\"dict(actor_keys=['policy'])\""])
def test_actor_keys_is_a_list_of_names(settings, text):
    path = settings(f"default: {{n_timesteps: 1, policy_kwargs: {text}}}")
    assert load_experiment("Foo-v0", path).policy_kwargs == {"actor_keys": ["policy"]}


def test_numbers_that_yaml_takes_for_text(settings):
    text = "gamma: 9e-1, learning_rate: 1e-3, clip_range: lin_2e-1, n_steps: 2e3, batch_size: !!float 64"
    experiment = load_experiment("Foo-v0", settings(f"default: {{n_timesteps: 1e5, {text}}}"))
    assert experiment.n_timesteps == 100_000
    numbers = {"gamma": 0.9, "learning_rate": 0.001, "clip_range": "lin_2e-1", "n_steps": 2000, "batch_size": 64}
    assert experiment.hyperparams == numbers
    assert [type(experiment.hyperparams[name]) for name in ("n_steps", "batch_size")] == [int, int]


@pytest.mark.parametrize("none", ["None", "'None'", "null"])
def test_none_as_people_write_it(settings, none):
    names = ("target_kl", "clip_range_vf", "frame_stack", "normalize", "env_wrapper", "policy_kwargs")
    entry = ", ".join(f"{name}: {none}" for name in names)
    experiment = load_experiment("Foo-v0", settings(f"default: {{n_timesteps: 1, {entry}, env_kwargs: {{x: {none}}}}}"))
    expected = Experiment("Foo-v0", 1, hyperparams={"target_kl": None, "clip_range_vf": None}, env_kwargs={"x": None})
    assert experiment == expected


def test_tuples_as_people_write_them(settings):
    wrapper = "env_wrapper:\n    - gymnasium.wrappers.ResizeObservation:\n        shape: (8, 8)"
    (part,) = load_experiment("Foo-v0", settings(f"default:\n  n_timesteps: 1\n  {wrapper}")).env_wrapper
    assert part.kwargs == {"shape": (8, 8)}


def test_policy_by_dotted_name(settings):
    experiment = load_experiment("Foo-v0", settings("default: {n_timesteps: 1, policy: ppo_plus.MlpPolicy}"))
    assert experiment.policy is MlpPolicy
    assert parse_settings("Foo-v0", experiment.settings()) == experiment


def test_overrides_replace_settings_as_a_whole(settings):
    path = settings("default: {n_timesteps: 1, gamma: 0.9, policy_kwargs: {net_arch: [8], ortho_init: false}}")
    experiment = load_experiment("Foo-v0", path, {"n_timesteps": 2, "policy_kwargs": {"net_arch": [4]}, "n_steps": 5})
    assert experiment.n_timesteps == 2
    assert experiment.policy_kwargs == {"net_arch": [4]}
    assert experiment.hyperparams == {"gamma": 0.9, "n_steps": 5}


def test_with_hyperparams_merges_policy_kwargs():
    base = load_experiment("MountainCarContinuous-v0", seed=3)
    changed = base.with_hyperparams(
        {"gamma": 0.5, "n_envs": 2, "policy_kwargs": {"net_arch": [4], "activation_fn": "nn.ReLU"}}
    )
    assert changed.policy_kwargs == {"log_std_init": -1, "net_arch": [4], "activation_fn": nn.ReLU}
    assert changed.hyperparams == {**base.hyperparams, "gamma": 0.5}
    assert (changed.n_envs, changed.n_timesteps, changed.seed, changed.normalize) == (2, base.n_timesteps, 3, {})
    assert base.policy_kwargs == {"log_std_init": -1} and base.hyperparams["gamma"] == 0.999


def test_with_hyperparams_checks_names():
    with pytest.raises(ValueError, match="unknown key 'gama': did you mean 'gamma'"):
        load_experiment("CartPole-v1").with_hyperparams({"gama": 0.5})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gama: 0.9", "unknown key 'gama': did you mean 'gamma'"),
        ("n_timestep: 5", "unknown key 'n_timestep': did you mean 'n_timesteps'"),
        ("normalise: true", "unknown key 'normalise': did you mean 'normalize'"),
        ("env_wrappers: []", "unknown key 'env_wrappers': did you mean 'env_wrapper'"),
        ("use_rms_prop: true", "unknown key 'use_rms_prop': valid keys are"),
        ("normalize: {norm_observation: true}", "unknown key 'norm_observation' in normalize: did you mean 'norm_obs'"),
        ("5: 6", "unknown key 5: valid keys are .*, batch_size,"),
        ("seed: 5", "unknown key 'seed'"),
        ("tensorboard_log: x", "unknown key 'tensorboard_log'"),
        ("n_envs: 0", "n_envs must be a positive whole number, not 0"),
        ("n_envs: many", "n_envs must be a positive whole number, not 'many'"),
        ("n_timesteps: 1:30", "n_timesteps must be a positive whole number, not '1:30'"),
        ("frame_stack: -1", "frame_stack must be a positive whole number, not -1"),
        ("env_kwargs: [1]", r"env_kwargs must be a mapping .* \[1\]"),
        ("normalize: 3", "normalize must be a mapping .* 3"),
        ("policy_kwargs: \"__import__('os')\"", "policy_kwargs: .*__import__.* is not allowed"),
        ("normalize: \"__import__('os')\"", "normalize: .*__import__.* is not allowed"),
        ('policy_kwargs: "[1]"', "policy_kwargs must be a mapping"),
        ("policy_kwargs: {activation_fn: nn.Relu}", "policy_kwargs: 'torch.nn.Relu' cannot be imported"),
        ("policy: os.system", "'os.system' is in none of the packages"),
        ("env_wrapper: subprocess.Popen", "env_wrapper: 'subprocess.Popen' is in none of the packages"),
        ("env_wrapper: [{a.B: {}, c.D: {}}]", "env_wrapper: .* must be a dotted name, or a mapping of one"),
        ("env_wrapper: [[a.B]]", "env_wrapper: .* must be a dotted name"),
        ("env_wrapper: [{a.B: , x: 3}]", "env_wrapper: .* must be a dotted name, .* indented below it"),
        ("env_wrapper: a.B(x=3)", r"env_wrapper: .*a.B.x=3.* must be a dotted name"),
        ("callback: gymnasium.Wrapper", "callback: 'gymnasium.Wrapper' is not a subclass of .*BaseCallback"),
        ("vec_env_wrapper: Nope", "vec_env_wrapper: 'Nope' must be a dotted name"),
    ],
)
def test_bad_setting_names_file_entry_and_key(settings, setting, message):
    length = "" if setting.startswith("n_timesteps") else "n_timesteps: 1, "
    path = settings(f"Foo-v0: {{{length}{setting}}}")
    with pytest.raises(ValueError, match=f"settings.yml, Foo-v0: .*{message}"):
        load_experiment("Foo-v0", path)


@pytest.mark.parametrize("overrides", [{"gama": 0.5}, {"policy_kwargs": "open('x')"}, {"frame_stack": "0.5"}])
def test_the_file_is_not_blamed_for_overrides(settings, overrides):
    with pytest.raises(ValueError) as error:
        load_experiment("Foo-v0", settings("Foo-v0: {n_timesteps: 1}"), overrides)
    assert "settings.yml" not in str(error.value)
    assert str(next(iter(overrides))) in str(error.value)


def test_length_of_training_is_required(settings):
    with pytest.raises(ValueError, match="n_timesteps must be a positive whole number, not None"):
        load_experiment("Foo-v0", settings("default: {}"))


def test_trusted_settings_import_from_any_package(settings, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym, torch as th\nclass Wrapper(gym.Wrapper): pass\nclass Net(th.nn.Module): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for written in ("{features_extractor_class: mine.Net}", "dict(features_extractor_class=mine.Net)"):
        path = settings(f"Foo-v0: {{n_timesteps: 1, env_wrapper: mine.Wrapper, policy_kwargs: {written}}}")
        with pytest.raises(ValueError, match="'mine.Wrapper' is in none of.*--gym-packages mine, or --trust-config"):
            load_experiment("Foo-v0", path)
        with pytest.raises(
            ValueError, match="policy_kwargs: 'mine.Net' is in none of.*--gym-packages mine, or --trust"
        ):
            load_experiment("Foo-v0", path, {"env_wrapper": None})
        for packages in (None, ["mine"]):
            experiment = load_experiment("Foo-v0", path, packages=packages)
            assert experiment.env_wrapper[0].cls.__name__ == "Wrapper"
            assert experiment.policy_kwargs["features_extractor_class"].__name__ == "Net"
            # As a run is recorded, and read again.
            assert parse_settings("Foo-v0", experiment.settings(), packages) == experiment
    with pytest.raises(ValueError, match="'mine.Wrapper' is not a subclass of torch.nn.* or torch.optim"):
        load_experiment("Foo-v0", path, {"policy_kwargs": {"optimizer_class": "mine.Wrapper"}}, packages=["mine"])


def test_evaluation_is_deterministic_but_for_atari():
    assert load_experiment("CartPole-v1").deterministic_eval
    assert not load_experiment("ALE/Pong-v5").deterministic_eval
    assert not Experiment("ale_py:ALE/Pong-v5", 1).deterministic_eval
    gym.register("MiniGrid-Fake-v0", "minigrid.envs:EmptyEnv")
    assert not Experiment("MiniGrid-Fake-v0", 1).deterministic_eval
    assert not Experiment("minigrid:MiniGrid-Fake-v0", 1).deterministic_eval
    del gym.registry["MiniGrid-Fake-v0"]


@pytest.mark.parametrize("n", [2, 4])
def test_several_processes_share_environments_and_minibatches(n):
    whole = load_experiment("CartPole-v1", overrides={"n_envs": 8, "batch_size": 256})
    part = whole.for_each_process(n)
    assert (part.n_envs, part.hyperparams["batch_size"]) == (8 // n, 256 // n)
    assert part.n_timesteps == whole.n_timesteps
    assert whole.for_each_process(1) is whole


def test_numbers_that_processes_cannot_share():
    whole = load_experiment("CartPole-v1", overrides={"n_envs": 8, "batch_size": 256})
    message = "n_envs=8 cannot be divided among 3 processes: use a multiple of 3, such as n_envs=9, or fewer processes"
    with pytest.raises(ValueError, match=message):
        whole.for_each_process(3)
    # SB3's default batch size is divided, too.
    with pytest.raises(ValueError, match="batch_size=64 cannot be divided among 24"):
        load_experiment("Walker2d-v5", overrides={"n_envs": 24}).replace(hyperparams={}).for_each_process(24)


CARTPOLE = load_experiment("CartPole-v1", overrides={"n_envs": 2})


def test_number_of_environments():
    assert make_envs(CARTPOLE).num_envs == 2
    assert make_envs(CARTPOLE, 3).num_envs == 3
    assert make_envs(CARTPOLE, evaluation=True).num_envs == 1


def test_order_of_wrappers():
    experiment = CARTPOLE.with_hyperparams(
        {
            "env_wrapper": [{"gymnasium.wrappers.TimeAwareObservation": {"flatten": True}}],
            "vec_env_wrapper": "stable_baselines3.common.vec_env.VecCheckNan",
            "normalize": True,
            "frame_stack": 3,
        }
    )
    env = make_envs(experiment)
    assert isinstance(env, VecFrameStack)
    assert isinstance(env.venv, VecNormalize)
    assert type(env.venv.venv).__name__ == "VecCheckNan"
    assert [type(first) for first in env.unwrapped.envs] == [Monitor] * 2
    assert env.observation_space.shape == (15,)


def test_images_are_transposed_for_evaluation_as_for_training():
    experiment = load_experiment("CarRacing-v3", overrides={"n_envs": 1})
    for env in (make_envs(experiment), make_envs(experiment, evaluation=True)):
        assert isinstance(env, VecTransposeImage)
        assert env.observation_space.shape == (2, 64, 64)
        env.close()


@pytest.mark.parametrize("vec_env", ["dummy", pytest.param("subproc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_resumed_environments_continue_where_they_stopped(vec_env, evaluation):
    experiment = CARTPOLE.replace(vec_env=vec_env, normalize={}, frame_stack=2)
    env, other = (make_envs(experiment, 1, evaluation=evaluation) for _ in range(2))
    env.reset()
    for _ in range(30):
        env.step(np.ones(1, dtype=int))
    assert set_state(other, get_state(env)) is None
    for _ in range(30):
        (ours, _, _, _), (theirs, _, _, _) = (envs.step(np.zeros(1, dtype=int)) for envs in (env, other))
        np.testing.assert_array_equal(theirs, ours)
    env.close()
    other.close()


@pytest.mark.parametrize(("normalize", "gamma"), [({}, 0.98), ({"gamma": 0.5}, 0.98)])
def test_the_discount_of_normalization_is_the_algorithms(normalize, gamma):
    env = make_envs(CARTPOLE.replace(normalize=normalize))
    assert (env.gamma, env.norm_obs, env.norm_reward, env.training) == (gamma, True, True, True)


def test_a_changed_discount_reaches_normalization():
    experiment = CARTPOLE.with_hyperparams({"normalize": {"norm_obs": False}, "gamma": 0.7})
    env = make_envs(experiment)
    assert (env.gamma, env.norm_obs) == (0.7, False)


def test_evaluation_neither_learns_statistics_nor_scales_rewards():
    normalize = unwrap_vec_normalize(make_envs(CARTPOLE.replace(normalize={}), evaluation=True))
    assert (normalize.training, normalize.norm_obs, normalize.norm_reward) == (False, True, False)


def test_seeds():
    def first(**kwargs):
        return make_envs(CARTPOLE.replace(seed=3), **kwargs).reset()

    np.testing.assert_array_equal(first(), first())
    np.testing.assert_array_equal(first()[1], first(seed=4)[0])
    assert not np.array_equal(first()[0], first(evaluation=True)[0])
    np.testing.assert_array_equal(first(evaluation=True, seed=3)[0], first()[0])


def test_arguments_of_the_environment():
    experiment = CARTPOLE.replace(env_kwargs={"sutton_barto_reward": True}, eval_env_kwargs={})

    def rewards(env):
        return [unwrapped._sutton_barto_reward for unwrapped in env.get_attr("unwrapped")]

    assert rewards(make_envs(experiment)) == [True, True]
    assert rewards(make_envs(experiment, evaluation=True)) == [False]
    assert rewards(make_envs(experiment.replace(eval_env_kwargs=None), evaluation=True)) == [True]


def test_monitor_files(tmp_path):
    make_envs(CARTPOLE, monitor_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


def test_kinds_of_vector_environments():
    assert isinstance(make_envs(CARTPOLE), DummyVecEnv)
    env = make_envs(CARTPOLE.replace(vec_env="subproc"))
    assert isinstance(env, SupervisedVecEnv)
    np.testing.assert_array_equal(env.reset(), make_envs(CARTPOLE).reset())
    env.close()


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env_id": "CartPol-v1"}, "Did you mean: `CartPole`"),
        ({"env_id": "ALE/Nope-v5"}, "Nope|ALE"),
        ({"env_kwargs": {"wheels": 3}}, "wheels"),
    ],
)
def test_mistakes_show_with_their_own_message(kind, change, message):
    with pytest.raises((gym.error.Error, TypeError), match=message):
        make_envs(CARTPOLE.replace(vec_env=kind, **change))


def test_atari():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    env = make_envs(load_experiment("ALE/Pong-v5", overrides={"n_envs": 1}))
    assert env.observation_space.shape == (4, 84, 84)
    env.close()


@pytest.mark.parametrize("vec_env", ["envpool", "gymnasium", "auto"])
def test_other_vector_environments_are_passed_in_python(vec_env):
    with pytest.raises(ValueError, match=f"vec_env='{vec_env}' must be one of dummy, subproc.* passed to PPO_Plus in"):
        make_envs(CARTPOLE.replace(vec_env=vec_env))


EXPERIMENT = load_experiment("CartPole-v1", seed=5, overrides={"n_envs": 2, "normalize": True, "compile": False})


def test_hyperparameters_arrive():
    experiment = EXPERIMENT.with_hyperparams(
        {"policy_kwargs": {"net_arch": [7]}, "n_steps": 16, "learning_rate": "cos_1e-2"}
    )
    model = make_model(experiment, make_envs(experiment), verbose=0)
    assert model.policy.action_net.in_features == 7
    assert (model.n_steps, model.gamma, model.seed) == (16, 0.98, 5)
    assert model.learning_rate(0.5) == pytest.approx(0.005)


def test_weights_do_not_depend_on_the_number_of_threads():
    weights = []
    for number in (1, 2):
        with torch_threads(number):
            model = make_model(EXPERIMENT, make_envs(EXPERIMENT))
            assert th.get_num_threads() == number
        weights.append(th.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert th.equal(*weights)


def test_the_experiment_is_left_alone():
    experiment = EXPERIMENT.with_hyperparams({"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}})
    before = repr(experiment)
    make_model(experiment, make_envs(experiment)).learn(64)
    assert repr(experiment) == before


def test_a_model_goes_with_its_statistics(tmp_path):
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(64)
    path = tmp_path / "best_model.zip"
    save_model(model, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best_model.zip", "best_model_vecnormalize.zip"]
    loaded = load_model(path, EXPERIMENT.with_hyperparams({"gamma": 0.5}), make_envs(EXPERIMENT))
    statistics = loaded.get_vec_normalize_env()
    np.testing.assert_array_equal(statistics.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    assert statistics.ret_rms.count == model.get_vec_normalize_env().ret_rms.count
    assert statistics.training and loaded.gamma == 0.5
    obs = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert loaded.learn(64).num_timesteps == 64
    raw = EXPERIMENT.replace(normalize=None)
    with pytest.raises(ValueError, match="best_model.zip was trained in a VecNormalize.* add -params normalize:True"):
        load_model(path, raw, make_envs(raw))


def test_without_normalization_there_are_no_statistics(tmp_path):
    experiment = EXPERIMENT.replace(normalize=None)
    model = make_model(experiment, make_envs(experiment))
    save_model(model, tmp_path / "m.zip")
    assert [file.name for file in tmp_path.iterdir()] == ["m.zip"]
    load_statistics(tmp_path / "m.zip", model.get_env(), "CartPole-v1")


def test_missing_statistics_are_an_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="there are no statistics .*/m_vecnormalize.zip of the model: copy them"
    ):
        load_statistics(tmp_path / "m.zip", make_envs(EXPERIMENT), "CartPole-v1")


def test_path_of_statistics(tmp_path):
    assert statistics_path(tmp_path / "rl_model_10_steps.zip") == tmp_path / "rl_model_10_steps_vecnormalize.zip"
    assert statistics_path(tmp_path / "a.b") == tmp_path / "a.b_vecnormalize.zip"


def test_callbacks_are_new_instances():
    name = "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes"
    experiment = EXPERIMENT.with_hyperparams({"callback": [{name: {"max_episodes": 3}}]})
    (one,), (other,) = experiment.make_callbacks(), experiment.make_callbacks()
    assert one is not other and one.max_episodes == 3
    assert EXPERIMENT.make_callbacks() == []


def test_statistics_that_are_not_finite_are_errors(tmp_path):
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(64)
    path, statistics = tmp_path / "model.zip", model.get_vec_normalize_env()
    statistics.obs_rms.var[1] = np.nan
    with pytest.raises(ValueError, match="statistics of VecNormalize for .*model_vecnormalize.zip are not finite"):
        save_model(model, path)
    statistics.save(str(statistics_path(path)))
    with pytest.raises(ValueError, match=r"statistics of VecNormalize for .*model_vecnormalize\.zip are not finite"):
        load_statistics(path, make_envs(EXPERIMENT), "CartPole-v1")


@pytest.mark.parametrize("contents", [b"", b"no pickle", pickle.dumps(EXPERIMENT.settings())[:20], pickle.dumps([1])])
def test_damaged_statistics_are_called_so(tmp_path, contents):
    path = tmp_path / "model.zip"
    statistics_path(path).write_bytes(contents)
    with pytest.raises(ValueError, match=r"_vecnormalize\.zip is not a valid VecNormalize \(damaged or truncated\?\)"):
        load_statistics(path, make_envs(EXPERIMENT), "CartPole-v1")


def test_a_number_of_processes_needs_processes():
    with pytest.raises(ValueError, match="--env-workers 2 needs processes: pass --vec-env subproc"):
        make_envs(load_experiment("CartPole-v1"), n_workers=2)


def test_streams_are_text_in_settings():
    text = "[Cost(source='cost', limit=25.0), RandomNetworkDistillation(weight=1.0)]"
    made = parse_settings("CartPole-v1", {"n_timesteps": 10, "streams": text}, check_names=True)
    cost, curiosity = streams = made.hyperparams["streams"]
    assert (cost.path, cost.limit, curiosity.weight) == (("cost",), 25.0, 1.0)
    assert parse_settings("CartPole-v1", made.settings()).hyperparams["streams"] == streams
