"""Action masks: their sources, invalid ones, and that no forbidden action is ever taken.

``MaskedEnv`` and ``KeyMaskedEnv`` raise at a forbidden action, so every test that plays in them also says that there
was none.
"""

import warnings

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, VECTOR, KeyMaskedEnv, MaskedEnv, RandomEnv, choices, chosen, structured, vec
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from resumable_envs import FORKED
from sb3_contrib.common.envs import InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_policy_without_masks
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.callbacks import EvalAfterUpdates
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.masking import as_masks, find_masks, nothing_allowed
from ppo_plus.zoo.enjoy import Player

#: One of each family.
MASKABLE = ["discrete_start", "multidiscrete_2d", "multibinary", "mixed"]
INVALID_ACTION_ENVS = {
    "multidiscrete": (InvalidActionEnvMultiDiscrete, {"dims": [4, 5], "n_invalid_actions": 4}),
    "multibinary": (InvalidActionEnvMultiBinary, {"dims": 5, "n_invalid_actions": 3}),
}


def make(env, policy="MlpPolicy", **kwargs):
    return PPO_Plus(
        policy, env, **({"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 0, "device": "cpu"} | kwargs)
    )


def masked(kind="discrete", **kwargs):
    return make(vec(ACTIONS[kind], env_class=MaskedEnv), **kwargs)


def key_masked(kind="discrete", **kwargs):
    return make(vec(ACTIONS[kind], OBSERVATIONS["dict"], env_class=KeyMaskedEnv), "MultiInputPolicy", **kwargs)


# --- pure functions ---------------------------------------------------------------------------------------------------


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_where_nothing_is_allowed(data, sizes, n_envs):
    masks = data.draw(arrays(bool, (n_envs, sum(sizes))))
    expected = [any(not row[s - n : s].any() for s, n in zip(np.cumsum(sizes), sizes, strict=True)) for row in masks]
    np.testing.assert_array_equal(nothing_allowed(masks, sizes), expected)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32])
@pytest.mark.parametrize("shape", [(2, 5), (2, 1, 5), (2, 5, 1)])
def test_zeros_and_ones_of_any_kind_are_masks(dtype, shape):
    given = np.array([[1, 0, 1, 0, 1], [0, 1, 1, 1, 0]], dtype=dtype)
    for form in (given.reshape(shape), list(given), given.tolist()):
        masks = as_masks("name", form, [2, 3])
        assert masks.dtype == bool and masks.shape == (2, 5)
        np.testing.assert_array_equal(masks, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((2, 4)), r"a mask of shape \(4,\) does not fit: 5 entries are needed.* among \[2, 3\]"),
        (np.ones(5), r"a mask of shape \(\) does not fit"),
        (np.bool_(True), "does not fit"),
        (np.full((2, 5), 0.5), "a mask must be of zeros and ones"),
        ([[1, 0, 2, 1, 0]], "a mask must be of zeros and ones"),
        ([[], []], "index"),
    ],
)
def test_what_is_no_mask_raises_an_error(given, message):
    with pytest.raises(ValueError, match=f"name: .*{message}"):
        as_masks("name", given, [2, 3])


# --- masks by the environments' method --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["multidiscrete", "multibinary"])
def test_sb3_contribs_environments_are_learned_masked(kind):
    env_class, arguments = INVALID_ACTION_ENVS[kind]
    log = ForbiddenActions()
    model = make(DummyVecEnv([lambda: env_class(**arguments)] * 2), n_steps=64).learn(256, log)
    assert log.n_forbidden == 0
    assert model.evaluate(4)[0] > 0

    # The same without masks: the test would notice.
    unmasked = make(vec(model.action_space, model.observation_space, env_class=RandomEnv), n_steps=64)
    own, masked_ones = unmasked.env.env_method, model.env.env_method
    unmasked.env.env_method = lambda name, *args: (masked_ones if name == "action_masks" else own)(name, *args)
    log.n_forbidden = 0
    unmasked.learn(128, log)
    assert log.n_forbidden > 0


class ForbiddenActions(BaseCallback):
    """Counts the choices that the masks of :class:`InvalidActionEnv` forbade when they were made."""

    def _on_training_start(self):
        self.n_forbidden = 0
        self.masks = np.array(self.training_env.env_method("action_masks"))

    def _on_step(self):
        sizes = choices(self.training_env.action_space)
        starts = np.cumsum([0, *sizes[:-1]])
        for mask, action in zip(self.masks, self.locals["actions"].astype(int), strict=True):
            self.n_forbidden += np.count_nonzero(~mask[starts + action])
        self.masks = np.array(self.training_env.env_method("action_masks"))
        return True


class NothingLeft(RandomEnv):
    """Forbids everything at step ``at``, and after the end of an episode.

    :param at: number of steps
    """

    def __init__(self, action_space, at=None, p_end=0.0, **kwargs):
        super().__init__(action_space, p_end=p_end, **kwargs)
        self.at = at

    def action_masks(self):
        is_left = self.n_steps != self.at and self.t < self.max_steps
        return np.full(sum(choices(self.action_space)), is_left)


def test_an_empty_mask_raises_with_environment_and_step():
    def env(at):
        return lambda: NothingLeft(ACTIONS["mixed"], at)

    model = make(DummyVecEnv([env(None), env(19), env(5)]))
    before = [p.clone() for p in model.policy.parameters()]
    with pytest.raises(ValueError, match=r"action_masks\(\) of environment 2 at step 5 allows nothing to choose from"):
        model.learn(200)
    assert all(map(th.equal, before, model.policy.parameters())), "nothing was to be learned yet"
    with pytest.raises(ValueError, match=r"environment 1 at step 19 "):
        make(DummyVecEnv([env(None), env(19)])).learn(200)


def test_a_mask_need_not_allow_anything_once_an_episode_is_over():
    # In this mode the action behind the end of an episode is ignored.
    env = SyncVectorEnv([lambda: NothingLeft(ACTIONS["discrete"])] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    model = make(env).learn(64)
    assert model.rollout_buffer.valid is not None
    model.evaluate(2)


class First(VectorWrapper):
    """Allows only the first choice."""

    def action_masks(self):
        return np.tile([True] + [False] * (self.single_action_space.n - 1), (self.num_envs, 1))


def test_masks_of_a_wrapper_around_all_environments_are_used():
    env = SyncVectorEnv([lambda: RandomEnv(ACTIONS["discrete"])] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert not make(First(env)).learn(32).rollout_buffer.actions.any()


def test_masks_where_there_is_nothing_to_choose_raise_an_error():
    env = vec(ACTIONS["box"])
    for each in env.envs:
        each.action_masks = lambda: np.ones(0)
    with pytest.raises(ValueError, match=r"method action_masks\(\), but action_space=Box.* has no choices to mask"):
        make(env).learn(16)


def test_masks_may_come_and_go_between_runs():
    model = masked().learn(32)
    assert model.rollout_buffer.masks is not None
    model.set_env(vec(ACTIONS["discrete"]))
    model.learn(32)
    assert model.rollout_buffer.masks is None
    model.set_env(vec(ACTIONS["discrete"], env_class=MaskedEnv))
    model.learn(32)
    assert model.rollout_buffer.masks is not None


# --- masks in the structure of the action space -----------------------------------------------------------------------

#: Gymnasium sorts the keys of the first.
SAME_SIZE = spaces.Dict({"pick": spaces.Discrete(4), "mode": spaces.Discrete(4)})
NESTED = {
    "same_size": SAME_SIZE,
    "in_a_tuple": spaces.Tuple([spaces.MultiBinary(4), SAME_SIZE, spaces.Box(-1.0, 1.0, (2,))]),
    "mixed": ACTIONS["mixed"],
    "dicts_in_a_tuple": spaces.Tuple([spaces.Dict(a=spaces.Discrete(3)), spaces.Dict(b=spaces.Discrete(2))]),
}


class StructuredMaskedEnv(MaskedEnv):
    """A :class:`MaskedEnv` whose mask has the structure of the action space."""

    def action_masks(self):
        return structured(self.action_space, super().action_masks())


@pytest.mark.parametrize("kind", NESTED)
def test_structured_masks_are_learned_like_flat_ones(kind):
    models = []
    for env_class in (StructuredMaskedEnv, MaskedEnv):
        models.append(make(vec(NESTED[kind], env_class=env_class)).learn(64))
        models[-1].evaluate(2)
    np.testing.assert_array_equal(*(model.rollout_buffer.masks for model in models))
    assert not models[0].rollout_buffer.masks.all()
    for one, other in zip(*(model.policy.parameters() for model in models), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("wrap", ["normalize", "subproc", "sync", "async"])
def test_structured_masks_pass_wrappers_and_processes(wrap):
    def make_env():
        env = ActionMasker(StructuredMaskedEnv(NESTED["in_a_tuple"]), lambda env: env.unwrapped.action_masks())
        return Monitor(env)

    vector = {"sync": SyncVectorEnv, "async": AsyncVectorEnv, "subproc": FORKED}.get(wrap, DummyVecEnv)
    mode = {"autoreset_mode": AutoresetMode.NEXT_STEP} if wrap in ("sync", "async") else {}
    env = vector([make_env] * 2, **mode)
    env = VecMonitor(VecNormalize(env)) if wrap == "normalize" else env
    try:
        model = make(env).learn(64)
        assert not model.rollout_buffer.masks.all()
        model.evaluate(2)
    finally:
        env.close()


@pytest.mark.parametrize("kind", NESTED)
def test_predict_takes_masks_in_every_form(kind):
    space = NESTED[kind]
    model = make(vec(space))
    rng = np.random.default_rng(0)
    for _ in range(10):
        masks = rng.random((2, sum(choices(space)))) < 0.7
        masks |= nothing_allowed(masks, choices(space))[:, None]
        obs = np.stack([VECTOR.sample(), VECTOR.sample()])
        each, whole = [structured(space, mask) for mask in masks], structured(space, masks)
        forms = [each, tuple(each), whole, structured(space, th.from_numpy(masks)), th.from_numpy(masks)]
        if isinstance(space, spaces.Dict):
            # As sb3-contrib's get_action_masks makes them.
            forms.append(np.stack(each))
        actions = [model.predict(obs, deterministic=True, action_masks=form)[0] for form in forms]
        single = [model.predict(obs[i], deterministic=True, action_masks=each[i])[0] for i in range(2)]
        actions += [single, model.predict(obs, deterministic=True, action_masks=masks)[0]]
        assert len({str([chosen(space, action) for action in batch]) for batch in actions}) == 1


@pytest.mark.parametrize("make_rows", [np.asarray, th.from_numpy])
@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 3]), spaces.Dict(w=spaces.MultiDiscrete([3, 3]))])
def test_several_masks_may_be_an_array_of_rows_for_each_choice(space, make_rows):
    first, second = np.eye(3, dtype=bool)[[0, 1]], np.eye(3, dtype=bool)[[2, 2]]
    masks = make_rows(first), make_rows(second)
    masks = {"w": masks} if isinstance(space, spaces.Dict) else masks
    found = as_masks("masks", masks, make_distribution(space).mask_layout)
    np.testing.assert_array_equal(found, np.hstack([first, second]))


@pytest.mark.parametrize("part", [{}, {"x": None}, None])
def test_what_has_no_choices_has_an_empty_mask(part):
    box = spaces.Box(-1, 1, (1,))
    layout = make_distribution(spaces.Tuple([spaces.Discrete(2), spaces.Dict(x=box, y=box)])).mask_layout
    assert as_masks("m", [(np.array([1, 0]), part)], layout).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"pick": [1, 1, 1, 1]}, r"a mask\['mode'\] of shape \(\) does not fit: 4 entries are needed"),
        ({"pick": [1, 1, 1], "mode": [1, 1, 1, 1]}, r"a mask\['pick'\] of shape \(3,\) does not fit: 4 entries"),
        ({"pik": [1, 1, 1, 1]}, r"the mask has entries \['pik'\] that the action space has not"),
        ({"pick": [1, 1, 1, 0.5], "mode": [1, 1, 1, 1]}, "a mask must be of zeros and ones"),
        ({"pick": [0, 0, 0, 0], "mode": [1, 1, 1, 1]}, "nothing to choose from"),
        (np.ones(7), r"a mask of shape \(7,\) does not fit: 8 entries are needed"),
        (([1, 1, 1, 1], [1, 1]), "inhomogeneous"),
    ],
)
def test_every_message_about_a_mask_says_the_layout(mask, message):
    class Wrong(RandomEnv):
        def action_masks(self):
            return mask

    layout = r".*choices among \{'mode': \[4\], 'pick': \[4\]\}"
    env = vec(SAME_SIZE, env_class=Wrong)
    with pytest.raises(ValueError, match=r"action_masks\(\)( of environment 0)? at step 0.*" + message + layout):
        make(env).learn(16)
    with pytest.raises(ValueError, match="(?s)action_masks.*" + message + layout):
        make(vec(SAME_SIZE)).predict(env.reset()[0], action_masks=mask)


# --- masks in the observations ----------------------------------------------------------------------------------------


def test_a_mask_in_the_observations_is_no_feature():
    model = key_masked("mixed", action_mask_key="mask", policy_kwargs={"ortho_init": False}).learn(64)
    without = make(vec(ACTIONS["mixed"], OBSERVATIONS["dict"]), "MultiInputPolicy").policy
    assert model.policy.features_dim == without.features_dim
    obs = model.env.reset()
    other = obs | {"mask": np.ones_like(obs["mask"])}
    tensors = [{key: th.from_numpy(value) for key, value in each.items()} for each in (obs, other)]
    with th.no_grad():
        assert th.equal(*(model.policy.predict_values(each) for each in tensors))
        distributions = [model.policy.get_distribution(each) for each in tensors]
    assert not th.equal(*(each.params for each in distributions))


def test_a_mask_in_the_observations_masks_predictions():
    model = key_masked(action_mask_key="mask").learn(32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate_policy_without_masks(model, model.env, 3, deterministic=False, warn=False)
        model.evaluate(3)
    # It goes before a method that the environments have as well.
    both = DummyVecEnv([lambda: MaskedEnv(ACTIONS["discrete"], OBSERVATIONS["dict"], key="mask")])
    assert make(both, "MultiInputPolicy", action_mask_key="mask").learn(16).rollout_buffer.masks is None


def test_a_mask_in_the_observations_that_allows_nothing_is_named():
    env = vec(ACTIONS["discrete"], OBSERVATIONS["dict"], env_class=KeyMaskedEnv)
    single = env.envs[1]
    observe = single.observe
    single.observe = lambda: observe() | ({"mask": np.zeros(3, np.int8)} if single.n_steps == 7 else {})
    message = r"the mask observation\['mask'\] of environment 1 at step 7 allows nothing to choose from"
    with pytest.raises(ValueError, match=message):
        make(env, "MultiInputPolicy", action_mask_key="mask").learn(64)


def test_a_key_is_saved_with_model_and_policy(tmp_path):
    model = key_masked(action_mask_key="mask").learn(32)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = PPO_Plus.load(tmp_path / "model", env=model.env, device="cpu")
    policies = loaded.policy, type(model.policy).load(tmp_path / "policy", device="cpu")
    assert loaded.action_mask_key == "mask" and loaded.learn(32)
    obs = model.env.reset()
    for policy in policies:
        assert policy.action_mask_key == "mask"
        assert policy.predict(obs, deterministic=True)[0].shape == (2,)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"action_mask_key": "other"}, ValueError, "action_mask_key='other' is not an entry of observation_space=Dict"),
        ({"action_mask_key": "vector"}, ValueError, "action_mask_key='vector': Box.* is not a mask for choices among"),
        ({"action_mask_key": "choice"}, ValueError, "action_mask_key='choice': Discrete.* is not a mask for choices"),
        ({"action_mask_key": 3}, ValueError, "action_mask_key=3 is not an entry of observation_space"),
    ],
)
def test_a_key_that_is_no_mask_raises_an_error(kwargs, error, message):
    with pytest.raises(error, match=message):
        key_masked(**kwargs)


def test_a_key_needs_dict_observations_and_choices():
    with pytest.raises(ValueError, match="action_mask_key='a' is not an entry of observation_space=Box"):
        make(vec(ACTIONS["discrete"]), action_mask_key="a")
    empty = spaces.Dict(vector=VECTOR, mask=spaces.MultiBinary(1))
    with pytest.raises(ValueError, match="action_mask_key='mask': .* is not a mask for choices among \\[\\]"):
        make(vec(ACTIONS["box"], empty), "MultiInputPolicy", action_mask_key="mask")
    alone = spaces.Dict(mask=spaces.MultiBinary(int(ACTIONS["discrete"].n)))
    with pytest.raises(ValueError, match="action_mask_key='mask' is the only entry of the observations: add one"):
        make(vec(ACTIONS["discrete"], alone), "MultiInputPolicy", action_mask_key="mask")


def test_minibatches_have_the_masks_that_are_in_the_observations():
    """So that a loss from the policy's two halves is masked as well."""

    class Halves(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            _, params, _ = self.policy.heads(self.policy.encode_batch(batch), batch.masks)
            gap = self.policy.evaluate_batch(batch)[1] - params
            return super().compute_loss(batch, coefficients).plus("gap", gap.exp().sub(1).abs().sum())

    for policy in ("MultiInputPolicy", "MultiInputLruPolicy"):
        env = vec(ACTIONS["discrete"], OBSERVATIONS["dict"], env_class=KeyMaskedEnv)
        memory = {"lstm_hidden_size": 8} if policy == "MultiInputLruPolicy" else {}
        arguments = dict(n_steps=16, batch_size=16, action_mask_key="mask", policy_kwargs=memory)
        model = Halves(policy, env, **arguments, seed=0, device="cpu").learn(32)
        assert model.logger.name_to_value["train/gap"] == 0


# --- predict and evaluation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", MASKABLE)
def test_predict_keeps_to_the_masks(kind, deterministic):
    model = masked(kind, use_sde=True)
    obs = model.env.reset()
    for _ in range(20):
        actions, _ = model.predict(obs, deterministic=deterministic, action_masks=model.env.env_method("action_masks"))
        obs, *_ = model.env.step(actions)

    env = MaskedEnv(ACTIONS[kind])
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        action, _ = model.predict(obs, deterministic=deterministic, action_masks=env.action_masks())
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()


def test_the_policys_methods_take_masks():
    policy = masked("mixed", policy_kwargs={"ortho_init": False}).policy
    obs = th.stack([th.from_numpy(VECTOR.sample()) for _ in range(6)])
    masks = np.random.default_rng(0).random((6, sum(choices(ACTIONS["mixed"])))) < 0.8
    masks |= nothing_allowed(masks, choices(ACTIONS["mixed"]))[:, None]
    with th.no_grad():
        actions, values, log_probs = policy(obs, action_masks=masks)
        distribution = policy.get_distribution(obs, action_masks=masks)
        again = policy.evaluate_actions(obs, actions, action_masks=th.from_numpy(masks))
        assert th.equal(policy(obs, deterministic=True, action_masks=masks)[0], distribution.mode())
        unmasked = policy.evaluate_actions(obs, actions)
    for one, other in zip(again, (values, distribution.log_prob(actions), distribution.entropy()), strict=True):
        assert th.equal(one, other)
    assert th.equal(log_probs, again[1])
    is_restricted = th.from_numpy(~masks.all(axis=1))
    assert is_restricted.any() and th.equal(again[2] < unmasked[2], is_restricted)


def test_a_multidiscrete_mask_may_be_an_array_for_each_choice():
    masks = [(np.array([1, 0, 1, 1]), np.array([1, 1, 0])), (np.ones(4), np.ones(3))]
    assert as_masks("m", masks, [4, 3]).astype(int).tolist() == [[1, 0, 1, 1, 1, 1, 0], [1] * 7]
    assert as_masks("m", [{"a": masks[0]}], {"a": [4, 3]}).astype(int).tolist() == [[1, 0, 1, 1, 1, 1, 0]]


@pytest.mark.parametrize("as_given", [np.asarray, th.as_tensor])
def test_predict_takes_the_mask_of_a_single_environment(as_given):
    env = vec(ACTIONS["discrete"], n_envs=1, env_class=MaskedEnv)
    model = make(env)
    mask = as_given(np.array([False, True, False]))
    for action_masks in (mask, mask[None], [mask]):
        assert model.predict(env.reset(), action_masks=action_masks)[0].tolist() == [1 + ACTIONS["discrete"].start]


def test_predict_takes_a_mask_for_each_observation():
    model = masked()
    with pytest.raises(ValueError, match="action_masks has 1 masks for 2 observations: give one for each"):
        model.predict(model.env.reset(), action_masks=np.ones((1, 3)))


def test_predict_without_the_masks_of_training_warns_once(tmp_path):
    model = masked().learn(32)
    model.save(tmp_path / "model")
    obs = model.env.reset()
    for each in (model, PPO_Plus.load(tmp_path / "model", device="cpu")):
        with pytest.warns(UserWarning, match="predict was called without action_masks, but the model was trained with"):
            each.predict(obs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            each.predict(obs)


def test_the_zoos_evaluations_and_player_hand_the_masks_in(tmp_path):
    model, eval_env = masked("mixed"), vec(ACTIONS["mixed"], env_class=MaskedEnv)
    callback = EvalAfterUpdates(eval_env, 32, best_model_save_path=str(tmp_path), log_path=str(tmp_path), warn=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(96, callback)
        assert len(callback.evaluations_timesteps) == 3 and callback.model is model
        best = PPO_Plus.load(tmp_path / "best_model", env=eval_env, device="cpu")
        assert sum(1 for _ in Player(best, eval_env, deterministic=False).play(30)) == 30
        assert np.isfinite(evaluate_policy(model, model.env, 3, warn=False)).all()
        assert np.isfinite(model.evaluate(3, MaskedEnv(ACTIONS["mixed"]))).all()


@pytest.mark.parametrize("attribute", [None, np.ones(3, dtype=bool)])
def test_an_attribute_that_is_no_method_is_no_mask(attribute):
    class Obliging(RandomEnv):
        action_masks = attribute

    env = DummyVecEnv([lambda: Obliging(ACTIONS["discrete"])])
    assert find_masks(env, [3]) is None and find_masks(VecNormalize(env), [3]) is None
    PPO_Plus("MlpPolicy", env, n_steps=4, batch_size=4, n_epochs=1, compile=False).learn(4)


@pytest.mark.parametrize("vec_class", [DummyVecEnv, pytest.param(SupervisedVecEnv, marks=pytest.mark.slow)])
def test_masks_of_some_environments_only_are_an_error(vec_class):
    """Without masks, the others would be played with actions that they forbid."""
    env = vec_class([lambda: MaskedEnv(ACTIONS["discrete"]), lambda: RandomEnv(ACTIONS["discrete"])])
    model = PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(ValueError, match=r"only some of the environments have a method action_masks\(\)"):
        model.learn(16)
    env.close()


@pytest.mark.parametrize("answer", [NotImplementedError, KeyError, None])
def test_vector_environments_that_answer_nothing_have_no_masks(answer):
    class Closed(DummyVecEnv):
        def env_method(self, *args, **kwargs):
            if answer is not None:
                raise answer

        def get_attr(self, attr_name, indices=None):
            if attr_name == "render_mode":  # SB3 asks for it
                return [None] * self.num_envs
            raise NotImplementedError

    make(Closed([lambda: RandomEnv(ACTIONS["discrete"])] * 2)).learn(16)
