"""A model's file has all of the model, bit for bit, runs no code, and names what is missing."""

import io
import json
import resource
import threading
import warnings
import zipfile
from functools import cached_property, partial
from itertools import count, product

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch as th
from envs import ACTIONS, IMAGE, OBSERVATIONS, MaskedEnv, vec
from parametrization import sample
from poison import forbid_pickles
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from ppo_plus import ColoredNoise, MlpPolicy, PPO_Plus, WhiteNoise, cosine, load_statistics, register
from ppo_plus.formulas.kl_control import AdaptivePenalty, KLControl
from ppo_plus.saving.format import names
from ppo_plus.saving.format.container import ARRAYS, DESCRIPTION, read
from ppo_plus.saving.format.names import Refused
from ppo_plus.saving.statistics import write_statistics


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(names, "_registered", {})


@pytest.fixture
def no_pickle(monkeypatch):
    make()  # what torch loads late uses pickles
    forbid_pickles(monkeypatch)


def make(policy="MlpPolicy", env=None, **kwargs):
    defaults = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu", compile=False)
    return PPO_Plus(policy, env or vec(ACTIONS["discrete"]), **defaults | kwargs)


CASES = {
    "penalty": lambda: make(
        env=VecNormalize(vec(ACTIONS["box"])), kl_control=AdaptivePenalty(band=1.4), target_kl=0.01, clip_range=None
    ),
    "images": lambda: make("CnnPolicy", vec(ACTIONS["discrete"], IMAGE), exploration=ColoredNoise(0.5, 16), n_epochs=1),
    "memory": lambda: make(
        "MultiInputLstmPolicy",
        vec(ACTIONS["mixed"], OBSERVATIONS["dict"]),
        use_sde=True,
        kl_control="adaptive_lr",
        target_kl="lin_0.1",
        policy_kwargs=dict(lstm_hidden_size=8),
        n_epochs=1,
        recompute_advantages=True,
    ),
    "masks": lambda: make(
        "MlpLruPolicy",
        vec(ACTIONS["multidiscrete"], env_class=MaskedEnv),
        policy_kwargs=dict(
            optimizer_class=th.optim.RMSprop,
            optimizer_kwargs=dict(centered=True, momentum=0.9),
            activation_fn=th.nn.ReLU,
            net_arch=dict(pi=[8], vf=[4, 4]),
            lstm_hidden_size=8,
        ),
        learning_rate="cos_1e-3",
        ent_coef=cosine(0.1),
    ),
    "squashed": lambda: make(
        env=vec(ACTIONS["box_float64"]), use_sde=True, policy_kwargs=dict(squash_output=True), sde_sample_freq="episode"
    ),
    "tuple": lambda: make(env=vec(ACTIONS["tuple"]), gamma=0.9, seed=None, stats_window_size=7, clip_range_vf=0.2),
    "fresh": lambda: make(
        gae_lambda=0.8, vf_coef=0.7, max_grad_norm=0.4, normalize_advantage="rollout", value_clip="plain"
    ),
}


def parts(file):
    """What a file says, without the versions that wrote it."""
    with zipfile.ZipFile(file) as archive:
        value = json.loads(archive.read(DESCRIPTION))["value"]
        value["state"].pop("planned_gradient_steps", None)  # a loaded model counts again
        arrays = safetensors.torch.load(archive.read(ARRAYS))
    return value, arrays


def saved(model):
    file = io.BytesIO()
    model.save(file)
    return file


def same_weights(model, other):
    pairs = zip(model.policy.state_dict().values(), other.policy.state_dict().values(), strict=True)
    return all(th.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("case", sample(CASES, 2))
def test_what_is_loaded_is_what_was_saved_bit_for_bit(case, no_pickle, recwarn):
    model = CASES[case]()
    if case != "fresh":
        model.learn(64)
    # With an environment, and without: of both the state of collecting comes along.
    for env in (None, model.get_env()):
        file = saved(model)
        loaded = PPO_Plus.load(file, env=env, device="cpu", force_reset=False)
        (value, arrays), (expected, expected_arrays) = parts(saved(loaded)), parts(file)
        assert value == expected
        assert arrays.keys() == expected_arrays.keys()
        assert all(
            arrays[name].equal(each) and arrays[name].dtype == each.dtype for name, each in expected_arrays.items()
        )
        assert vars(loaded.settings) == vars(model.settings)
        assert (loaded.observation_space, loaded.action_space) == (model.observation_space, model.action_space)
        assert type(loaded.policy) is type(model.policy) and loaded.compiled == model.compiled
    assert PPO_Plus.load(file, env=env, device="cpu")._last_obs is None
    assert not [each for each in recwarn if "saved without" in str(each.message)]


def test_the_versions_of_a_file_are_printed(tmp_path, capsys):
    make().save(tmp_path / "model")
    PPO_Plus.load(tmp_path / "model", device="cpu", print_system_info=True)
    now, then = capsys.readouterr().out.split("== SAVED MODEL SYSTEM INFO ==")
    assert "== CURRENT SYSTEM INFO ==" in now and f"torch: {th.__version__.partition('+')[0]}" in then


class Counting:
    """A schedule that counts its calls."""

    calls = 0

    def __call__(self, progress):
        self.calls += 1
        return 1e-3


def test_saving_does_not_change_a_schedule_which_need_not_be_copied():
    model = make(learning_rate=(schedule := Counting()))
    before = schedule.calls
    saved(model)
    assert schedule.calls == before
    schedule.lock = threading.Lock()
    assert PPO_Plus.load(saved(model)).lr_schedule(0.3) == 1e-3


def test_attributes_are_left_out_on_demand(tmp_path):
    model = make()
    model.mine = [1, 2]
    model.learn(16).save(tmp_path / "model", exclude=["mine", "seed", "verbose", "_last_obs"], include=["verbose"])
    value = parts(tmp_path / "model.zip")[0]
    assert not value["attributes"] and "seed" not in value["arguments"] and "verbose" in value["arguments"]
    assert "observations" not in value["state"] and "episode_starts" in value["state"]
    assert PPO_Plus.load(tmp_path / "model")._last_obs is None
    assert PPO_Plus.load(saved(model)).mine == [1, 2]


def test_a_policy_that_torch_compiles_is_trained_saved_and_loaded():
    model = make()
    wrapped = model.policy = th.compile(model.policy, backend="eager")
    assert same_weights(model.learn(32), make().learn(32))
    assert not any("_orig_mod" in name for name in model.get_parameters()["policy"])
    loaded, obs = PPO_Plus.load(saved(model), env=model.get_env(), device="cpu"), model.get_env().reset()
    assert same_weights(loaded, model)
    actions = [each.predict(obs, deterministic=True)[0] for each in (loaded, model, wrapped)]
    assert np.array_equal(actions[0], actions[1]) and np.array_equal(actions[0], actions[2])
    loaded.policy = th.compile(loaded.policy, backend="eager")
    assert not same_weights(loaded.learn(32), model)
    loaded.set_parameters(model.get_parameters())
    assert same_weights(PPO_Plus.load(saved(loaded)), model)


def test_a_path_of_logs_is_saved_as_text(tmp_path, recwarn):
    model = make(tensorboard_log=str(tmp_path))
    model.tensorboard_log = tmp_path
    assert read(saved(model), "model")["arguments"]["tensorboard_log"] == str(tmp_path)


@pytest.mark.slow
def test_a_loaded_model_logs_below_the_working_folder_or_where_its_caller_says(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    env, logs = make().get_env(), "./logs/tb/"
    PPO("MlpPolicy", env, n_steps=16, batch_size=16, tensorboard_log=logs).save("sb3")
    make(tensorboard_log=logs).save("ours")
    PPO_Plus.load("sb3", env).learn(32, tb_log_name="sb3")
    PPO_Plus.load("ours", env).learn(32, tb_log_name="ours")
    PPO_Plus.load("ours", env, tensorboard_log="here").learn(32, tb_log_name="here")
    assert {path.name for path in (tmp_path / "logs" / "tb").iterdir()} == {"ours_1", "sb3_1"}
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"here_1"}
    assert not [each for each in recwarn if "tensorboard_log" in str(each.message)]


@pytest.mark.parametrize("folder", ["/tmp/x", "a/../../x", "linked/x", 3])
def test_a_file_does_not_choose_another_folder_for_logs(folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "linked").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "here")
    file = edited(saved(make()), lambda value: value["arguments"].update(tensorboard_log=folder))
    loaded = PPO_Plus.load(file, make().get_env())
    loaded.evaluate(1)
    assert loaded.tensorboard_log is None
    with pytest.warns(UserWarning, match="which is not a relative folder below the working folder: pass"):
        loaded.learn(32)


# --- what is the user's ----------------------------------------------------------------------------------------------


class Features(BaseFeaturesExtractor):
    def __init__(self, observation_space, f=None):
        super().__init__(observation_space, 4)
        self.layer = th.nn.Linear(5, 4)

    def forward(self, observations):
        return self.layer(observations)


class OwnPolicy(MlpPolicy):
    pass


class OwnControl(KLControl):
    pass


def own_schedule(progress, *, scale=1e-3):
    return scale * progress


class Decay:
    def __init__(self, start):
        self.start = start

    def __call__(self, progress):
        return self.start * progress


@pytest.mark.parametrize(
    ("options", "name", "own"),
    [
        ({"policy": OwnPolicy}, "policy_class", OwnPolicy),
        ({"policy_kwargs": {"features_extractor_class": Features}}, "policy_kwargs", Features),
        ({"kl_control": OwnControl()}, "kl_control", OwnControl),
    ],
    ids=["policy", "extractor", "control"],
)
def test_custom_objects_are_registered_or_passed(options, name, own, recwarn, monkeypatch):
    monkeypatch.setattr("ppo_plus.saving.format.names._classes_of_the_program", lambda title: [])
    model = make(**options).learn(32)
    file = saved(model)
    (warned,) = [str(each.message) for each in recwarn if "load would raise an error" in str(each.message)]
    assert f"{own.__module__}:{own.__name__}" in warned and f"ppo_plus.register({own.__name__})" in warned
    message = rf"{name}: it asks for '.*:{own.__name__}'.*ppo_plus.register\({own.__name__}\)"
    with pytest.raises(ValueError, match=message):
        PPO_Plus.load(file, device="cpu")
    handed = getattr(model, name)
    for how in ({"custom_objects": {name: handed}}, {name: handed}):
        assert getattr(PPO_Plus.load(file, device="cpu", **how), name) == handed
    register(own)
    loaded = PPO_Plus.load(file, device="cpu")
    assert getattr(loaded, name) == handed and loaded.trainer.kl_memory == model.trainer.kl_memory


def test_classes_of_the_program_are_found(recwarn):
    file = saved(make(policy=OwnPolicy, policy_kwargs={"features_extractor_class": Features}))
    loaded = PPO_Plus.load(file, device="cpu")
    assert type(loaded.policy) is OwnPolicy and type(loaded.policy.features_extractor) is Features
    assert not [each for each in recwarn if "load would raise" in str(each.message)]


@pytest.mark.parametrize("schedule", [own_schedule, partial(lambda scale, p: scale * p, 1e-3), Decay(1e-3)])
def test_a_schedule_without_a_name_in_files_is_saved_by_its_values(schedule, recwarn):
    model = make(learning_rate=schedule, clip_range=lambda progress: 0.1 + 0.1 * progress).learn(32)
    file = saved(model)
    (message,) = [str(each.message) for each in recwarn]
    assert message.startswith("clip_range and learning_rate: the file has the function's values at 1,025 points")
    recwarn.clear()
    loaded = PPO_Plus.load(file, env=model.get_env(), device="cpu")
    for progress in [*(i / 1024 for i in (0, 1, 500, 1024)), 0.3, 1 / 3]:
        expected = schedule(progress)
        assert loaded.lr_schedule(progress) == (expected if progress * 1024 % 1 == 0 else pytest.approx(expected))
    model.env.seed(1), loaded.env.seed(1)
    for each in (model, loaded):
        th.manual_seed(1), np.random.seed(1)
        each.learn(32, reset_num_timesteps=False)
    th.testing.assert_close(*(list(each.policy.parameters()) for each in (model, loaded)))
    saved(loaded)
    assert not recwarn


COUNTER = count(1)


def fails(progress):
    raise KeyError("the table")


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (lambda progress, step: 1e-3, "missing 1 required"),
        (fails, "KeyError: 'the tab"),
        (lambda progress: 1e-3 / next(COUNTER), "different numbers for the same progress"),
    ],
)
def test_a_function_of_more_than_the_progress_is_said_at_save(schedule, problem):
    model = make()
    model.learning_rate = schedule
    with pytest.warns(UserWarning, match=f"saved without learning_rate: .*cannot be saved by its values.*{problem}"):
        saved(model)


def test_only_learn_asks_for_a_schedule_that_is_missing():
    model = make().learn(32)
    model.learning_rate = fails
    with pytest.warns(UserWarning, match="learning_rate"):
        file = saved(model)
    loaded = PPO_Plus.load(file, env=model.get_env(), device="cpu")
    assert same_weights(loaded, model)
    loaded.predict(model.get_env().reset())
    with pytest.raises(ValueError, match="learning_rate: the file of the model does not contain its schedule"):
        loaded.learn(32)
    with pytest.raises(ValueError, match="learning_rate: the file"):
        loaded.to_sb3(io.BytesIO())
    # The remedies work, and so does saving it again.
    with pytest.warns(UserWarning, match="saved without learning_rate"):
        assert PPO_Plus.load(saved(loaded), device="cpu").num_timesteps == 32
    loaded.learning_rate = 1e-4
    assert loaded.learn(32).policy.optimizer.param_groups[0]["lr"] == 1e-4
    PPO_Plus.load(file, env=model.get_env(), device="cpu", learning_rate=1e-3).learn(32)


# --- what the observations were --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_normalized():
    """A file of a model that was trained in a ``VecNormalize``, and that."""
    model = make(env=VecNormalize(vec(ACTIONS["discrete"]))).learn(32)
    return saved(model), model.env


def played(how, file, env):
    """A way to use a model in an environment."""
    loaded = PPO_Plus.load(file, env=env if how == "load" else None, device="cpu")
    if how == "set_env":
        loaded.set_env(env)
    elif how == "evaluate":
        loaded.evaluate(1, env)
    return loaded


@pytest.mark.parametrize("how", ["load", "set_env", "evaluate"])
def test_an_environment_without_the_statistics_of_training_is_named(how, of_normalized, tmp_path, recwarn):
    file, trained = of_normalized
    for env, problem in (
        (vec(ACTIONS["discrete"]), "does not normalize them"),
        (VecNormalize(vec(ACTIONS["discrete"]), norm_obs=False), "does not normalize them"),
        (VecNormalize(vec(ACTIONS["discrete"])), "has no statistics yet"),
    ):
        with pytest.warns(UserWarning, match=f"were normalized .*{problem}.*ppo_plus.load_statistics"):
            played(how, file, env)
    with pytest.warns(UserWarning, match="were not normalized .* normalizes them.*leave VecNormalize out"):
        played(how, saved(make().learn(32)), trained)
    recwarn.clear()
    write_statistics(trained, tmp_path / "model_vecnormalize.zip")
    model = played(how, file, load_statistics(tmp_path / "model_vecnormalize.zip", vec(ACTIONS["discrete"])))
    played(how, saved(make()), trained)  # never trained
    absorbed = PPO_Plus.load(file, device="cpu").absorb_normalization(tmp_path / "model_vecnormalize.zip")
    played(how, saved(absorbed), vec(ACTIONS["discrete"]))
    played(how, saved(make().learn(32)), vec(ACTIONS["discrete"]))
    if how == "load":
        model.evaluate(1, vec(ACTIONS["discrete"]))  # with the statistics of its environment
    assert not recwarn


# --- arguments that are changed --------------------------------------------------------------------------------------


COMPUTED = {
    "log_std_init": (dict(policy_kwargs=dict(log_std_init=-2)), "log_std_init=-2"),
    "activation": (dict(policy_kwargs=dict(activation_fn=nn.ReLU)), "activation_fn=.*ReLU.*"),
    "layers": (dict(policy_kwargs=dict(net_arch=[32])), r"net_arch=\[32\]"),
    "gSDE": (dict(use_sde=True), "use_sde=True"),
    "values": (dict(normalize_values=dict(epsilon=100.0)), r"normalize_values=\{.*\}"),
    "clip": (dict(normalize_observations=dict(clip=1.0)), r"normalize_observations=\{.*\}"),
    "values, not": (dict(normalize_values=False), "normalize_values=False"),
}


@pytest.fixture(scope="module")
def normalizes():
    """A file of a model that normalizes."""
    return saved(make("MlpPolicy", vec(ACTIONS["box"]), normalize_values=True, normalize_observations=True))


@pytest.mark.parametrize(("changes", "message"), COMPUTED.values(), ids=COMPUTED)
def test_what_a_trained_model_computes_is_not_changed(normalizes, changes, message):
    with pytest.raises(ValueError, match=rf"{message} \(in the file .*\) is a part of the model that was trained"):
        PPO_Plus.load(normalizes, **changes)


def test_nor_is_what_sb3s_computes(tmp_path):
    PPO("MlpPolicy", vec(ACTIONS["box"])).save(tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"net_arch=\[32\] \(in the file None\) is a part of the model that was trained"
    ):
        PPO_Plus.from_sb3(tmp_path / "model", policy_kwargs=dict(net_arch=[32]))


def test_arguments_that_are_those_of_the_file_are_none_that_change():
    model = make(policy_kwargs=dict(activation_fn=nn.ReLU, net_arch=[8]))
    assert same_weights(PPO_Plus.load(saved(model), policy_kwargs=dict(net_arch=[8], activation_fn=nn.ReLU)), model)


@pytest.mark.parametrize("kwargs", [{"optimizer_class": th.optim.RMSprop}, {"optimizer_kwargs": {"weight_decay": 0.1}}])
def test_another_optimizer_starts_with_a_new_state(kwargs):
    model = make().learn(32)
    with pytest.warns(UserWarning, match="starts with a new state"):
        loaded = PPO_Plus.load(saved(model), env=model.get_env(), policy_kwargs=kwargs)
    assert same_weights(loaded, model) and not loaded.policy.optimizer.state_dict()["state"]
    assert loaded.learn(32).policy.optimizer.param_groups[0]["weight_decay"] == (
        0.1 if "optimizer_kwargs" in kwargs else 0
    )


@pytest.mark.parametrize("before", [WhiteNoise(), ColoredNoise(0.5, 16)])
def test_another_exploration_continues_with_noise_of_its_own(before):
    model = make(env=vec(ACTIONS["box"]), exploration=before).learn(32)
    file, now = saved(model), ColoredNoise(0.5, 8)
    loaded = PPO_Plus.load(file, env=model.get_env(), force_reset=False, exploration=now)
    assert loaded.learn(32, reset_num_timesteps=False).num_timesteps == 64


@pytest.mark.parametrize("by_sb3", [False, True])
def test_episodes_continue_in_as_many_environments(by_sb3, tmp_path):
    (PPO("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=16) if by_sb3 else make()).learn(32).save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=vec(ACTIONS["discrete"]), force_reset=False)
    assert loaded._last_obs.shape[0] == 2


def test_the_class_of_a_file_that_is_not_used_is_named():
    class Own(PPO_Plus):
        pass

    model = Own("MlpPolicy", "CartPole-v1", n_steps=16)
    with pytest.warns(UserWarning, match="Own, and is loaded as a PPO_Plus"):
        PPO_Plus.load(saved(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Own.load(saved(model))


def test_a_policy_that_could_not_be_built_again_is_not_saved(tmp_path):
    model = make()
    model.policy.register_buffer("lam", th.zeros(()))
    for save in (saved, lambda model: model.save_checkpoint(tmp_path)):
        with pytest.raises(ValueError, match="'lam' has been added.*make it in a policy class"):
            save(model)
    del model.policy.lam
    layer = model.policy.value_net
    model.policy.value_net = nn.Sequential(layer)
    with pytest.raises(
        ValueError, match=r"value_net.0.weight.*undo the change \(such as torch.compile\) before saving"
    ):
        saved(model)
    model.policy.value_net = layer
    assert same_weights(PPO_Plus.load(saved(model)), model)
    model.policy.optimizer = th.optim.Adam(model.policy.action_net.parameters())
    with pytest.raises(ValueError, match="'optimizer' has been added, removed, resized or replaced"):
        saved(model)


def test_an_attribute_that_shares_weights_with_an_argument_is_left_out():
    net = nn.Linear(5, 3)
    model = make(policy_kwargs={"actor": net})
    model.net = net
    with pytest.warns(UserWarning, match="saved without net: .*in another place, too"):
        file = saved(model)
    assert same_weights(PPO_Plus.load(file), model)


def test_an_error_of_a_class_is_not_told_as_damage(monkeypatch):
    file = saved(make(policy_kwargs={"features_extractor_class": Features}))

    def fails(self, observation_space):
        raise FileNotFoundError("weights.bin")

    monkeypatch.setattr(Features, "__init__", fails)
    with pytest.raises(FileNotFoundError, match="^weights.bin$"):
        PPO_Plus.load(file)
    with pytest.raises(gym.error.NameNotFound):
        PPO_Plus.load(file, env="NoSuch-v9")


class Noted(nn.Flatten):
    """Has state that is no tensor."""

    features_dim = 4

    def __init__(self, observation_space):
        super().__init__()
        self.note = "made"

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


def test_modules_may_have_other_state_than_tensors():
    model = make(policy_kwargs={"features_extractor_class": Noted})
    model.policy.features_extractor.note = "learned"
    assert PPO_Plus.load(saved(model)).policy.features_extractor.note == "learned"


# --- what cannot be described ----------------------------------------------------------------------------------------


def test_undescribable_arguments_have_to_be_passed(tmp_path):
    model = make(
        policy_kwargs={"features_extractor_class": Features, "features_extractor_kwargs": {"f": lambda: 1}},
    ).learn(32)
    with pytest.warns(UserWarning) as warned:
        model.save(tmp_path / "model")
    (message,) = [str(each.message) for each in warned if "saved without" in str(each.message)]
    assert "policy_kwargs['features_extractor_kwargs']['f'] (test_undescribable_arguments" in message
    with pytest.raises(ValueError, match=r"read without policy_kwargs \(.*is a lambda.*Pass policy_kwargs="):
        PPO_Plus.load(tmp_path / "model")
    given = {"policy_kwargs": model.policy_kwargs}
    make(**given).set_parameters(tmp_path / "model")
    for how in (given, {"custom_objects": given}):
        loaded = PPO_Plus.load(tmp_path / "model", device="cpu", **how)
        assert th.equal(loaded.policy.action_net.weight, model.policy.action_net.weight)


def test_undescribable_custom_attributes_are_left_out():
    model = make()
    model.mine = lambda: 1
    model.compute_loss = own_schedule  # would replace a method
    file = io.BytesIO()
    with pytest.warns(
        UserWarning, match="saved without mine and compute_loss.*; or pass it to load in custom_objects="
    ):
        model.save(file)
    assert not hasattr(PPO_Plus.load(file), "mine")
    loaded = PPO_Plus.load(file, custom_objects={"mine": 3, "num_timesteps": 5})
    assert (loaded.mine, loaded.num_timesteps) == (3, 5)


class Derived(PPO_Plus):
    """Has a variable that SB3's ``load`` restores, and a value that is computed once."""

    @cached_property
    def horizon(self):
        return 1 / (1 - self.gamma)

    def _setup_model(self):
        super()._setup_model()
        self.multiplier = nn.Parameter(th.zeros(1))

    def _get_torch_save_params(self):
        modules, variables = super()._get_torch_save_params()
        return modules, [*variables, "multiplier"]


def test_what_a_subclass_learns_is_loaded_and_what_it_computes_is_not_saved():
    model = Derived("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, gamma=0.5)
    model.multiplier.data += model.horizon
    loaded = Derived.load(saved(model))
    assert loaded.multiplier.item() == 2 and "horizon" not in vars(loaded)


class Scaled(MlpPolicy):
    def __init__(self, *args, scale=None, **kwargs):
        super().__init__(*args, **kwargs)


def test_arguments_may_be_arrays():
    file = saved(make(Scaled, policy_kwargs=dict(scale=np.ones(4))))
    for changes in ({}, {"policy_kwargs": dict(scale=np.ones(4))}):
        PPO_Plus.load(file, **changes)
    with pytest.raises(ValueError, match="is a part of the model that was trained"):
        PPO_Plus.load(file, policy_kwargs=dict(scale=np.zeros(4)))


def test_networks_that_compute_with_large_arrays_are_built_with_arguments_of_the_caller(monkeypatch):
    monkeypatch.setattr(names, "MOST_NUMBERS", 0)
    monkeypatch.setattr(names, "MOST_TIMES", 1)
    model = make()
    with pytest.raises(ValueError, match="if they are yours, pass policy_kwargs= to load or resume"):
        PPO_Plus.load(saved(model))
    assert same_weights(PPO_Plus.load(saved(model), policy_kwargs=model.policy_kwargs), model)


# --- what a stranger may write ---------------------------------------------------------------------------------------


def edited(file, change):
    """The file with another description."""
    with zipfile.ZipFile(file) as archive:
        head, data = json.loads(archive.read(DESCRIPTION)), archive.read(ARRAYS)
    change(head["value"])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(DESCRIPTION, json.dumps(head))
        archive.writestr(ARRAYS, data)
    return made


def partial_of(name, *args, **kwargs):
    return {"!partial": [{"!name": name}, [*args], kwargs]}


EXTRACTOR = "features_extractor_class"
BOMBS = {
    "wide networks": {"policy_kwargs": {"net_arch": [10**6, 10**6]}},
    "many layers": {"policy_kwargs": {"net_arch": [300] * 3000}},
    "many actions": {"action_space": {"!gymnasium.spaces:Discrete": {"n": 10**9, "start": 0}}},
    "many bits": {"action_space": {"!gymnasium.spaces:MultiBinary": {"n": 10**9}}},
    "many observations": {"observation_space": {"!gymnasium.spaces:Discrete": {"n": 10**9, "start": 0}}},
    "many steps": {"n_steps": 10**13},
    "a clip range that builds": {"clip_range": partial_of("torch.nn:Linear", 10**5, 10**6)},
    "a schedule that is a space": {
        "ent_coef": {
            "!stable_baselines3.common.utils:FloatSchedule": {
                "value_schedule": partial_of("gymnasium.spaces:Box", 0.0, high=1.0, shape=[2**28])
            }
        }
    },
    "long noise": {"exploration": {"!ppo_plus:ColoredNoise": {"beta": 0.5, "horizon": 400_000_000}}},
    "an activation with statistics": {
        "policy_kwargs": {"activation_fn": partial_of("torch.nn:BatchNorm1d", 600_000_000, affine=False)}
    },
    "an extractor with copies": {"policy_kwargs": {EXTRACTOR: partial_of("torch.nn:Transformer", 512, 8, 150)}},
    "an extractor that is a space": {
        "policy_kwargs": {EXTRACTOR: partial_of("gymnasium.spaces:Box", low=0.0, high=1.0, shape=[2**28])}
    },
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_cannot_ask_for_more_memory_than_its_weights_need(kind):
    file = edited(saved(make()), lambda value: value["arguments"].update(BOMBS[kind]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ValueError, TypeError)) as raised:
        PPO_Plus.load(file, make().get_env(), device="cpu").learn(32)  # a schedule that is refused is asked for
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert len(str(raised.value)) < 1500


NO_MODELS = {
    "policy": lambda value: value["arguments"].update(policy_class={"!name": "torch.nn:Linear"}),
    "space": lambda value: value["arguments"].update(action_space=3),
    "no state": lambda value: value.pop("state"),
    "no space": lambda value: value["arguments"].pop("action_space"),
    "arguments": lambda value: value.update(arguments=[1]),
    "an unknown argument": lambda value: value["arguments"].update(env=3),
    "an unknown state": lambda value: value["state"].update({"trainer.n_skipped": 3}),
    "a method": lambda value: value["attributes"].update(learn=3),
    "a property": lambda value: value["attributes"].update(compiled=3),
    "a path": lambda value: value["attributes"].update({"policy.x": 3}),
    "no weights": lambda value: value.update(parameters={}),
    "weights": lambda value: value["parameters"].update(policy={"a": 3}),
    "other weights": lambda value: value["parameters"]["policy"]["!OrderedDict"].pop(),
    "optimizer": lambda value: value["parameters"].update({"policy.optimizer": 3}),
    "decision": lambda value: value["state"].update(compile_decision=3),
    "another network": lambda value: value["parameters"].update({"policy.action_net": {}}),
    "missing": lambda value: value.update(missing=3),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_an_invalid_description_is_an_error(kind):
    with pytest.raises((ValueError, TypeError)) as raised:
        PPO_Plus.load(edited(saved(make()), NO_MODELS[kind]), device="cpu")
    assert isinstance(raised.value, Refused) == (kind not in ("policy", "another network")), raised.value


@pytest.mark.parametrize("part", ["parameters", "attributes", "state"])
def test_no_text_in_a_file_is_a_path_of_attributes(part):
    path = {"policy.action_net.weight.__class__": {"!name": "torch.nn:Tanh"}}
    with pytest.raises(ValueError):
        PPO_Plus.load(edited(saved(make()), lambda value: value[part].update(path)))
    assert type(make().policy.action_net.weight) is th.nn.Parameter


STATES = ["a number", None, 1.0, [1.0], {"a": 1}, th.zeros(1), th.zeros(3, 3), th.zeros(10**6)]


@pytest.mark.parametrize(("value", "source"), sample(product(STATES, ["ours", "sb3"]), 3), ids=str)
def test_no_optimizer_writes_outside_its_weights(value, source, tmp_path):
    cls = PPO_Plus if source == "ours" else PPO
    model, whole = (
        each("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, device="cpu") for each in (cls, PPO_Plus)
    )
    model.learn(16)
    for state in model.policy.optimizer.state.values():
        state["exp_avg_sq"] = value
        if value is None:
            del state["exp_avg_sq"]
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="optimizer|does not fit its weights"):
        PPO_Plus.load(tmp_path / "model")
    with pytest.raises(ValueError, match="optimizer|does not fit its weights"):
        whole.set_parameters(model.get_parameters())
    whole.learn(16)


def test_a_rollout_may_be_larger_than_the_networks(tmp_path):
    PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=2**20, device="cpu", compile=False).save(tmp_path / "model")
    assert PPO_Plus.load(tmp_path / "model", device="cpu").rollout_buffer.rewards.shape == (2**20, 1)


DERIVED = "settings ranks shared call compilation trainer collector policy env n_envs".split()


def test_a_file_does_not_set_what_a_model_derives():
    def change(value):
        value["attributes"].update(dict.fromkeys([*DERIVED, "mine"], 3))

    loaded, model = PPO_Plus.load(edited(saved(make()), change), device="cpu"), make()
    assert loaded.mine == 3
    assert all(type(vars(loaded)[name]) is type(vars(model)[name]) for name in DERIVED if name != "env")
    assert loaded.env is None and loaded.n_envs == 2


def test_a_wrong_argument_in_a_file_is_named():
    with pytest.raises(ValueError, match="gamma=2"):
        PPO_Plus.load(edited(saved(make()), lambda value: value["arguments"].update(gamma=2)))


class WithOwnOptimizer(MlpPolicy):
    def _build(self, lr_schedule):
        super()._build(lr_schedule)
        self.optimizer = th.optim.SGD(self.parameters(), lr=lr_schedule(1))


def test_a_policy_class_may_make_its_optimizer():
    register(WithOwnOptimizer)
    model = make(WithOwnOptimizer).learn(16)
    loaded = PPO_Plus.load(saved(PPO_Plus.load(saved(model))))
    assert type(loaded.policy.optimizer) is th.optim.SGD and same_weights(loaded, model)


@pytest.mark.parametrize("by", ["load", "from_sb3", "set_env"])
def test_keys_in_another_order_leave_every_weight_with_its_key(by, tmp_path):
    """Spaces with the same keys are equal in every order, which is that of features and of the parts of actions."""
    keys = ("b", "a")
    parts = {"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Box(-1, 1, (2,))}

    def space(keys):
        return gym.spaces.Dict([(key, parts[key]) for key in keys])

    def env(keys):
        return vec(gym.spaces.Box(-1, 1, (2,)) if by == "from_sb3" else space(keys), space(keys))

    cls = PPO if by == "from_sb3" else PPO_Plus
    model = cls("MultiInputPolicy", env(keys), n_steps=8, batch_size=8, device="cpu", seed=0)
    if by == "set_env":
        model.set_env(env(("a", "b")))
    model.save(tmp_path / "model.zip")
    loaded = getattr(PPO_Plus, "from_sb3" if by == "from_sb3" else "load")(
        tmp_path / "model.zip", env=None if by == "set_env" else env(("a", "b")), device="cpu"
    )
    obs = {key: part.sample() for key, part in parts.items()}
    before, after = (each.predict(obs, deterministic=True)[0] for each in (model, loaded))
    if by == "from_sb3":
        before, after = {"": before}, {"": after}
    for key in before:
        np.testing.assert_allclose(before[key], after[key], rtol=1e-6)
