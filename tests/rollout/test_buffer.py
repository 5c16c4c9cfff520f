"""The rollout buffer: SB3's minibatches, the environment's own dtypes, and buffer classes written for SB3."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from models import make_model
from stable_baselines3.common import buffers as sb3

from ppo_plus.rollout.buffer import RolloutBuffer, own_buffer_class
from ppo_plus.update.minibatch import Batch

BOX = spaces.Box(-1.0, 1.0, (3,))
DISCRETE = spaces.Discrete(4)
FIELDS = ("actions", "old_values", "old_log_prob", "advantages", "returns")


def random_steps(n_steps, n_envs, seed=0, obs_space=BOX, action_space=DISCRETE):
    """Arguments of ``add`` for a rollout, and of ``compute_returns_and_advantage`` after it."""
    rng = np.random.default_rng(seed)
    obs_space.seed(seed)
    action_space.seed(seed)

    def stack(space):
        rows = [space.sample() for _ in range(n_envs)]
        return {k: np.stack([row[k] for row in rows]) for k in rows[0]} if isinstance(rows[0], dict) else np.stack(rows)

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    steps = []
    for _ in range(n_steps):
        obs, actions = stack(obs_space), stack(action_space).reshape(n_envs, -1)
        rewards, starts, estimates = floats(n_envs), rng.random(n_envs) < 0.2, (floats(n_envs), floats(n_envs))
        steps.append((obs, actions, rewards, starts, *estimates, floats(n_envs, 4)))
    return steps, (th.from_numpy(floats(n_envs, 1)), rng.random(n_envs) < 0.2)


def filled(n_steps=5, n_envs=3, seed=0, buffer_class=RolloutBuffer, **options):
    """A complete buffer, and the steps that it was given."""
    spaces_ = {name: options.pop(name, default) for name, default in (("obs_space", BOX), ("action_space", DISCRETE))}
    steps, end = random_steps(n_steps, n_envs, seed, **spaces_)
    options = {"gamma": 0.97, "gae_lambda": 0.9, "n_envs": n_envs} | options
    buffer = buffer_class(n_steps, *spaces_.values(), device="cpu", **options)
    refill(buffer, steps, end)
    return buffer, steps


def stored_fields(batch):
    """The fields of a batch that are there."""
    return [field for field in batch if field is not None]


def refill(buffer, steps, end):
    buffer.reset()
    is_sb3 = isinstance(buffer, sb3.RolloutBuffer) and not hasattr(buffer, "bootstrap_timeouts")
    for step in steps:
        # SB3 is given tensors, and no parameters of distributions.
        buffer.add(*(*step[:4], *map(th.from_numpy, step[4:6])) if is_sb3 else step)
    buffer.compute_returns_and_advantage(*end)


def epoch(buffer, batch_size=None, seed=0):
    np.random.seed(seed)
    return list(buffer.get(batch_size))


# --- minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 4, 100])
@pytest.mark.parametrize(
    ("obs_space", "action_space"),
    [
        (BOX, spaces.Box(-1.0, 1.0, (2,))),
        (spaces.Discrete(6), DISCRETE),
        (spaces.Box(0, 255, (2, 3), np.uint8), spaces.MultiDiscrete([3, 4])),
        (spaces.Dict(a=BOX, b=spaces.Discrete(3)), spaces.MultiBinary(3)),
    ],
    ids=["box", "discrete", "uint8", "dict"],
)
def test_the_same_numpy_seed_gives_sb3s_minibatches(obs_space, action_space, batch_size):
    is_dict = isinstance(obs_space, spaces.Dict)
    theirs, ours = (
        filled(obs_space=obs_space, action_space=action_space, buffer_class=buffer_class)[0]
        for buffer_class in (sb3.DictRolloutBuffer if is_dict else sb3.RolloutBuffer, RolloutBuffer)
    )
    for _ in range(2):
        for a, b in zip(epoch(ours, batch_size), epoch(theirs, batch_size), strict=True):
            for key in obs_space.spaces if is_dict else [...]:
                obs, expected = a.observations[key], b.observations[key]
                # SB3 gives Discrete observations a dimension of their own.
                assert th.equal(obs.reshape(expected.shape), expected)
            for name in FIELDS:
                exact = name not in ("advantages", "returns")  # these add up in another order, in float32
                tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
                th.testing.assert_close(getattr(a, name), getattr(b, name), **tolerance)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_an_epoch_holds_every_transition_once(n_steps, n_envs, batch_size, seed):
    buffer, steps = filled(n_steps, n_envs, seed)
    batches = epoch(buffer, batch_size, seed)
    total = n_steps * n_envs
    assert [len(batch.actions) for batch in batches[:-1]] == [batch_size] * ((total - 1) // batch_size)
    assert len(batches[-1].actions) == (total - 1) % batch_size + 1
    # A transition is known by its log-probability; everything else must belong to it.
    together = Batch(*(th.cat(field) for field in zip(*map(stored_fields, batches), strict=True)))
    order, expected = (
        x.argsort() for x in (together.old_log_prob, th.from_numpy(np.concatenate([step[5] for step in steps])))
    )
    for field, position in ((0, 0), (1, 1), (2, 4), (3, 5), (6, 6)):
        stored = th.cat([th.as_tensor(step[position]) for step in steps])[expected]
        assert th.equal(together[field][order], stored.to(together[field].dtype))
    # float32: one rounding of a sum below 100.
    th.testing.assert_close(together.advantages + together.old_values, together.returns, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("n_added", [0, 4])
def test_an_incomplete_rollout_raises_an_error(n_added):
    buffer, steps = filled()
    buffer.reset()
    for step in steps[:n_added]:
        buffer.add(*step)
    assert buffer.size() == n_added and not buffer.full
    with pytest.raises(RuntimeError, match=f"the rollout has {n_added} of 5 steps: call collect_rollouts before train"):
        next(buffer.get(4))


# --- what is stored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dict", [False, True])
def test_normalized_observations_of_an_integer_space_stay_floats(in_dict):
    # VecNormalize leaves observation_space an integer Box and returns floats: SB3's buffer cuts them to integers.
    space, obs = spaces.Box(0, 255, (2,), np.uint8), np.float32([[-0.75, 1.25]])
    buffer = RolloutBuffer(1, spaces.Dict(a=space) if in_dict else space, DISCRETE)
    buffer.add({"a": obs} if in_dict else obs, *random_steps(1, 1)[0][0][1:])
    observations = epoch(buffer)[0].observations
    observations = observations["a"] if in_dict else observations
    assert observations.dtype == th.float32 and observations.tolist() == obs.tolist()


@pytest.mark.parametrize("dtype", ["u1", "u2", "i8", "?", "f2", "f8"])
def test_observations_keep_their_dtype_but_floats_become_float32(dtype):
    obs = np.array([[0, 1], [1, 1]], dtype=dtype)
    buffer = RolloutBuffer(1, spaces.Box(0, 9, (2,), np.int64), DISCRETE, n_envs=2)
    buffer.add(obs, *random_steps(1, 2)[0][0][1:])
    stored = buffer.observations
    assert stored.dtype == (np.float32 if dtype[0] == "f" else obs.dtype)
    assert sorted(epoch(buffer)[0].observations.tolist()) == [[0, 1], [1, 1]]


def test_real_actions_of_an_integer_space_are_stored_as_reals():
    space = spaces.Box(-9, 9, (2,), np.int32)
    buffer = RolloutBuffer(1, BOX, space)
    step = list(random_steps(1, 1)[0][0])
    step[1] = np.float32([[0.75, -1.25]])
    buffer.add(*step)
    assert epoch(buffer)[0].actions.tolist() == [[0.75, -1.25]]


def test_a_loop_written_for_sb3_may_add_parameters():
    *rest, value, log_prob, params = random_steps(1, 2)[0][0]
    buffer = RolloutBuffer(1, BOX, DISCRETE, n_envs=2)
    buffer.add(*rest, th.from_numpy(value)[:, None], th.from_numpy(log_prob), params)
    np.testing.assert_array_equal(buffer.values[0], value)


@pytest.mark.parametrize("make", [np.array, th.tensor])
def test_floats_after_integers_are_not_cut(make):
    buffer = RolloutBuffer(2, BOX, DISCRETE)
    _, *rest = random_steps(1, 1)[0][0]
    for obs in (make([[1]]), make([[0.5]])):
        buffer.add(obs, *rest)
    assert buffer.stored("observations").flatten().tolist() == [1.0, 0.5]
    buffer = RolloutBuffer(2, spaces.Box(0, 9, (1,), np.int64), DISCRETE)
    buffer.add(np.array([[1]]), *rest)
    with pytest.raises(TypeError, match="same_kind"):
        buffer.add(np.array([[0.5]]), *rest)


def test_the_buffer_copies_what_it_is_given():
    # Environments reuse their arrays, and theirs are not ours to write to.
    steps, end = random_steps(2, 2)
    obs, action, reward, *rest = (np.array(x) if isinstance(x, np.ndarray) else x for x in steps[0])
    buffer = RolloutBuffer(2, BOX, DISCRETE, n_envs=2)
    buffer.add(obs, action, reward, *rest)
    obs[:], action[:], reward[:] = 9, 9, 9
    buffer.add(obs, action, reward, *rest)
    buffer.bootstrap_timeouts([1], [0], th.tensor([5.0]))
    buffer.compute_returns_and_advantage(*end)
    np.testing.assert_array_equal(buffer.observations[0], steps[0][0])
    np.testing.assert_array_equal(buffer.rewards[0], steps[0][2])
    assert reward.tolist() == [9, 9]


def test_observations_assigned_by_key_are_trained_on():
    buffer, steps = filled(obs_space=spaces.Dict(a=BOX, b=BOX))
    untouched = buffer.on_device().observations["b"].clone()
    buffer.observations["a"] = 0 * buffer.observations["a"] + 3
    assert (buffer.on_device().observations["a"] == 3).all()
    assert th.equal(buffer.on_device().observations["b"], untouched)
    buffer.observations = {key: array + 1 for key, array in buffer.observations.items()}
    assert (buffer.on_device().observations["a"] == 4).all()
    buffer.reset()
    for step in steps:
        buffer.add(*step)
    assert th.equal(buffer.on_device().observations["b"], untouched)


def test_the_next_rollout_reuses_the_memory():
    buffer, _ = filled(seed=0)
    names = ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns", "params")
    before = {name: getattr(buffer, name) for name in names}
    steps, end = random_steps(5, 3, seed=1)
    refill(buffer, steps, end)
    fresh, _ = filled(seed=1)
    for name in names:
        assert getattr(buffer, name) is before[name]
        np.testing.assert_array_equal(before[name], getattr(fresh, name))
    assert all(map(th.equal, stored_fields(epoch(buffer)[0]), stored_fields(epoch(fresh)[0])))


def test_observations_of_a_rollout_may_change_dtype_and_shape():
    # As after load(), with another wrapper around the environment.
    buffer, steps = filled(1, 1, obs_space=spaces.Box(0, 9, (2,), np.int64))
    for obs in (np.float32([[0.5, 1.5]]), np.float32([[0.5, 1.5, 2.5]]), np.array([[1, 2]])):
        buffer.reset()
        buffer.add(obs, *steps[0][1:])
        assert epoch(buffer)[0].observations.tolist() == obs.tolist()


# --- advantages -------------------------------------------------------------------------------------------------------


def test_bootstrap_adds_the_discounted_value_at_time_limits():
    buffer, steps = filled(gamma=0.5)
    buffer.bootstrap_timeouts([0, 4], [2, 0], th.tensor([10.0, -20.0]))
    expected = np.stack([step[2] for step in steps])
    expected[0, 2] += 5
    expected[4, 0] -= 10
    np.testing.assert_array_equal(buffer.rewards, expected)
    without, steps = filled()
    without.bootstrap_timeouts([], [], th.zeros(0))
    np.testing.assert_array_equal(without.rewards, np.stack([step[2] for step in steps]))


def test_a_bootstrap_with_another_gamma_replaces_the_earlier_one():
    (buffer, _), (expected, _) = filled(gamma=0.5), filled(gamma=0.25)
    buffer.bootstrap_timeouts([0, 4], [2, 0], th.tensor([10.0, -20.0]))
    buffer.gamma = 0.25
    for each in (buffer, expected):
        each.bootstrap_timeouts([0, 4], [2, 0], th.tensor([12.0, -24.0]))
    np.testing.assert_allclose(buffer.rewards, expected.rewards, rtol=1e-6)


def test_advantages_are_normalized_over_the_whole_rollout():
    buffer, _ = filled()
    before, returns = buffer.advantages.copy(), buffer.returns.copy()
    buffer.normalize_advantages()
    # float32
    np.testing.assert_allclose(buffer.advantages, (before - before.mean()) / before.std(ddof=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(buffer.returns, returns)
    np.testing.assert_array_equal(np.sort(epoch(buffer)[0].advantages), np.sort(buffer.advantages.flatten()))


def monte_carlo(buffer, last_values, dones):
    """The discounted sum of rewards, by numpy code of the kind that people write for SB3."""
    returns = np.zeros_like(buffer.rewards)
    going_on = last_values.numpy().flatten() * (1 - dones)
    for step in reversed(range(buffer.buffer_size)):
        if step < buffer.buffer_size - 1:
            going_on = going_on * (1 - buffer.episode_starts[step + 1])
        going_on = buffer.rewards[step] + buffer.gamma * going_on
        returns[step] = going_on
    return returns


class InPlace:
    def compute_returns_and_advantage(self, last_values, dones):
        self.returns[:] = monte_carlo(self, last_values, dones)
        self.advantages[:] = self.returns - self.values


class Rebinding:
    """As SB3's own method does with ``self.returns``."""

    def compute_returns_and_advantage(self, last_values, dones):
        self.returns = monte_carlo(self, last_values, dones)
        self.advantages = self.returns - self.values


@pytest.mark.parametrize("style", [InPlace, Rebinding])
def test_a_subclass_may_estimate_advantages_with_numpy(style):
    buffer, _ = filled(buffer_class=type("MonteCarlo", (style, RolloutBuffer), {}))
    expected, _ = filled(gae_lambda=1.0)
    for seed in (1, 0):
        # Twice, so that the second rollout does not see the first one's.
        refill(buffer, *random_steps(5, 3, seed))
        refill(expected, *random_steps(5, 3, seed))
        for a, b in zip(epoch(buffer, 4), epoch(expected, 4), strict=True):
            th.testing.assert_close(a.returns, b.returns, rtol=1e-5, atol=1e-6)  # float32 sums
            th.testing.assert_close(a.advantages, b.advantages, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("style", [InPlace, Rebinding])
def test_training_calls_such_a_subclass_as_sb3_does(style):
    class MonteCarlo(style, RolloutBuffer):
        def compute_returns_and_advantage(self, last_values, dones):
            super().compute_returns_and_advantage(last_values, dones.astype(np.float32))

    def trained(**kwargs):
        return make_model(env=vec(ACTIONS["discrete"]), n_steps=16, batch_size=16, **kwargs).learn(64)

    model, other = trained(rollout_buffer_class=MonteCarlo), trained(gae_lambda=1.0)
    np.testing.assert_allclose(model.rollout_buffer.returns, other.rollout_buffer.returns, rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@pytest.mark.parametrize("style", [object, InPlace])
@given(st.integers(0, 10**6), st.booleans(), st.floats(0.0, 1.0))
def test_rows_that_are_no_transitions_are_as_if_they_were_not_there(style, seed, episodic, share):
    """Also for a subclass that estimates advantages in another way."""
    cls = RolloutBuffer if style is object else type("MonteCarlo", (style, RolloutBuffer), {})
    options = dict(gamma=0.97, gae_lambda=0.9)
    steps, (last_values, ends) = random_steps(7, 3, seed)
    valid = np.random.default_rng(seed).random((7, 3)) < share

    def estimated(steps, rows, **kwargs):
        buffer = cls(len(steps), BOX, DISCRETE, **options | kwargs)
        buffer.episodic = episodic
        for step, row in zip(steps, rows, strict=True):
            buffer.add(*step, valid=row)
        return buffer

    buffer = estimated(steps, valid, n_envs=3)
    buffer.estimate(last_values, th.from_numpy(ends))
    for i in range(3):
        rows = np.flatnonzero(valid[:, i])
        alone = estimated([tuple(part[i : i + 1] for part in steps[t]) for t in rows], [None] * len(rows))
        if len(rows):
            alone.estimate(last_values[i : i + 1], th.from_numpy(ends[i : i + 1]))
        for name in ("advantages", "returns"):
            found, expected = getattr(buffer, name)[rows, i], getattr(alone, name)[:, 0]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# --- buffer classes ---------------------------------------------------------------------------------------------------


def test_sb3s_plain_classes_mean_ours():
    class Ours(RolloutBuffer):
        pass

    assert own_buffer_class(Ours) is Ours
    for plain in (None, sb3.RolloutBuffer, sb3.DictRolloutBuffer):
        assert own_buffer_class(plain) is RolloutBuffer


class Theirs(sb3.RolloutBuffer):
    pass


@pytest.mark.parametrize("other", [sb3.ReplayBuffer, dict, Theirs])
def test_another_class_raises_an_error(other):
    with pytest.raises(TypeError, match="rollout_buffer_class=.* must be derived from ppo_plus.RolloutBuffer"):
        own_buffer_class(other)


# --- masks ------------------------------------------------------------------------------------------------------------


def filled_with_masks(seed=0):
    """A buffer, and the masks by the log-probability that stands beside each."""
    buffer, steps = filled(seed=seed)
    rng = np.random.default_rng(seed)
    buffer.reset()
    masks = {}
    for step in steps:
        rows = rng.random((3, 4)) < 0.5
        buffer.add(*step, masks=rows)
        masks |= {log_prob.item(): row.tolist() for log_prob, row in zip(step[5], rows, strict=True)}
        # What the environment reuses must not change what is stored.
        rows[:] = False
    return buffer, masks


def test_masks_stay_with_their_transitions():
    buffer, masks = filled_with_masks()
    for each in (buffer, pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        batches = list(each.get(4))
        assert all(batch.masks.dtype == th.bool for batch in batches)
        rows = [pair for b in batches for pair in zip(b.old_log_prob.tolist(), b.masks.tolist(), strict=True)]
        assert dict(rows) == masks and len(rows) == 15


def test_masks_are_cleared_before_the_next_rollout():
    buffer, _ = filled_with_masks()
    refill(buffer, *random_steps(5, 3, seed=1))
    assert buffer.masks is None and next(iter(buffer.get())).masks is None
