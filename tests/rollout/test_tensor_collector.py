"""What training does with environments in tensors is what it does with the same ones in NumPy."""

from itertools import product

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, structured
from gymnasium import spaces
from models import spoil, weights
from parametrization import all_pairs, in_turn, sample
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize
from tensor_envs import TensorTwin, Twin, twins
from training import At, Noting, logged

from ppo_plus import ColoredNoise, PPO_Plus, TensorEnv, Transition, as_vec_env
from ppo_plus.rollout import tensor_collector
from ppo_plus.rollout.tensor_collector import Lazy, LazyLocals
from ppo_plus.trees import tree_leaves

EXPLORATIONS = {"white": {}, "gsde": {"use_sde": True}, "colored": {"exploration": ColoredNoise(0.5, horizon=16)}}
STORED = ("actions", "rewards", "episode_starts", "values", "log_probs", "params", "advantages", "returns")


def make(env, memory="", exploration="white", is_dict=False, **kwargs):
    policy = f"{'MultiInput' if is_dict else 'Mlp'}{memory}Policy"
    policy_kwargs = {"ortho_init": False}
    if memory:
        policy_kwargs |= {"lstm_hidden_size": 8}
        kwargs = {"sequence_length": 4} | kwargs
    kwargs = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "policy_kwargs": policy_kwargs} | kwargs
    return PPO_Plus(policy, env, device="cpu", **EXPLORATIONS[exploration], **kwargs)


def train_twins(action_space, n_updates=2, n=3, masks=None, is_dict=False, limit=5, wrap=lambda env: env, **kwargs):
    models = []
    for env in twins(action_space, n, masks=masks, is_dict=is_dict, limit=limit):
        key = {"action_mask_key": "mask"} if masks == "key" else {}
        model = make(wrap(as_vec_env(env)), is_dict=is_dict or masks == "key", **key, **kwargs)
        models.append(model.learn(16 * n * n_updates))
    return models


def assert_same(ours, theirs, exact=True):
    same = np.testing.assert_array_equal if exact else (lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5))
    for name in STORED:
        same(getattr(theirs.rollout_buffer, name), getattr(ours.rollout_buffer, name))
    observations = ours.rollout_buffer.observations
    parts = observations if isinstance(observations, dict) else {None: observations}
    for key, part in parts.items():
        other = theirs.rollout_buffer.observations
        same(other if key is None else other[key], part)
    for name, weight in ours.policy.state_dict().items():
        same(theirs.policy.state_dict()[name].numpy(), weight.numpy())


@pytest.mark.parametrize(("kind", "policy"), in_turn(ACTIONS, list(product(EXPLORATIONS, ["", "Lstm", "Gru"]))))
def test_training_is_that_of_the_same_task_in_numpy(kind, policy):
    exploration, memory = policy
    numpy, tensors = train_twins(ACTIONS[kind], exploration=exploration, memory=memory)
    assert_same(numpy, tensors)
    infos, others = numpy.ep_info_buffer, tensors.ep_info_buffer
    assert [each["l"] for each in infos] == [each["l"] for each in others]
    assert [each["r"] for each in infos] == pytest.approx([each["r"] for each in others], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "memory", "masks"), all_pairs(["discrete_start", "mixed"], ["", "Lstm"], ["method", "key"])
)
def test_masked_training_is_that_of_the_same_task_in_numpy(kind, memory, masks):
    numpy, tensors = train_twins(
        ACTIONS[kind], masks=masks, memory=memory, exploration="gsde", sde_sample_freq="episode"
    )
    assert_same(numpy, tensors)


@pytest.mark.parametrize("memory", ["", "Lstm"])
def test_advantages_are_reestimated_as_in_numpy(memory):
    given = {"recompute_advantages": True, "n_epochs": 4}
    numpy, tensors = train_twins(ACTIONS["box"], memory=memory, **given)
    assert_same(numpy, tensors)
    plain, _ = train_twins(ACTIONS["box"], memory=memory, **given | {"recompute_advantages": False})
    assert not th.allclose(weights(numpy), weights(plain))


@pytest.mark.parametrize("freq", [-1, 3, "episode"])
def test_noise_is_resampled_when_it_is_in_numpy(freq):
    assert_same(*train_twins(ACTIONS["box"], exploration="gsde", sde_sample_freq=freq))


@pytest.mark.parametrize("squash", [False, True])
def test_dict_observations_are_those_of_numpy(squash):
    policy_kwargs = {"squash_output": squash}
    numpy, tensors = train_twins(ACTIONS["box_float64"], is_dict=True, policy_kwargs=policy_kwargs)
    # NumPy's tanh is another than torch's, by a bit.
    assert_same(numpy, tensors, exact=not squash)


@pytest.mark.parametrize(
    ("is_dict", "kwargs"),
    sample(product([False, True], [{}, {"norm_reward": False}, {"norm_obs": False}, {"training": False}]), 3),
    ids=str,
)
def test_normalization_is_sb3s(is_dict, kwargs):
    if is_dict:
        kwargs = kwargs | {"norm_obs_keys": ["vector"]}
    with pytest.warns(UserWarning, match="in place of VecNormalize, pass normalize_observations=True"):
        numpy, tensors = train_twins(
            ACTIONS["discrete"], is_dict=is_dict, wrap=lambda env: VecNormalize(env, gamma=0.9, **kwargs)
        )
    assert type(tensors.collector).__name__ == "Collector"
    assert_same(numpy, tensors, exact=False)
    assert tensors.env.ret_rms.count == numpy.env.ret_rms.count
    np.testing.assert_allclose(tensors.env.ret_rms.var, numpy.env.ret_rms.var, rtol=1e-5)
    np.testing.assert_allclose(tensors.env.returns, numpy.env.returns, rtol=1e-5)
    if kwargs.get("norm_obs", True):
        each = [model.env.obs_rms["vector"] if is_dict else model.env.obs_rms for model in (numpy, tensors)]
        assert each[0].count == each[1].count
        np.testing.assert_allclose(each[0].mean, each[1].mean, rtol=1e-5)
        np.testing.assert_allclose(each[0].var, each[1].var, rtol=1e-4)


def test_truncated_episodes_are_bootstrapped():
    # Without terminations in time: the limit is all there is.
    numpy, tensors = train_twins(ACTIONS["discrete"], limit=3, n_updates=1, gae_lambda=0.0, gamma=0.5)
    assert_same(numpy, tensors)
    raw = make(as_vec_env(TensorTwin(3, ACTIONS["discrete"], limit=3)), gamma=0.0, gae_lambda=0.0).learn(48)
    assert not np.array_equal(raw.rollout_buffer.rewards, tensors.rollout_buffer.rewards)


def test_without_a_final_observation_the_one_before_is_used():
    class Sometimes(TensorTwin):
        """Returns final observations in every other step."""

        n_steps = 0

        def step(self, actions):
            self.n_steps += 1
            step = super().step(actions)
            return step if self.n_steps % 2 else step._replace(final_obs=None)

    model, noting = make(Sometimes(3, ACTIONS["discrete"], limit=3), gamma=0.5), Noting("rewards", "infos")
    with pytest.warns(UserWarning, match="does not return final observations.*ask for them"):
        model.learn(48, noting)
    buffer = model.rollout_buffer
    cut = np.array([[info.get("TimeLimit.truncated", False) for info in step["infos"]] for step in noting.seen])
    gain = buffer.rewards - np.array([step["rewards"] for step in noting.seen])
    lacks = cut & (np.arange(16) % 2 == 1)[:, None]
    assert lacks.any() and (cut & ~lacks).any() and (gain[~cut] == 0).all()
    np.testing.assert_allclose(gain[lacks], 0.5 * buffer.values[lacks], rtol=1e-4)
    assert not np.isclose(gain[cut & ~lacks], 0.5 * buffer.values[cut & ~lacks], rtol=1e-2).all()


def test_terminated_and_truncated_episodes_are_not_bootstrapped():
    class Both(TensorTwin):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(terminated=step.truncated, truncated=step.truncated)

    model = make(Both(3, ACTIONS["discrete"], limit=3), gamma=0.5).learn(48)
    other = make(Both(3, ACTIONS["discrete"], limit=3), gamma=0.0).learn(48)
    np.testing.assert_array_equal(model.rollout_buffer.rewards, other.rollout_buffer.rewards)


SEEN = ("new_obs", "rewards", "dones", "infos", "actions", "clipped_actions", "values", "log_probs", "n_steps")


@pytest.mark.parametrize("kind", ["discrete_start", "box"])
def test_callbacks_see_what_they_see_in_numpy(kind):
    seen = []
    for env in twins(ACTIONS[kind]):
        callback = Noting(*SEEN)
        make(env).learn(48, callback)
        seen.append(callback.seen)
    assert len(seen[0]) == len(seen[1]) == 16
    for numpy, tensors in zip(*seen, strict=True):
        for name in numpy:
            if name == "infos":
                continue
            np.testing.assert_array_equal(np.asarray(numpy[name]), np.asarray(tensors[name]), err_msg=name)
            assert type(numpy[name]) is type(tensors[name])
        for info, other in zip(numpy["infos"], tensors["infos"], strict=True):
            np.testing.assert_array_equal(info.get("terminal_observation"), other.get("terminal_observation"))
            assert info.get("TimeLimit.truncated", False) == other.get("TimeLimit.truncated", False)
            assert ("episode" in other) == ("terminal_observation" in other)


class Shaping(BaseCallback):
    """Adds to the rewards at each step, in place."""

    def _on_step(self):
        self.locals["rewards"] += self.num_timesteps
        return True


def test_rewards_that_a_callback_changes_are_learned_from():
    rollouts = []
    for env in twins(ACTIONS["discrete"]):
        model = make(env).learn(48, Shaping())
        rollouts.append(np.asarray(model.rollout_buffer.rewards))
    assert rollouts[0].min() > 2
    np.testing.assert_allclose(*rollouts, rtol=1e-5)


class Reads:
    """Counts how often the host asks a tensor for its value.

    On the CPU that is no wait, but on another device each of these is.
    """

    # Not "numpy", which is refused of tensors on another device.
    NAMES = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__array__")

    def __init__(self, monkeypatch):
        self.where = []
        read = tensor_collector.read
        # It reads all in one copy, and nothing that is on the CPU already.
        monkeypatch.setattr(tensor_collector, "read", lambda tensors: self.where.append("read") or read(tensors))
        for name in self.NAMES:
            monkeypatch.setattr(th.Tensor, name, self._counting(name, getattr(th.Tensor, name)))

    def _counting(self, name, method):
        def counted(tensor, *args, **kwargs):
            self.where.append(name)
            return method(tensor, *args, **kwargs)

        return counted


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("masks", [None, "method", "key"])
def test_the_host_asks_the_device_once_a_rollout(masks, normalizes, monkeypatch):
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"], masks, limit=4))
    arguments = {"normalize_observations": normalizes, "normalize_values": normalizes}
    if masks == "key":
        arguments["action_mask_key"] = "mask"
    model = make(env, is_dict=masks == "key", use_sde=False, **arguments)
    _, callback = model._setup_learn(1000)
    # The first one makes the storage.
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 16)
    counts = []
    for _ in range(2):
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            model.collect_rollouts(model.env, callback, model.rollout_buffer, 16)
            counts.append(reads.where)
    assert counts == [["read"]] * 2


def evaluate(model):
    model.evaluate(2)


@pytest.mark.parametrize("looks", [False, True])
def test_an_interrupted_rollout_matches_numpy(looks):
    models, seen = [], []
    for env in twins(ACTIONS["discrete"], limit=7):
        looking, interrupting = Noting(*SEEN), At(evaluate, [5, 7])
        callbacks = [interrupting, looking] if looks else interrupting
        models.append(make(as_vec_env(env)).learn(96, callbacks))
        seen.append(looking.seen)
    # Evaluation steps each environment as often, in both.
    assert_same(*models, exact=False)
    assert models[1].rollout_buffer.episode_starts.sum() == models[0].rollout_buffer.episode_starts.sum()
    for numpy, tensors in zip(*seen, strict=True):
        for name in ("new_obs", "rewards", "dones"):
            np.testing.assert_allclose(numpy[name], tensors[name], 1e-4, 1e-5, err_msg=name)
        finals = [[info.get("terminal_observation") for info in step["infos"]] for step in (numpy, tensors)]
        for expected, final_obs in zip(*finals, strict=True):
            assert (expected is None) == (final_obs is None)
            expected is None or np.testing.assert_allclose(final_obs, expected, 1e-4, 1e-5)


class Faulty(TensorTwin):
    """Returns what is not finite at some step of environment 1."""

    def __init__(self, what, at, **kwargs):
        super().__init__(3, ACTIONS["discrete"], **kwargs)
        self.what, self.at, self.n_steps = what, at, 0

    def step(self, actions):
        step = super().step(actions)
        self.n_steps += 1
        if self.n_steps == self.at:
            bad = {"observation": step.obs, "reward": step.rewards, "final": step.final_obs}[self.what]
            bad[1] = float("inf")
        return step


@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("at", [3, 16])
def test_numbers_that_are_not_finite_stop_training(what, at):
    model = make(as_vec_env(Faulty(what, at)))
    before = weights(model)
    with pytest.raises(FloatingPointError, match="environment 1"):
        model.learn(96)
    assert th.equal(before, weights(model))


def test_an_interruption_hides_no_numbers_that_are_not_finite():
    model = make(as_vec_env(Faulty("reward", 3)))
    before = weights(model)
    with pytest.raises(FloatingPointError, match="environment 1"):
        model.learn(96, At(evaluate, [5, 7]))
    assert th.equal(before, weights(model))


def test_a_final_observation_that_is_not_finite_stops_training():
    with pytest.raises(FloatingPointError, match=r"final observation.*environment 1 at step 4"):
        make(Faulty("final", 4, limit=4, falls=False)).learn(96)
    # It is read only where an episode has been cut.
    make(Faulty("final", 3, limit=4, falls=False)).learn(96)


class Numbers(TensorEnv):
    """Observations without dimensions, a time limit of 3 steps, and final observations."""

    def __init__(self):
        super().__init__(2, spaces.Box(-10, 10, ()), spaces.Discrete(2))

    def reset(self, seed=None):
        self.t = 0
        return th.zeros(2)

    def step(self, actions):
        self.t += 1
        cut = th.full((2,), self.t % 3 == 0)
        number = th.full((2,), float(self.t))
        return Transition(number.where(~cut, 0.0), number, th.zeros(2, dtype=th.bool), cut, number)


def test_final_observations_may_be_numbers():
    model = make(as_vec_env(Numbers())).learn(32)
    np.testing.assert_array_equal(model.rollout_buffer.observations[:4, 0], [0.0, 1.0, 2.0, 0.0])


def test_an_empty_mask_raises_an_error_with_the_environment():
    class Nothing(TensorTwin):
        def action_masks(self):
            masks = super().action_masks()
            masks[2] = masks[2] & (self.t[2] != 3)
            return masks

    with pytest.raises(ValueError, match="environment 2 at step 3 allows nothing"):
        make(Nothing(3, ACTIONS["discrete"], "method", limit=9)).learn(96)


@pytest.mark.parametrize("masks", ["method", "key"])
def test_masks_of_other_numbers_raise_an_error(masks):
    """As in NumPy. Those that are added to logits, for instance, would allow what they forbid."""

    class Scaled(TensorTwin):
        def action_masks(self):
            return super().action_masks().int() * 2

    env = as_vec_env(Scaled(3, ACTIONS["discrete"], masks))
    arguments = {"is_dict": True, "action_mask_key": "mask"} if masks == "key" else {}
    with pytest.raises(ValueError, match="a mask must be of zeros and ones, for choices among"):
        make(env, **arguments).learn(96)


class Follows(TensorTwin):
    """An action that is NaN makes the observations NaN."""

    def step(self, actions):
        step = super().step(actions)
        numbers = [leaf for leaf in tree_leaves(actions) if leaf.is_floating_point()]
        return step._replace(obs=step.obs + sum(leaf.sum() * 0 for leaf in numbers))


@pytest.mark.parametrize(
    ("kind", "memory", "normalize", "what"),
    sample(product(ACTIONS, ["", "Lstm"], [False, True], ["actor", "log_std", "critic"]), 11),
)
def test_a_policy_that_is_not_finite_stops_training_at_the_end(kind, memory, normalize, what):
    inside = {"normalize_observations": normalize, "normalize_values": normalize}
    model = make(as_vec_env(Follows(3, ACTIONS[kind])), memory, **inside).learn(48)
    if what == "log_std" and not hasattr(model.policy, "log_std"):
        pytest.skip("no standard deviation")
    spoil(model.policy, what)
    before = weights(model).nan_to_num()
    with pytest.raises(FloatingPointError, match="the policy, not the environment.* at step 16"):
        model.learn(48, reset_num_timesteps=False)
    assert th.equal(before, weights(model).nan_to_num())
    if normalize:
        assert model.policy.observation_normalizer.single.isfinite().all()


@pytest.mark.parametrize("kind", ["tuple", "mixed"])
def test_masks_in_the_structure_of_the_action_space(kind):
    class Structured(TensorTwin):
        def action_masks(self):
            return structured(self.action_space, super().action_masks())

    models = []
    for env_class in (TensorTwin, Structured):
        models.append(make(as_vec_env(env_class(3, ACTIONS[kind], "method"))).learn(96))
        models[-1].evaluate(2)
    assert_same(*models)
    assert not models[1].rollout_buffer.masks.all()


def test_a_mask_of_another_structure_says_the_layout():
    class Wrong(TensorTwin):
        def action_masks(self):
            return {"mode": super().action_masks()[:, :4]}

    space = spaces.Dict({"pick": spaces.Discrete(4), "mode": spaces.Discrete(4)})
    message = r"a mask\['pick'\] of shape \(\) does not fit.* choices among \{'mode': \[4\], 'pick': \[4\]\}"
    with pytest.raises(ValueError, match=message):
        make(as_vec_env(Wrong(3, space, "method"))).learn(48)


def test_simulator_logs_are_averaged_and_logged():
    env, speeds, seen = TensorTwin(3, ACTIONS["discrete"]), [], []
    step = env.step

    def listening(actions):
        made = step(actions)
        speeds.append(made.log["speed"].item())
        return made

    env.step = listening
    make(env).learn(48, At(lambda model: seen.append(logged(model)["env/speed"]), hooks=["rollout_end"]))
    assert seen[-1] == pytest.approx(np.mean(speeds), rel=1e-4)


def test_a_model_can_switch_between_numpy_and_tensors():
    numpy, tensors = twins(ACTIONS["discrete"])
    model = make(numpy).learn(48)
    for env in (tensors, numpy):
        model.set_env(as_vec_env(env))
        model.learn(48)
    assert isinstance(model.rollout_buffer.rewards, np.ndarray)
    assert isinstance(model.env.envs[0].unwrapped, Twin)


def test_readers_see_nothing_but_the_value():
    made = []
    seen = LazyLocals(a=Lazy(lambda: made.append("a") or 1), b=2)
    assert made == []
    assert seen["a"] == 1 and seen["a"] == 1 and made == ["a"]
    looks = (dict(seen), {**seen}, dict(seen.items()), seen.copy(), {} | dict(seen))
    assert all(look == {"a": 1, "b": 2} for look in looks)
    assert list(seen.values()) == [1, 2] and seen.get("a") == 1 and seen.get("c", 3) == 3
    assert seen.setdefault("a", 4) == 1 and seen.pop("a") == 1 and seen.pop("a", None) is None


def test_updating_does_not_make_the_values():
    seen = LazyLocals()
    seen.update({"a": Lazy(lambda: 1 / 0)} | {"b": 1})
    assert seen["b"] == 1 and "a" in seen
