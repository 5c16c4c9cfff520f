"""An experiment: settings of a file, resolved and checked; its environments and models."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from parametrization import SLOW, sample
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, unwrap_vec_normalize
from stable_baselines3.common.vec_env.vec_transpose import VecTransposeImage
from torch import nn, optim

from ppo_plus import Cost, MlpPolicy, RandomNetworkDistillation, SupervisedVecEnv
from ppo_plus.callbacks import save_with_statistics
from ppo_plus.envs.normalization import IN_POLICY
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
    statistics_path,
    with_recommended,
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
    stop = "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes"
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
        callback=(Part(stop, StopTrainingOnMaxEpisodes, {"max_episodes": 5}),),
        env_kwargs={"size": 3},
        monitor_kwargs={"info_keywords": ("is_success",)},
        policy_kwargs={"net_arch": [8], "activation_fn": nn.ReLU},
        hyperparams={"gamma": 0.9, "learning_rate": "lin_0.001"},
        seed=7,
        vec_env="subproc",
    )


@pytest.mark.parametrize("name", sample(BUILTIN, 8, SLOW))
def test_builtin_entries_are_valid_and_read_back(name):
    env_id, _, variant = name.partition("/") if name != "atari" else ("ALE/Pong-v5", "", "")
    experiment = load_experiment(env_id, variant=variant or None)
    assert experiment.n_timesteps >= 20_000
    assert parse_settings(env_id, yaml.safe_load(yaml.safe_dump(experiment.settings()))) == experiment


@pytest.mark.filterwarnings("ignore:.*is out of date", "ignore:.*swig", "ignore:builtin type")
@pytest.mark.parametrize("name", sample(sorted(BUILTIN.keys() - {"default", "atari", "mujoco"}), 8))
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


#: What people write, and what it is in an experiment of one timestep.
READ = [
    ("", {}),
    ("normalize: true", {"normalize": {}}),
    ("normalize: null", {"normalize": None}),
    ("normalize: \"{'norm_obs': True}\"", {"normalize": {"norm_obs": True}}),
    ('normalize: "dict(norm_reward=False)"', {"normalize": {"norm_reward": False}}),
    ('normalize: "False"', {"normalize": None}),
    ("frame_stack: None, env_wrapper: 'None', policy_kwargs: null", {}),
    ("target_kl: None, env_kwargs: {x: 'None'}", {"hyperparams": {"target_kl": None}, "env_kwargs": {"x": None}}),
    (
        "policy_kwargs: {activation_fn: nn.ELU, net_arch: [4], optimizer_class: th.optim.AdamW}",
        {"policy_kwargs": {"activation_fn": nn.ELU, "net_arch": [4], "optimizer_class": optim.AdamW}},
    ),
    ("policy_kwargs: {actor_keys: [policy]}", {"policy_kwargs": {"actor_keys": ["policy"]}}),
    ("policy_kwargs: \"dict(actor_keys=['policy'])\"", {"policy_kwargs": {"actor_keys": ["policy"]}}),
    ("policy: ppo_plus.MlpPolicy", {"policy": MlpPolicy}),
    ("normalize_observations: {clip: 5.0}", {"hyperparams": {"normalize_observations": {"clip": 5.0}}}),
    ('env_kwargs: "dict(shape=(1, 2))"', {"env_kwargs": {"shape": (1, 2)}}),
    (
        "policy_kwargs: {net_arch: '[64, 64]', optimizer_kwargs: dict(weight_decay=0.1)}",
        {"policy_kwargs": {"net_arch": [64, 64], "optimizer_kwargs": {"weight_decay": 0.1}}},
    ),
    ("streams: [\"Cost('cost', limit=1.0)\"]", {"hyperparams": {"streams": [Cost("cost", limit=1.0)]}}),
    ("monitor_kwargs: {info_keywords: [won]}", {"monitor_kwargs": {"info_keywords": ("won",)}}),
    ('rollout_buffer_kwargs: "dict(a=nn.ReLU)"', {"hyperparams": {"rollout_buffer_kwargs": {"a": nn.ReLU}}}),
    ("gamma: 9e-1, clip_range: lin_2e-1", {"hyperparams": {"gamma": 0.9, "clip_range": "lin_2e-1"}}),
    ("n_steps: 2e3, batch_size: !!float 64", {"hyperparams": {"n_steps": 2000, "batch_size": 64}}),
    (
        "streams: \"[Cost(source='cost', limit=25.0), RandomNetworkDistillation(weight=1.0)]\"",
        {"hyperparams": {"streams": [Cost("cost", limit=25.0), RandomNetworkDistillation(weight=1.0)]}},
    ),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_what_people_write(settings, text, expected):
    """An entry is not mixed with the default one. What is read can be written again."""
    path = settings(f"default: {{n_timesteps: 10, ent_coef: 0.5}}\nFoo-v0: {{n_timesteps: 1, {text}}}")
    experiment = load_experiment("Foo-v0", path)
    assert experiment == Experiment("Foo-v0", 1, **expected)
    assert [type(value) for value in experiment.hyperparams.values()] == [
        type(value) for value in expected.get("hyperparams", {}).values()
    ]
    plain = yaml.safe_load(yaml.safe_dump(experiment.settings()))
    assert parse_settings("Foo-v0", plain) == experiment


@pytest.mark.parametrize("shape", ["(8, 8)", '"dict(shape=(8, 8))"'])
def test_tuples_in_arguments_of_wrappers(settings, shape):
    arguments = shape if shape.startswith('"') else f"\n        shape: {shape}"
    wrapper = f"env_wrapper:\n    - gymnasium.wrappers.ResizeObservation: {arguments}"
    (part,) = load_experiment("Foo-v0", settings(f"default:\n  n_timesteps: 1\n  {wrapper}")).env_wrapper
    assert part.kwargs == {"shape": (8, 8)}


def test_builtin_file_covers_the_classics_box2d_mujoco_and_atari():
    mujoco = {name for name in gym.registry if name.endswith("-v5") and "mujoco" in str(gym.spec(name).entry_point)}
    others = "default atari CartPole-v1 Pendulum-v1 Acrobot-v1 LunarLander-v3 BipedalWalker-v3 CarRacing-v3".split()
    assert len(mujoco) == 11 and mujoco | {f"{name[:-1]}4" for name in mujoco} | {*others} <= set(BUILTIN)


def test_overrides_replace_settings_as_a_whole(settings):
    path = settings("default: {n_timesteps: 1, gamma: 0.9, policy_kwargs: {net_arch: [8], ortho_init: false}}")
    experiment = load_experiment("Foo-v0", path, {"n_timesteps": 2, "policy_kwargs": {"net_arch": [4]}, "n_steps": 5})
    assert (experiment.n_timesteps, experiment.policy_kwargs) == (2, {"net_arch": [4]})
    assert experiment.hyperparams == {"gamma": 0.9, "n_steps": 5}
    # The file is not blamed for them.
    for overrides in ({"gama": 0.5}, {"policy_kwargs": "open('x')"}, {"frame_stack": "0.5"}):
        with pytest.raises(ValueError, match=f"^(?!.*settings.yml).*{min(overrides)}"):
            load_experiment("Foo-v0", path, overrides)


def test_with_hyperparams_merges_policy_kwargs():
    base = load_experiment("MountainCarContinuous-v0", seed=3)
    changed = base.with_hyperparams(
        {"gamma": 0.5, "n_envs": 2, "policy_kwargs": {"net_arch": [4], "activation_fn": "nn.ReLU"}}
    )
    assert changed.policy_kwargs == {"log_std_init": -1, "net_arch": [4], "activation_fn": nn.ReLU}
    assert changed.hyperparams == {**base.hyperparams, "gamma": 0.5}
    assert (changed.n_envs, changed.n_timesteps, changed.seed, changed.normalize) == (2, base.n_timesteps, 3, {})
    assert base.policy_kwargs == {"log_std_init": -1} and base.hyperparams["gamma"] == 0.999


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gama: 0.9", "unknown key 'gama': did you mean 'gamma'"),
        ("use_rms_prop: true", "unknown key 'use_rms_prop': valid keys are"),
        ("5: 6", "unknown key 5: valid keys are .*, batch_size,"),
        ("seed: 5", "unknown key 'seed'"),
        ("n_envs: 0", "n_envs must be a positive whole number, not 0"),
        ("n_timesteps: 1:30", "n_timesteps must be a positive whole number, not '1:30'"),
        ("n_timesteps: null", "n_timesteps must be a positive whole number, not None"),
        ("frame_stack: -1", "frame_stack must be a positive whole number, not -1"),
        ("env_kwargs: [1]", r"env_kwargs must be a mapping .* \[1\]"),
        ("normalize: 3", "normalize must be a mapping .* 3"),
        ("policy_kwargs: \"__import__('os')\"", "policy_kwargs: .*__import__.* is not allowed"),
        ("policy_kwargs: {activation_fn: nn.Relu}", "policy_kwargs: 'torch.nn.Relu' cannot be imported"),
        ("policy: os.system", "'os.system' is in none of the packages"),
        ("env_wrapper: subprocess.Popen", "env_wrapper: 'subprocess.Popen' is in none of the packages"),
        ("env_wrapper: [{a.B: {}, c.D: {}}]", "env_wrapper: .* must be a dotted name, or a mapping of one"),
        ("env_wrapper: [{a.B: , x: 3}]", "env_wrapper: .* must be a dotted name, .* indented below it"),
        ("callback: gymnasium.Wrapper", "callback: 'gymnasium.Wrapper' is not a subclass of .*BaseCallback"),
    ],
)
def test_bad_setting_names_file_entry_and_key(settings, setting, message):
    length = "" if setting.startswith("n_timesteps") else "n_timesteps: 1, "
    path = settings(f"Foo-v0: {{{length}{setting}}}")
    with pytest.raises(ValueError, match=f"settings.yml, Foo-v0: .*{message}"):
        load_experiment("Foo-v0", path)


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


CARTPOLE = load_experiment("CartPole-v1", overrides={"n_envs": 2, "n_steps": 32})


def test_several_processes_share_environments_and_minibatches():
    whole = load_experiment("CartPole-v1", overrides={"n_envs": 8, "batch_size": 256})
    part = whole.for_each_process(4)
    assert (part.n_envs, part.hyperparams["batch_size"], part.n_timesteps) == (2, 64, whole.n_timesteps)
    assert whole.for_each_process(1) is whole
    with pytest.raises(ValueError, match="-params batch_size:N"):
        whole.replace(hyperparams={}).for_each_process(4, has_model=True)
    with pytest.raises(ValueError, match="n_envs=8 cannot be divided among 3 processes"):
        whole.for_each_process(3)
    # SB3's default batch size is divided, too.
    with pytest.raises(ValueError, match="batch_size=64 cannot be divided among 24"):
        whole.replace(n_envs=24, hyperparams={}).for_each_process(24)


@pytest.mark.slow
def test_kinds_and_numbers_of_environments(tmp_path):
    envs = make_envs(CARTPOLE, monitor_dir=tmp_path)
    assert isinstance(envs, DummyVecEnv) and envs.num_envs == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]
    assert make_envs(CARTPOLE, 3).num_envs == 3
    assert make_envs(CARTPOLE, evaluation=True).num_envs == 1
    in_processes = make_envs(CARTPOLE.replace(vec_env="subproc"), restarts=3, evaluation=True)
    assert isinstance(in_processes, SupervisedVecEnv) and (in_processes.restarts, in_processes.timeout) == (3, None)
    np.testing.assert_array_equal(in_processes.reset(), make_envs(CARTPOLE, evaluation=True).reset())
    in_processes.close()
    with pytest.raises(ValueError, match="--env-workers 2 needs --vec-env subproc"):
        make_envs(CARTPOLE, n_workers=2)
    with pytest.raises(ValueError, match="vec_env='envpool' must be one of 'dummy', 'subproc'"):
        make_envs(CARTPOLE.replace(vec_env="envpool"))


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
    assert [type(first).__name__ for first in env.unwrapped.envs] == ["TimeAwareObservation"] * 2
    assert env.observation_space.shape == (15,)


def test_images_are_transposed_for_evaluation_as_for_training():
    experiment = load_experiment("CarRacing-v3", overrides={"n_envs": 1})
    for env in (make_envs(experiment), make_envs(experiment, evaluation=True)):
        assert isinstance(env, VecTransposeImage)
        assert env.observation_space.shape == (2, 64, 64)
        env.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"normalize": True}, (0.995, True, True, True)),
        ({"normalize": {"gamma": 0.5}}, (0.995, True, True, True)),
        ({"normalize": {"norm_obs": False}, "gamma": 0.7}, (0.7, False, True, True)),
    ],
)
def test_the_discount_of_normalization_is_the_algorithms(settings, expected):
    experiment = CARTPOLE.with_hyperparams(settings)
    env = make_envs(experiment)
    assert (env.gamma, env.norm_obs, env.norm_reward, env.training) == expected
    evaluation = unwrap_vec_normalize(make_envs(experiment, evaluation=True))
    assert (evaluation.training, evaluation.norm_obs, evaluation.norm_reward) == (False, expected[1], False)


@pytest.mark.parametrize(
    ("normalize", "inside"),
    [(False, set()), (True, set()), ({"norm_reward": False}, {"normalize_values"}), (None, set(IN_POLICY))],
)
def test_what_settings_normalize_is_not_recommended_again(normalize, inside):
    settings = {} if normalize is None else {"normalize": normalize}
    experiment = load_experiment("Pendulum-v1", overrides=settings)
    found = with_recommended(experiment, settings).hyperparams
    assert found.keys() & IN_POLICY.keys() == inside


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


EXPERIMENT = load_experiment(
    "CartPole-v1", seed=5, overrides={"n_envs": 2, "n_steps": 32, "normalize": True, "compile": False}
)


def test_hyperparameters_arrive():
    experiment = EXPERIMENT.with_hyperparams(
        {"policy_kwargs": {"net_arch": [7]}, "n_steps": 16, "learning_rate": "cos_1e-2"}
    )
    model = make_model(experiment, make_envs(experiment), verbose=0)
    assert model.policy.action_net.in_features == 7
    assert (model.n_steps, model.gamma, model.seed) == (16, 0.995, 5)
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
    save_with_statistics(model, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best_model.zip", "best_model_vecnormalize.zip"]
    loaded = load_model(path, EXPERIMENT.with_hyperparams({"gamma": 0.5}), make_envs(EXPERIMENT))
    statistics = loaded.get_vec_normalize_env()
    np.testing.assert_array_equal(statistics.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    assert statistics.ret_rms.count == model.get_vec_normalize_env().ret_rms.count
    assert statistics.training and loaded.gamma == 0.5
    assert load_model(path, EXPERIMENT, envs := make_envs(EXPERIMENT)).gamma == envs.gamma == model.gamma
    obs = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert loaded.learn(64).num_timesteps == 64
    raw = EXPERIMENT.replace(normalize=None)
    with pytest.raises(ValueError, match="best_model.zip was trained in a VecNormalize.* add -params normalize:True"):
        load_model(path, raw, make_envs(raw))


def test_statistics_beside_a_model(tmp_path):
    """None of a model that does not normalize; missing, damaged ones and ones that are not finite are errors."""
    raw = EXPERIMENT.replace(normalize=None)
    model = make_model(raw, make_envs(raw))
    save_with_statistics(model, tmp_path / "m.zip")
    assert [file.name for file in tmp_path.iterdir()] == ["m.zip"]
    load_statistics(tmp_path / "m.zip", model.get_env(), "CartPole-v1")
    env = make_envs(EXPERIMENT)
    with pytest.raises(FileNotFoundError, match="there are no statistics .*/m_vecnormalize.zip of the model: copy"):
        load_statistics(tmp_path / "m.zip", env, "CartPole-v1")
    for contents in (b"", b"no pickle", pickle.dumps(EXPERIMENT.settings())[:20], pickle.dumps([1])):
        statistics_path(tmp_path / "m.zip").write_bytes(contents)
        with pytest.raises(ValueError, match=r"_vecnormalize\.zip is not a valid VecNormalize \(damaged or truncated"):
            load_statistics(tmp_path / "m.zip", env, "CartPole-v1")
    env.obs_rms.var[1] = np.nan
    with pytest.raises(ValueError, match="statistics of VecNormalize for .*m_vecnormalize.zip are not finite"):
        save_with_statistics(make_model(EXPERIMENT, env), tmp_path / "m.zip")
    env.save(str(statistics_path(tmp_path / "m.zip")))
    with pytest.raises(ValueError, match="statistics of VecNormalize for .*m_vecnormalize.zip are not finite"):
        load_statistics(tmp_path / "m.zip", make_envs(EXPERIMENT), "CartPole-v1")


def test_callbacks_are_new_instances():
    name = "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes"
    experiment = EXPERIMENT.with_hyperparams({"callback": [{name: {"max_episodes": 3}}]})
    (one,), (other,) = experiment.make_callbacks(), experiment.make_callbacks()
    assert one is not other and one.max_episodes == 3
    assert EXPERIMENT.make_callbacks() == []
