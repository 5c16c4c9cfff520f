"""From settings to experiments, and back."""

import gymnasium as gym
import pytest
import yaml
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.vec_env import VecFrameStack
from torch import nn, optim

from ppo_plus import MlpPolicy
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import Experiment, Part, load_experiment, parse_settings
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.models import make_model

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
@pytest.mark.parametrize("name", [name for name in BUILTIN if name not in ("default", "atari", "mujoco")])
def test_builtin_entries_build(name):
    env_id, _, variant = name.partition("/")
    # A package that is not installed (such as mujoco-py, or an older mujoco) is not this file's fault.
    try:
        gym.make(env_id).close()
    except (gym.error.Error, ImportError) as error:
        pytest.skip(f"{env_id} cannot be made here: {error}")
    experiment = load_experiment(env_id, variant=variant or None, overrides={"n_envs": 1})
    env = make_envs(experiment)
    make_model(experiment, env)
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
    path = settings("default: {n_timesteps: 1e5, gamma: 9e-1, learning_rate: 1e-3, clip_range: lin_2e-1}")
    experiment = load_experiment("Foo-v0", path)
    assert experiment.n_timesteps == 100_000
    assert experiment.hyperparams == {"gamma": 0.9, "learning_rate": 0.001, "clip_range": "lin_2e-1"}


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
        ('n_steps: "64"', "n_steps='64' is a string: write the number without quotes"),
        ("gamma: '.9'", "gamma='.9' is a string: write the number without quotes"),
        ("n_envs: 0", "n_envs must be a positive whole number, not 0"),
        ("n_envs: many", "n_envs must be a positive whole number, not 'many'"),
        ("frame_stack: -1", "frame_stack must be a positive whole number, not -1"),
        ("env_kwargs: [1]", r"env_kwargs must be a mapping .* \[1\]"),
        ("normalize: 3", "normalize must be a mapping .* 3"),
        ("policy_kwargs: \"__import__('os')\"", "policy_kwargs: .*__import__.* is not allowed"),
        ("normalize: \"__import__('os')\"", "normalize: .*__import__.* is not allowed"),
        ('policy_kwargs: "[1]"', "policy_kwargs must be a mapping"),
        ("policy_kwargs: {activation_fn: nn.Relu}", "policy_kwargs: nn.Relu is not a torch module class"),
        ("policy: os.system", "'os.system' is in none of the packages"),
        ("env_wrapper: subprocess.Popen", "env_wrapper: 'subprocess.Popen' is in none of the packages"),
        ("env_wrapper: [{a.B: {}, c.D: {}}]", "env_wrapper: .* must be a dotted name, or a mapping of one"),
        ("env_wrapper: [[a.B]]", "env_wrapper: .* must be a dotted name"),
        ("callback: gymnasium.Wrapper", "callback: 'gymnasium.Wrapper' is not a subclass of .*BaseCallback"),
        ("vec_env_wrapper: Nope", "vec_env_wrapper: 'Nope' is in none of the packages"),
    ],
)
def test_bad_setting_names_file_entry_and_key(settings, setting, message):
    path = settings(f"Foo-v0: {{n_timesteps: 1, {setting}}}")
    with pytest.raises(ValueError, match=f"settings.yml, Foo-v0: .*{message}"):
        load_experiment("Foo-v0", path)


@pytest.mark.parametrize("overrides", [{"gama": 0.5}, {"policy_kwargs": "open('x')"}, {"gamma": "0.5"}])
def test_the_file_is_not_blamed_for_overrides(settings, overrides):
    with pytest.raises(ValueError) as error:
        load_experiment("Foo-v0", settings("Foo-v0: {n_timesteps: 1}"), overrides)
    assert "settings.yml" not in str(error.value)
    assert str(next(iter(overrides))) in str(error.value)


def test_length_of_training_is_required(settings):
    with pytest.raises(ValueError, match="n_timesteps must be a positive whole number, not None"):
        load_experiment("Foo-v0", settings("default: {}"))


def test_trusted_settings_import_from_any_package(settings, tmp_path, monkeypatch):
    (tmp_path / "my_wrappers.py").write_text("import gymnasium as gym\nclass Mine(gym.Wrapper): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = settings("Foo-v0: {n_timesteps: 1, env_wrapper: my_wrappers.Mine}")
    with pytest.raises(ValueError, match="--trust-config"):
        load_experiment("Foo-v0", path)
    for packages in (None, ["my_wrappers"]):
        (part,) = load_experiment("Foo-v0", path, packages=packages).env_wrapper
        assert part.cls.__name__ == "Mine"


def test_evaluation_is_deterministic_but_for_atari():
    assert load_experiment("CartPole-v1").deterministic_eval
    assert not load_experiment("ALE/Pong-v5").deterministic_eval


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
