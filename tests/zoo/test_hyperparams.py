"""From YAML to experiments."""

import pytest
import yaml
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from ppo_plus.zoo.hyperparams import Experiment, builtin_file, positive_int, resolve

BUILTIN = yaml.safe_load(builtin_file().read_bytes())


@pytest.fixture
def settings(tmp_path):
    """Write a settings file and return its path."""

    def write(text):
        path = tmp_path / "settings.yml"
        path.write_text(text)
        return path

    return write


def test_splits_an_entry(settings):
    path = settings(
        """
        Foo-v0:
          n_timesteps: !!float 1e5
          n_envs: 4
          policy: CnnPolicy
          normalize: {norm_reward: false}
          env_kwargs: {size: 3}
          policy_kwargs: "dict(net_arch=[8], activation_fn=nn.ReLU)"
          gamma: 0.9
          learning_rate: lin_0.001
        """
    )
    assert resolve("Foo-v0", path) == Experiment(
        env_id="Foo-v0",
        n_timesteps=100_000,
        n_envs=4,
        policy="CnnPolicy",
        normalize={"norm_reward": False},
        env_kwargs={"size": 3},
        policy_kwargs={"net_arch": [8], "activation_fn": nn.ReLU},
        hyperparams={"gamma": 0.9, "learning_rate": "lin_0.001"},
    )


def test_what_an_entry_leaves_out(settings):
    assert resolve("Foo-v0", settings("default: {n_timesteps: 10}")) == Experiment(
        env_id="Foo-v0",
        n_timesteps=10,
        n_envs=1,
        policy="MlpPolicy",
        normalize=None,
        env_kwargs={},
        policy_kwargs={},
        hyperparams={},
    )


def test_own_entry_wins_over_default_and_is_not_mixed_with_it(settings):
    path = settings("default: {n_timesteps: 10, gamma: 0.5}\nFoo-v0: {n_timesteps: 20}")
    experiment = resolve("Foo-v0", path)
    assert (experiment.n_timesteps, experiment.hyperparams) == (20, {})
    assert resolve("Foo-v1", path).hyperparams == {"gamma": 0.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", {}),
        ("false", None),
        ("\"{'norm_obs': True}\"", {"norm_obs": True}),
        ('"dict(norm_reward=False)"', {"norm_reward": False}),
    ],
)
def test_normalize(settings, text, expected):
    path = settings(f"default: {{n_timesteps: 1, normalize: {text}}}")
    assert resolve("Foo-v0", path).normalize == expected


def test_policy_kwargs_as_mapping_knows_module_classes(settings):
    path = settings("default: {n_timesteps: 1, policy_kwargs: {activation_fn: nn.ELU, net_arch: [4]}}")
    assert resolve("Foo-v0", path).policy_kwargs == {"activation_fn": nn.ELU, "net_arch": [4]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gama: 0.9", "unknown key 'gama'; the nearest valid key is 'gamma'"),
        ("n_timestep: 5", "unknown key 'n_timestep'; the nearest valid key is 'n_timesteps'"),
        ("normalise: true", "unknown key 'normalise'; the nearest valid key is 'normalize'"),
        ("normalize: {norm_observation: true}", "unknown key 'norm_observation' in normalize; .* 'norm_obs'"),
        ("5: 6", "unknown key 5;"),
        ("seed: 5", "unknown key 'seed'"),
        ("n_envs: 0", "n_envs must be a positive whole number, not 0"),
        ("n_envs: many", "n_envs must be a positive whole number, not 'many'"),
        ("env_kwargs: [1]", r"env_kwargs must be a mapping .* \[1\]"),
        ("normalize: 3", "normalize must be a mapping .* 3"),
        ("policy_kwargs: \"__import__('os')\"", "policy_kwargs: .*__import__.* is not allowed"),
        ('policy_kwargs: "[1]"', "policy_kwargs must be a mapping"),
        ("policy_kwargs: {activation_fn: nn.Relu}", "policy_kwargs: nn.Relu is no torch module class"),
    ],
)
def test_bad_setting_names_file_entry_and_key(settings, setting, message):
    path = settings(f"Foo-v0: {{n_timesteps: 1, {setting}}}")
    with pytest.raises(ValueError, match=f"settings.yml, Foo-v0: .*{message}"):
        resolve("Foo-v0", path)


def test_entry_that_is_no_mapping(settings):
    with pytest.raises(ValueError, match="settings.yml, Foo-v0: the entry must be a mapping"):
        resolve("Foo-v0", settings("Foo-v0: 7"))


def test_length_of_training_is_required(settings):
    with pytest.raises(ValueError, match="n_timesteps must be a positive whole number, not None"):
        resolve("Foo-v0", settings("default: {}"))


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t", "a: !!float x", "a: !!python/name:os.system", "a: \x01"])
def test_broken_yaml(settings, text):
    with pytest.raises(ValueError, match="settings.yml is no valid YAML"):
        resolve("Foo-v0", settings(text))


@pytest.mark.parametrize("text", ["", "just words", "[1, 2]"])
def test_yaml_that_is_no_mapping(settings, text):
    with pytest.raises(ValueError, match="settings.yml must be a mapping"):
        resolve("Foo-v0", settings(text))


def test_no_entry(settings):
    with pytest.raises(ValueError, match="neither an entry for Foo-v0 nor a default"):
        resolve("Foo-v0", settings("Bar-v0: {}"))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        resolve("Foo-v0", tmp_path / "nope.yml")


@pytest.mark.parametrize("value", [3, 3.0, "3", "3e0", " 3 "])
def test_positive_int(value):
    assert positive_int("n", value) == 3


@pytest.mark.parametrize("value", [0, -1, 2.5, "x", None, True, [3], float("nan"), float("inf"), "inf", ""])
def test_not_a_positive_int(value):
    with pytest.raises(ValueError, match="n must be a positive whole number"):
        positive_int("n", value)


@pytest.mark.parametrize("env_id", BUILTIN)
def test_builtin_entries_are_valid(env_id):
    experiment = resolve(env_id)
    assert experiment.n_timesteps >= 20_000
    if experiment.normalize:
        assert set(experiment.normalize) <= set(VecNormalize.__init__.__annotations__)


def test_builtin_file_covers_the_classics():
    classics = {"CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"}
    assert {"default", "LunarLander-v3"} | classics <= set(BUILTIN)
