"""Everything that users of SB3's PPO rely on works with PPO_Plus."""

import operator
import random
from functools import partial

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, OBSERVATIONS, POLICIES, VECTOR, RandomEnv, equal_actions, vec
from gymnasium import spaces
from models import make_model as make
from models import weights
from networks import TowerPolicy, TwoTowers
from stable_baselines3 import PPO
from stable_baselines3 import ppo as sb3_ppo
from stable_baselines3.common import callbacks
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize
from torch import nn
from training import LogDumps, Noting, Recording

from ppo_plus import ActorCriticPolicy, ColoredNoise, PPO_Plus, RolloutBuffer, register


def make_for(kind, observation="box", **kwargs):
    """A model for an action space and an observation space by name."""
    if kind == "box_squashed":
        kind, kwargs = "box", {"policy_kwargs": {"squash_output": True}} | kwargs
    policy = POLICIES.get(observation, "MlpPolicy")
    return make(env=vec(ACTIONS[kind], OBSERVATIONS[observation]), policy=policy, **kwargs)


def monitored(n_envs=2, **kwargs):
    return VecMonitor(vec(ACTIONS["discrete"], n_envs=n_envs, max_steps=3, **kwargs))


#: One action space of each kind.
FAMILIES = ["box", "box_squashed", "discrete_start", "multidiscrete_2d", "multibinary_2d", "mixed"]
every_kind = pytest.mark.parametrize("kind", FAMILIES)


# --- callbacks -------------------------------------------------------------------------------------------------------


class Hooks(callbacks.BaseCallback):
    """Writes down which hooks were called, and the names that each of them finds in its locals.

    :param n_stop: the call that stops training
    """

    def __init__(self, n_stop=None):
        super().__init__()
        self.n_stop = n_stop
        self.calls, self.names, self.step_locals = [], {}, None

    def note(self, hook):
        self.calls.append(hook)
        self.names.setdefault(hook, set(self.locals))

    def _on_training_start(self):
        self.note("training_start")

    def _on_rollout_start(self):
        self.note("rollout_start")

    def _on_step(self):
        self.note("step")
        assert self.training_env is self.model.get_env()
        self.logger.record("own/value", self.num_timesteps)
        self.step_locals = dict(self.locals)
        return self.n_calls != self.n_stop

    def _on_rollout_end(self):
        self.note("rollout_end")
        assert len(self.locals["infos"]) == self.training_env.num_envs
        last = self.model.policy.obs_to_tensor(self.model._last_obs)[0]
        th.testing.assert_close(self.locals["values"], self.model.policy.predict_values(last))

    def _on_training_end(self):
        self.note("training_end")


@pytest.mark.parametrize("kind", ["discrete", "box", "multidiscrete", "multibinary"])
def test_callbacks_find_what_they_find_with_sb3(kind):
    """Hooks are called in SB3's order, also if one of them stops, and find all of SB3's locals, in SB3's shapes."""
    expected, found = Hooks(n_stop=20), Hooks(n_stop=20)
    for cls, callback in ((PPO, expected), (PPO_Plus, found)):
        # Several rollouts, so that what is left in the locals by the one before counts, too; no time limit: what SB3
        # keeps in loop variables there is nobody's business.
        model = make(cls, env=vec(ACTIONS[kind], max_steps=None)).learn(1000, callback)
        assert model.num_timesteps == 40
    assert found.calls == expected.calls
    for hook, names in expected.names.items():
        assert names - {"idx", "done"} <= found.names[hook], hook
    for name in ("new_obs", "rewards", "dones", "values", "log_probs", "obs_tensor"):
        assert found.step_locals[name].shape == expected.step_locals[name].shape, name
        assert type(found.step_locals[name]) is type(expected.step_locals[name]), name
    for name in ("actions", "values", "log_probs"):
        assert found.step_locals[name].dtype == expected.step_locals[name].dtype, name
    assert len(found.step_locals["infos"]) == 2
    assert found.step_locals["self"].__class__ is PPO_Plus
    assert found.step_locals["n_steps"] == expected.step_locals["n_steps"]


@every_kind
def test_locals_have_the_internal_and_the_environments_actions(kind):
    hooks = Hooks()
    model = make_for(kind).learn(16, hooks)
    actions, clipped = hooks.step_locals["actions"], hooks.step_locals["clipped_actions"]
    assert actions.shape == (2, model.policy.action_dist.action_dim)
    assert all(action in model.action_space for action in clipped)
    assert equal_actions(model.policy.action_dist.to_env(actions), clipped)


def test_rewards_in_locals_are_those_of_the_environment():
    noting = Noting("rewards")
    make(env=vec(ACTIONS["discrete"], env_class=OneEach, max_steps=2, p_end=0.0)).learn(16, noting)
    # The bootstrap at time limits is added to the buffer's copy.
    assert np.array_equal([seen["rewards"] for seen in noting.seen], np.ones((8, 2)))


class OneEach(RandomEnv):
    def reward(self, action):
        return 1.0


def test_callbacks_of_sb3_save_evaluate_and_log_together(tmp_path):
    checkpoints = callbacks.CheckpointCallback(8, str(tmp_path), name_prefix="at", save_vecnormalize=True)
    folders = {"best_model_save_path": str(tmp_path / "best"), "log_path": str(tmp_path)}
    env = VecNormalize(monitored(1), training=False)
    evaluation = callbacks.EvalCallback(env, eval_freq=8, n_eval_episodes=2, verbose=0, **folders)
    log, inner = LogDumps(), Hooks()
    every = callbacks.EveryNTimesteps(n_steps=8, callback=inner)
    model = make(env=VecNormalize(monitored()))
    model.learn(32, callbacks.CallbackList([log, checkpoints, evaluation, every]))
    assert sorted(path.name for path in tmp_path.glob("*.zip")) == ["at_16_steps.zip", "at_32_steps.zip"]
    assert len(list(tmp_path.glob("*vecnormalize*.pkl"))) == 2
    assert PPO_Plus.load(tmp_path / "at_16_steps", device="cpu").num_timesteps == 16
    evaluations = [dump["eval/mean_reward"] for dump in log.dumps if "eval/mean_reward" in dump]
    assert evaluations[-1] == evaluation.last_mean_reward
    assert PPO_Plus.load(tmp_path / "best" / "best_model", device="cpu").num_timesteps in (16, 32)
    assert np.load(tmp_path / "evaluations.npz")["results"].shape == (2, 2)
    np.testing.assert_array_equal(model.env.obs_rms.mean, evaluation.eval_env.obs_rms.mean)
    assert inner.calls.count("step") == 4


def evaluating(env=None, **kwargs):
    return callbacks.EvalCallback(env or monitored(1), eval_freq=4, verbose=0, **kwargs)


STOPPING = {
    # Two environments, two episodes each, three steps each.
    "episodes": (lambda: callbacks.StopTrainingOnMaxEpisodes(max_episodes=2), range(12, 13)),
    "threshold": (
        lambda: evaluating(callback_on_new_best=callbacks.StopTrainingOnRewardThreshold(reward_threshold=-1e9)),
        range(8, 9),
    ),
    "no improvement": (
        lambda: evaluating(
            monitored(1, env_class=OneEach, p_end=0.0),
            callback_after_eval=callbacks.StopTrainingOnNoModelImprovement(1, min_evals=1),
        ),
        range(9, 100),
    ),
    "a function": (lambda: lambda *_: False, range(2, 3)),
}


@pytest.mark.parametrize("case", STOPPING)
def test_callbacks_stop_training(case):
    callback, expected = STOPPING[case]
    assert make(env=monitored(p_end=0.0)).learn(1000, callback()).num_timesteps in expected


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_progress_bar_reaches_the_end_and_verbose_prints_a_table(capsys):
    make(verbose=1).learn(32, progress_bar=True)
    output = capsys.readouterr()
    assert "32/32" in output.out + output.err and "explained_variance" in output.out


# --- logging ---------------------------------------------------------------------------------------------------------


LOGGED = {
    "discrete": {"env": "discrete"},
    "box": {"env": "box"},
    "gsde": {"env": "box", "use_sde": True},
    "clipped_value": {"env": "discrete", "clip_range_vf": 0.2},
    "target_kl": {"env": "discrete", "target_kl": 10.0},
}


@pytest.mark.parametrize("case", LOGGED)
def test_all_of_sb3s_keys_are_logged_and_more(case):
    keys = {}
    for cls in (PPO, PPO_Plus):
        options = dict(LOGGED[case])
        env = VecMonitor(vec(ACTIONS[options.pop("env")], max_steps=3))
        callback = LogDumps()
        make(cls, env=env, **options).learn(48, callback)
        keys[cls] = set(callback.dumps[-1])
    assert keys[PPO] <= keys[PPO_Plus]
    more = {"train/kl", "train/grad_norm"}
    if LOGGED[case]["env"] == "box":
        more.add("train/action_std")
    if case == "target_kl":
        more |= {"train/kl_early_stop", "train/kl_coef", "train/lr_scale"}
    assert keys[PPO_Plus] - keys[PPO] == more


def test_logged_numbers_are_means_over_all_minibatches():
    # The last minibatch is smaller; it counts as one, as in SB3.
    model = make(Recording, env=vec(ACTIONS["box"]), batch_size=6, n_epochs=3, learning_rate=1e-2).learn(16)
    assert len(model.record) == 9
    assert model.logger.name_to_value["train/n_updates"] == model._n_updates == 3
    names = {"loss", "policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "kl", "clip_fraction"}
    for name in names | {"action_std"}:
        values = [diagnostics[name].item() for _, _, diagnostics in model.record]
        # The sum of nine float32 numbers.
        assert model.logger.name_to_value[f"train/{name}"] == pytest.approx(np.mean(values), rel=1e-5, abs=1e-7), name
        if name != "entropy_loss":
            assert values[-1] != pytest.approx(np.mean(values), rel=1e-4), "the case cannot tell mean from last"


def test_grad_norm_is_the_norm_before_clipping():
    model = make(max_grad_norm=1e-3, n_epochs=1, batch_size=16).learn(16)
    clipped = nn.utils.parameters_to_vector([p.grad for p in model.policy.parameters()]).norm().item()
    assert clipped == pytest.approx(1e-3, rel=1e-2)
    assert model.logger.name_to_value["train/grad_norm"] > 1e-2


def test_action_std_is_of_the_actions_and_std_of_the_weights():
    model = make(env=vec(ACTIONS["box"]), use_sde=True, learning_rate=0.0).learn(16)
    logs = model.logger.name_to_value
    obs = th.from_numpy(model.rollout_buffer.observations).flatten(0, 1)
    std = model.policy.get_distribution(obs).distribution.stddev
    assert logs["train/action_std"] == pytest.approx(std.mean().item(), rel=1e-5)
    assert logs["train/std"] == pytest.approx(1.0)
    assert logs["train/action_std"] > 1.5


def test_tensorboard_runs_are_numbered_under_the_algorithms_name(tmp_path):
    model = make(tensorboard_log=str(tmp_path))
    model.learn(16)
    model.learn(16)
    model.learn(16, tb_log_name="other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PPO_Plus_1", "PPO_Plus_2", "other_1"]


@pytest.mark.parametrize(("log_interval", "n_dumps"), [(1, 4), (2, 2), (None, 0)])
def test_log_interval_counts_rollouts_of_which_statistics_are_logged(log_interval, n_dumps):
    model = make(env=DummyVecEnv([lambda: Monitor(RandomEnv(ACTIONS["discrete"], max_steps=4, p_end=0.0))]))
    callback = LogDumps()
    model.learn(32, [callback], log_interval=log_interval)
    assert len(callback.dumps) == n_dumps
    assert all(dump["rollout/ep_len_mean"] == 4.0 for dump in callback.dumps)
    assert len(model.ep_info_buffer) == 8


# --- learning --------------------------------------------------------------------------------------------------------


def test_learn_completes_rollouts_counts_from_zero_unless_asked_otherwise_and_returns_the_model():
    model = make()
    assert model.learn(17) is model
    assert model.num_timesteps == 32
    assert model.learn(16, reset_num_timesteps=False).num_timesteps == 48
    # As in one long run.
    assert th.equal(weights(model), weights(make().learn(48)))
    assert model.learn(16).num_timesteps == 16


def test_continuing_does_not_reset_the_environment():
    env = vec(ACTIONS["discrete"], max_steps=None, p_end=0.0)
    make(env=env).learn(16).learn(16, reset_num_timesteps=False)
    assert [each.n_resets for each in env.envs] == [1, 1]


@pytest.mark.parametrize(
    "exploration", [{}, {"use_sde": True}, {"exploration": ColoredNoise(0.5, horizon=16)}], ids=str
)
def test_the_seed_decides_everything(exploration):
    first, second, other = (weights(make(seed=seed, **exploration).learn(32)) for seed in (1, 1, 2))
    assert th.equal(first, second)
    assert not th.equal(first, other)


GREY = spaces.Box(0, 255, (36, 36, 1), np.uint8)


@pytest.mark.parametrize(
    ("policy", "observation"),
    [("MlpPolicy", VECTOR), ("CnnPolicy", GREY), ("MultiInputPolicy", spaces.Dict(vector=VECTOR, image=GREY))],
)
def test_stacked_frames_are_learned_from(policy, observation):
    env = VecFrameStack(vec(ACTIONS["discrete"], observation), 3)
    model = make(env=env, policy=policy, n_epochs=1)
    before = weights(model)
    assert not th.equal(weights(model.learn(16)), before)


# --- predict ---------------------------------------------------------------------------------------------------------


@every_kind
def test_predicted_actions_are_in_the_action_space(kind):
    model = make_for(kind, use_sde=kind.startswith("multi"))
    space = model.action_space
    obs = np.stack([VECTOR.sample() for _ in range(20)])
    for deterministic in (False, True):
        actions, state = model.predict(obs, deterministic=deterministic)
        action, _ = model.predict(obs[0], deterministic=deterministic)
        assert len(actions) == 20 and state is None
        assert all(each in space for each in (*actions, action))
        if space.shape is not None:
            assert actions.shape == (20, *space.shape) and action.shape == space.shape
            assert action.dtype == actions.dtype == space.dtype
    # A batch of one and a batch of twenty may be multiplied in another order.
    one, other = (spaces.flatten(space, each) for each in (action, actions[0]))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert model.predict(obs[0], state=(state := (np.zeros(3),)))[1] is state


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_one_observation_and_a_batch_of_it_are_distinguished(observation):
    model = make_for("discrete", observation)
    space = OBSERVATIONS[observation]
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    if isinstance(space, spaces.Dict):
        batch = {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    else:
        batch = np.stack(samples)
    actions, _ = model.predict(batch, deterministic=True)
    assert actions.shape == (3,)
    singles = [model.predict(sample, deterministic=True)[0] for sample in samples]
    assert all(single.shape == () for single in singles)
    assert [int(single) for single in singles] == actions.tolist()


@every_kind
def test_the_methods_of_sb3s_policies_agree_with_each_other(kind):
    policy = make_for(kind).policy
    obs = th.stack([th.from_numpy(VECTOR.sample()) for _ in range(6)])
    with th.no_grad():
        actions, values, log_probs = policy(obs)
        values_again, log_probs_again, entropies = policy.evaluate_actions(obs, actions)
        distribution = policy.get_distribution(obs)
        shape = policy.action_space.shape
        assert actions.shape == ((6, policy.action_dist.action_dim) if shape is None else (6, *shape))
        assert values.shape == (6, 1)
        assert log_probs.shape == entropies.shape == (6,)
        assert th.equal(values, values_again)
        assert th.equal(values, policy.predict_values(obs))
        assert th.equal(log_probs, log_probs_again)
        assert th.equal(log_probs, distribution.log_prob(actions))
        assert th.equal(entropies, distribution.entropy())
        mode = policy(obs, deterministic=True)[0]
        assert th.equal(mode.reshape(6, -1), distribution.mode().reshape(6, -1))


# --- saving and parameters -------------------------------------------------------------------------------------------


def test_a_loaded_model_continues_as_the_saved_one_would(tmp_path):
    options = {"env": vec(ACTIONS["box"]), "use_sde": True, "learning_rate": "lin_1e-2", "target_kl": 0.5}
    model = make(kl_control="adaptive_lr", **options).learn(16)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=vec(ACTIONS["box"]), device="cpu")
    model.set_env(vec(ACTIONS["box"]))
    results = []
    for each in (model, loaded):
        each.set_random_seed(5)
        results.append(weights(each.learn(32, reset_num_timesteps=False)))
    assert th.equal(*results)


def test_load_replaces_given_arguments_and_custom_objects(tmp_path):
    with pytest.warns(UserWarning, match="learning_rate: the file has the function.s values"):
        make(learning_rate=lambda progress: 1e-3).save(tmp_path / "model")
    custom_objects = {"learning_rate": 0.5, "lr_schedule": lambda progress: 0.5}
    assert load(tmp_path / "model", custom_objects=custom_objects).lr_schedule(1.0) == 0.5
    loaded = load(tmp_path / "model", env=vec(ACTIONS["discrete"], n_envs=3), gamma=0.5, learning_rate="lin_1e-2")
    assert (loaded.gamma, loaded.lr_schedule(0.5), loaded.n_envs) == (0.5, 5e-3, 3)
    assert loaded.learn(24).rollout_buffer.rewards.shape == (8, 3)


def test_load_and_resume_take_only_known_names(tmp_path):
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32)
    model.save(tmp_path / "model")
    model.save_checkpoint(tmp_path)
    loads = [partial(PPO_Plus.load, tmp_path / "model"), partial(PPO_Plus.resume, tmp_path, env="CartPole-v1")]
    for load in loads:
        with pytest.raises(TypeError, match=r"^gama=0.9 is not an argument of PPO_Plus: did you mean gamma\?$"):
            load(gama=0.9)
        changed = load(gamma=0.9, stats_window_size=7, num_timesteps=64)
        assert (changed.gamma, changed._stats_window_size, changed.num_timesteps) == (0.9, 7, 64)


@pytest.mark.parametrize("by", ["get_parameters", "save", "to_sb3"])
def test_parameters_of_a_model_or_file_can_be_set(by, tmp_path):
    source, target = make(seed=1).learn(16), make(seed=2)
    given = tmp_path / "model"
    if by == "get_parameters":
        given = source.get_parameters()
        assert set(given) == {"policy", "policy.optimizer"}
    else:
        getattr(source, by)(given)
    drawn = []
    for _ in range(2):
        target.set_parameters(given)
        drawn.append((np.random.rand(), th.rand(()).item(), random.random()))
    assert th.equal(weights(source), weights(target))
    assert {state["step"].item() for state in target.policy.optimizer.state.values()} == {4.0}
    assert all(map(operator.ne, *drawn))  # a callback may do this in every rollout


@pytest.mark.parametrize("vectorized", [True, False])
def test_set_env_begins_new_episodes(vectorized):
    model = make(env=vec(ACTIONS["discrete"], n_envs=1)).learn(8)
    env = RandomEnv(ACTIONS["discrete"], max_steps=None)
    model.set_env(DummyVecEnv([lambda: env]) if vectorized else env)
    model.learn(8, reset_num_timesteps=False)
    assert (env.n_steps, model.num_timesteps) == (8, 16)
    assert model.rollout_buffer.episode_starts[0, 0] == 1


def test_set_env_may_bring_normalization_with_it():
    space = OBSERVATIONS["box_int"]
    model = make(env=vec(ACTIONS["discrete"], space)).learn(16)
    model.set_env(VecNormalize(vec(ACTIONS["discrete"], space)))
    model.learn(16)
    stored = model.rollout_buffer.observations
    assert np.any(stored != np.rint(stored))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a model."""
    make().save(path := tmp_path_factory.mktemp("saved") / "model")
    return path


def load(path, **kwargs):
    return PPO_Plus.load(path, device="cpu", **kwargs)


OTHER = vec(ACTIONS["box"])
RAISES = [
    (lambda path: load(path, env=OTHER), "spaces do not match"),
    (lambda path: load(path, gamma=2), "gamma=2"),
    (lambda path: load(path).set_parameters({"policy": make().get_parameters()["policy"]}), "do not match"),
    (lambda path: make().set_env(OTHER), "spaces do not match"),
    (lambda path: load(path).predict(np.zeros(4, np.float32)), r"shape \(4,\)"),
    (lambda path: load(path).predict(np.zeros((2, 3, 5), np.float32)), r"shape \(2, 3, 5\)"),
    (lambda path: load(path).predict((np.zeros(5, np.float32), {})), "info"),
    (lambda path: make_for("discrete", "dict").predict({"image": IMAGE.sample()}), "vector"),
]


@pytest.mark.parametrize(("call", "text"), RAISES)
def test_what_does_not_fit_raises_an_error(call, text, saved):
    with pytest.raises(ValueError, match=text):
        call(saved)


# --- classes of one's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "observation"),
    [
        (sb3_ppo.MlpPolicy, VECTOR),
        (sb3_ppo.CnnPolicy, IMAGE),
        (sb3_ppo.MultiInputPolicy, spaces.Dict(vector=VECTOR, image=IMAGE)),
    ],
)
def test_sb3s_policy_classes_are_accepted(policy, observation, tmp_path):
    model = make(env=vec(ACTIONS["multibinary_2d"], observation), policy=policy, use_sde=True, n_epochs=1).learn(16)
    assert isinstance(model.policy, ActorCriticPolicy)
    model.save(tmp_path / "model")
    assert th.equal(weights(load(tmp_path / "model")), weights(model))


@every_kind
def test_a_policy_class_written_for_sb3_learns(kind, tmp_path):
    action_space = ACTIONS["box" if kind == "box_squashed" else kind]
    model = make(env=vec(action_space), policy=TowerPolicy, use_sde=True)
    before = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
    model.learn(16)
    assert isinstance(model.policy, TowerPolicy)
    assert isinstance(model.policy.mlp_extractor, TwoTowers)
    assert not any(th.equal(weight, before[name]) for name, weight in model.policy.state_dict().items())
    register(TowerPolicy)
    model.save(tmp_path / "model")
    assert th.equal(weights(PPO_Plus.load(tmp_path / "model", device="cpu")), weights(model))


def test_a_policy_class_written_for_sb3_makes_sb3s_first_rollout():
    results = []
    for cls in (PPO, PPO_Plus):
        hooks = Hooks()
        make(cls, policy=TowerPolicy).learn(16, hooks)
        results.append(hooks.step_locals)
    np.testing.assert_array_equal(results[0]["clipped_actions"], results[1]["clipped_actions"])
    assert th.equal(results[0]["log_probs"], results[1]["log_probs"])


@pytest.mark.parametrize("observation", ["box", "dict"])
def test_a_custom_rollout_buffer_class_is_used(observation):
    class Negated(RolloutBuffer):
        """Its advantages are negated, unless it is set otherwise."""

        def __init__(self, *args, sign=-1, **kwargs):
            super().__init__(*args, **kwargs)
            self.sign = sign

        def compute_returns_and_advantage(self, last_values, dones):
            super().compute_returns_and_advantage(last_values, dones)
            self.advantages *= self.sign

    own = {"rollout_buffer_class": Negated}
    found = [
        make_for("discrete", observation, n_epochs=1, **given).learn(16).rollout_buffer.advantages.copy()
        for given in ({}, own, {**own, "rollout_buffer_kwargs": {"sign": 2}})
    ]
    np.testing.assert_array_equal(found[0], -found[1])
    np.testing.assert_array_equal(2 * found[0], found[2])


def test_a_device_can_be_an_object(saved):
    for each in (make(device=th.device("cpu")), PPO_Plus.load(saved, device=th.device("cpu"))):
        assert each.device == each.policy.device == th.device("cpu")
