"""An interrupted and resumed run ends as an uninterrupted one, bit for bit: weights, optimizer, logs."""

import itertools
import math
import random
import shutil

import golden
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import MaskedEnv
from faulty_envs import equal
from golden import Stop
from parametrization import EXHAUSTIVE
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
from stream_envs import STREAMS, counting, progress
from training import At

import ppo_plus
from ppo_plus import Checkpoints, PPO_Plus, Resumable, Stream, make_vec
from ppo_plus.saving.checkpoint import checkpoint, process_state
from ppo_plus.saving.format import container
from ppo_plus.saving.format.names import Damaged
from ppo_plus.saving.format.values import Undescribable

TOTAL = 400


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """The state is taken at the start of each rollout, however long that takes."""
    monkeypatch.setattr(checkpoint, "SHARE", math.inf)


def envs(env_id="CartPole-v1", n_envs=2, vec=DummyVecEnv, **kwargs):
    return make_vec_env(env_id, n_envs, seed=5, wrapper_class=Resumable, vec_env_cls=vec, **kwargs)


def tuples():
    """CartPole, whose observations are tuples of a place and an angle, each with its speed."""
    space = gym.spaces.Tuple([gym.spaces.Box(-np.inf, np.inf, (2,))] * 2)
    return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda obs: (obs[:2], obs[2:]), space)


KEYS = {"actor_keys": ["place"], "critic_keys": ["goal"]}
SMALL = {"lstm_hidden_size": 8}
MEMORY = {"sequence_length": 8, "policy_kwargs": SMALL}
CASES = {
    "discrete": (envs, {}),
    "compiled": (envs, {"compile": True}),
    "subproc": (lambda: envs(vec=SubprocVecEnv), {}),
    "normalized": (lambda: VecNormalize(envs("Pendulum-v1")), {"use_sde": True, "sde_sample_freq": 4}),
    "episodes' noise": (lambda: envs("Acrobot-v1"), {"use_sde": True, "sde_sample_freq": "episode"}),
    "memory": (envs, {"policy": "MlpLstmPolicy"} | MEMORY),
    "memory, attention": (envs, {"policy": "MlpAttentionPolicy", "use_sde": True} | MEMORY),
    "memory, scan": (envs, {"policy": "MlpLruPolicy"} | MEMORY),
    "memory, compiled": (envs, {"policy": "MlpGruPolicy", "compile": True, "use_sde": True} | MEMORY),
    "penalty": (lambda: envs("Pendulum-v1"), {"target_kl": 1e-3, "kl_control": "penalty", "clip_range": None}),
    "adaptive": (envs, {"target_kl": 1e-3, "kl_control": "adaptive_lr", "learning_rate": "lin_1e-3"}),
    "stacked": (lambda: VecFrameStack(envs(), 3), {"policy_kwargs": {"optimizer_class": th.optim.RMSprop}}),
    "MuJoCo": (lambda: envs("Swimmer-v5"), {}),
    "Box2D": (lambda: envs("LunarLander-v3", n_envs=1), {}),
    "recomputed advantages": (lambda: envs("Pendulum-v1"), {"recompute_advantages": True, "use_sde": True}),
    "keys": (lambda: golden.envs(as_dict=True), {"policy": "MultiInputPolicy", "policy_kwargs": KEYS}),
    "keys, memory": (
        lambda: golden.envs(as_dict=True),
        {"policy": "MultiInputLstmPolicy", "policy_kwargs": KEYS | SMALL},
    ),
    "streams": (lambda: counting(2), {"streams": STREAMS, "normalize_values": True}),
    "tuples": (lambda: make_vec(tuples, 2, seed=5), {"policy": "MultiInputPolicy"}),
    "dropout": (envs, {"policy_kwargs": {"net_arch": [16], "activation_fn": th.nn.Tanh}, "ent_coef": "lin_0.01"}),
}
#: The marks of cases; others are slow. Simulators resume to the bit in tests/envs/resumable.
MARKS = dict.fromkeys(["discrete", "normalized", "memory", "streams", "tuples"], ())
MARKS |= dict.fromkeys(["compiled", "MuJoCo", "Box2D", "keys", "recomputed advantages"], EXHAUSTIVE)
ppo_plus.register(progress)


class Rows(KVWriter):
    """Keeps what is logged, but for times."""

    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        row = {key: value for key, value in key_values.items() if key not in ("time/fps", "time/time_elapsed")}
        self.rows.append((step, row))

    def close(self):
        pass


class Interrupt(golden.Interrupt):
    """Draws random numbers in each call, as callbacks may, and raises after so many."""

    def _on_step(self):
        random.random(), np.random.random(), th.rand(1)
        if self.model.use_sde:  # with noise of the policy's own
            self.model.policy.forward(self.model.policy.obs_to_tensor(self.model._last_obs)[0])
        return super()._on_step()


def model_of(case, **kwargs):
    make, settings = CASES[case]
    kwargs = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 3, "device": "cpu", **settings, **kwargs}
    policy = kwargs.pop("policy", "MlpPolicy")
    return PPO_Plus(policy, make(), **kwargs)


def learn(model, folder, after=-1, save_freq=100, callbacks=()):
    """Train with checkpoints, to the end or to an interruption; what was logged."""
    rows = Rows()
    model.set_logger(Logger(None, [rows]))
    interrupt, checkpoints = Interrupt(after), Checkpoints(folder, save_freq=save_freq)
    try:
        # Checkpoints need not be first.
        model.learn(TOTAL, [interrupt, *callbacks, checkpoints])
    except Stop:
        pass
    return rows.rows, checkpoints


def assert_same(model, other):
    for ours, theirs in zip(model.get_parameters().values(), other.get_parameters().values(), strict=True):
        assert equal(ours, theirs)
    for name in ("num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining"):
        assert getattr(model, name) == getattr(other, name)
    episodes, others = ([(e["r"], e["l"]) for e in each.ep_info_buffer] for each in (model, other))
    assert episodes == others
    assert equal(model.position.obs, other.position.obs)
    assert str(model.compiled) == str(other.compiled)


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, pytest.mark.slow)) for case in CASES])
def test_interrupted_and_resumed_it_is_the_same_to_the_bit(case, request, tmp_path):
    if case.startswith("memory"):
        request.getfixturevalue("traced")
    whole = model_of(case)
    expected, _ = learn(whole, tmp_path / "whole")
    drawn = random.random(), np.random.random(), th.rand(1)

    rows, _ = learn(model_of(case), tmp_path / "cut", after=TOTAL // whole.n_envs * 2 // 3)
    assert rows == expected[: len(rows)] and len(rows) < len(expected)
    th.manual_seed(0)
    resumed = PPO_Plus.resume(tmp_path / "cut", CASES[case][0](), device="cpu")
    start = resumed.num_timesteps
    assert 0 < start < TOTAL
    rows, _ = learn(resumed, tmp_path / "cut")
    assert rows == [row for row in expected if row[0] > start]
    assert_same(resumed, whole)
    assert (random.random(), np.random.random(), th.rand(1)) == drawn


def test_a_schedule_without_a_name_is_asked_for_to_resume_to_the_bit(tmp_path):
    def schedule(progress):
        return 1e-3 * progress**2

    whole = model_of("discrete", learning_rate=schedule)
    learn(whole, tmp_path / "whole")
    learn(model_of("discrete", learning_rate=schedule), tmp_path / "cut", after=150)
    with pytest.warns(UserWarning, match="learning_rate: the checkpoint has values of a function.*pass learning_rate="):
        PPO_Plus.resume(tmp_path / "cut", envs()).learn(TOTAL)
    resumed = PPO_Plus.resume(tmp_path / "cut", envs(), learning_rate=schedule)
    learn(resumed, tmp_path / "cut")
    assert_same(resumed, whole)


def test_tensorboard_is_joined_without_gap_or_doubling(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder):
        events = EventAccumulator(str(folder)).Reload()
        names = set(events.Tags()["scalars"]) - {"time/fps"}
        # Files of the same second are read in the order of their numbers as text.
        return {name: sorted((event.step, event.value) for event in events.Scalars(name)) for name in names}

    def model_with(folder):
        return model_of("discrete", tensorboard_log=str(folder))

    model_with(tmp_path / "whole").learn(TOTAL, Interrupt(-1))
    model = model_with(tmp_path / "cut")
    with pytest.raises(Stop):
        model.learn(TOTAL, [Checkpoints(tmp_path / "kept", save_freq=100), Interrupt(180)])
    # Another run in between, which is not to be mixed up with it.
    model_with(tmp_path / "cut").learn(64)
    resumed = PPO_Plus.resume(tmp_path / "kept", envs(), tensorboard_log=str(tmp_path / "cut"))
    resumed.learn(TOTAL, [Checkpoints(tmp_path / "kept"), Interrupt(-1)])
    assert read(tmp_path / "cut" / "PPO_Plus_1") == read(tmp_path / "whole" / "PPO_Plus_1")
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["PPO_Plus_1", "PPO_Plus_2"]


def test_a_call_resumes_with_the_same_total_timesteps(tmp_path):
    learn(model_of("discrete"), tmp_path, after=100)
    with pytest.raises(ValueError, match="total_timesteps=500: .* had 400"):
        PPO_Plus.resume(tmp_path, envs()).learn(500)


def test_a_call_that_could_not_start_can_be_resumed_again(tmp_path, monkeypatch):
    """After an error as training starts, and after one while the rest of the checkpoint is restored."""

    def draws():
        # As a callback does that makes its environments then.
        return [At(lambda _: (random.random(), np.random.random(), th.rand(1)), hooks=["training_start"])]

    whole = model_of("discrete")
    learn(whole, tmp_path / "whole", callbacks=draws())
    learn(model_of("discrete"), tmp_path / "cut", after=130, callbacks=draws())
    resumed = PPO_Plus.resume(tmp_path / "cut", envs())
    for part in ("cut", "set_logger"):
        with monkeypatch.context() as patch, pytest.raises((TypeError, Damaged), match="not callable"):
            patch.setattr(process_state, part, None)
            learn(resumed, tmp_path / "cut", callbacks=draws())
        assert resumed.call.resumed is not None
    learn(resumed, tmp_path / "cut", callbacks=draws())
    assert_same(resumed, whole)
    assert not (tmp_path / "cut" / "earlier_1").exists()


def test_after_a_call_the_next_one_is_as_it_would_have_been(tmp_path):
    model = model_of("memory").learn(128)
    path = model.save_checkpoint(tmp_path)
    assert path == tmp_path / "checkpoint_000000000128.zip"
    model.learn(128, reset_num_timesteps=False)
    resumed = PPO_Plus.resume(path, envs()).learn(128, reset_num_timesteps=False)
    assert resumed.num_timesteps == 256
    assert_same(resumed, model)


class Rowing(th.nn.Module):
    """Divides by how many rows it has seen, which its state does not say."""

    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.linear = th.nn.Linear(input_dim, output_dim)
        self.register_buffer("n", th.ones(()), persistent=False)

    def forward(self, features):
        self.n += len(features)
        return self.linear(features) / self.n


class OfSB3(ActorCriticPolicy):
    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


def test_policies_that_override_sb3s_methods_resume(tmp_path):
    model = PPO_Plus(OfSB3, envs(), n_steps=32, batch_size=32, n_epochs=1).learn(64, Checkpoints(tmp_path))
    assert PPO_Plus.resume(tmp_path, envs()).num_timesteps == 0 and model.num_timesteps == 64


def test_frozen_weights_and_non_persistent_buffers_resume(tmp_path):
    ppo_plus.register(Rowing)
    arguments = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu", policy_kwargs=dict(actor=Rowing))
    model = PPO_Plus("MlpPolicy", envs(), **arguments)
    model.policy.value_net.requires_grad_(False)
    model.learn(64)
    model.save_checkpoint(tmp_path)
    resumed = PPO_Plus.resume(tmp_path, envs())
    assert resumed.policy.action_net.n == model.policy.action_net.n > 64
    for each in (resumed, model):  # the generators stand where they stood
        if each is model:
            process_state.set_generators(checkpoint.read(*tmp_path.iterdir())[0]["generators"])
        each.learn(64, reset_num_timesteps=False)
    for ours, theirs in zip(resumed.policy.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(ours, theirs) and ours.requires_grad == theirs.requires_grad


def test_in_a_rollout_and_after_an_error_in_one_there_is_none(tmp_path):
    """Unlike after a callback that stopped training, and after a loop by hand."""

    class Interrupting(BaseCallback):
        error: type[BaseException] | None = KeyboardInterrupt

        def _on_step(self):
            if self.n_calls == 5 and self.error:
                raise self.error
            return self.n_calls != 5

    model, callback = model_of("discrete"), Interrupting()
    with pytest.raises(RuntimeError, match="between two rollouts"):
        model.learn(64, lambda *_: bool(model.save_checkpoint(tmp_path)))
    assert not any(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        model.learn(64, callback)
    with pytest.raises(RuntimeError, match="between two rollouts"):
        model.save_checkpoint(tmp_path)
    callback.error = None
    model.learn(64, callback)
    assert model.save_checkpoint(tmp_path)
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    with pytest.raises(RuntimeError, match="between two rollouts"):
        model.save_checkpoint(tmp_path)
    model.train()
    assert PPO_Plus.resume(model.save_checkpoint(tmp_path), envs()).num_timesteps == 64


def test_a_resumed_model_that_is_saved_before_it_learns_continues_its_call(tmp_path):
    learn(model_of("discrete"), tmp_path / "first", after=150, save_freq=64)
    resumed = PPO_Plus.resume(tmp_path / "first", envs())
    again = PPO_Plus.resume(resumed.save_checkpoint(tmp_path / "second"), envs())
    for model in (resumed, again):
        learn(model, tmp_path / str(id(model)))
    assert again.num_timesteps == resumed.num_timesteps and again._n_updates == resumed._n_updates
    for ours, theirs in zip(again.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_environments_without_state_start_new_episodes(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        PPO_Plus.resume(tmp_path, envs())

    def make():
        return make_vec_env(lambda: MaskedEnv(gym.spaces.Discrete(3)), 2, wrapper_class=Resumable)

    model = PPO_Plus("MlpPolicy", make(), n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    with pytest.raises(Stop):
        model.learn(TOTAL, [Checkpoints(tmp_path, save_freq=1), Interrupt(100)])
    with pytest.warns(UserWarning, match="new episodes start: .*MaskedEnv"):
        resumed = PPO_Plus.resume(tmp_path, make())
    assert resumed.num_timesteps == 192
    assert resumed.learn(TOTAL, Interrupt(-1)).num_timesteps == 448


def test_the_newest_are_kept_may_be_moved_and_a_damaged_one_is_passed_over(tmp_path):
    learn(model_of("discrete"), tmp_path / "elsewhere", after=199, save_freq=1)
    tmp_path = shutil.move(tmp_path / "elsewhere", tmp_path / "moved")
    names = [path.name for path in checkpoint.files(tmp_path)]
    assert names == [f"checkpoint_{steps:012d}.zip" for steps in (384, 320, 256)]
    newest = tmp_path / names[0]
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=f"{names[0]}.*damaged.*the one before"):
        assert PPO_Plus.resume(tmp_path, envs()).num_timesteps == 320
    with pytest.raises(gym.error.NameNotFound):  # which is no damage
        PPO_Plus.resume(tmp_path, "NoSuch-v9")


class NotReady(DummyVecEnv):
    def get_state(self):
        return {}

    def set_state(self, state):
        raise RuntimeError("not ready")


def test_an_error_of_the_environment_is_no_damage_of_the_file(tmp_path):
    env = NotReady([lambda: gym.make("CartPole-v1")])
    PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1).learn(32, Checkpoints(tmp_path, save_freq=16))
    with pytest.raises(ValueError, match=r"^env: its set_state raised RuntimeError\('not ready'\)$"):
        PPO_Plus.resume(tmp_path, env)


def steps_of(folder):
    return [int(path.stem.removeprefix("checkpoint_")) for path in checkpoint.files(folder)]


def test_what_another_run_has_left_is_moved_and_not_gone_on_with(tmp_path):
    learn(model_of("discrete"), tmp_path, save_freq=64)
    old = steps_of(tmp_path)
    for number in (1, 2):
        with pytest.warns(
            UserWarning, match=f"had later checkpoints, or those of another run, which are in .*earlier_{number} now"
        ):
            learn(model_of("discrete"), tmp_path, after=100 if number == 1 else 70, save_freq=64)
    assert steps_of(tmp_path / "earlier_1") == old == [384, 320, 256]
    assert steps_of(tmp_path / "earlier_2") == [192, 128, 64]
    # Those after the one that is resumed are moved, too.
    resumed = PPO_Plus.resume(tmp_path / f"checkpoint_{64:012d}.zip", envs())
    with pytest.warns(UserWarning, match="earlier_3"):
        learn(resumed, tmp_path, after=100, save_freq=64)
    assert steps_of(tmp_path / "earlier_3") == [128] and steps_of(tmp_path) == [192, 128, 64]


def test_a_second_call_continues_in_the_same_folder(tmp_path, recwarn):
    model = model_of("discrete").learn(128, Checkpoints(tmp_path, save_freq=64))
    model.learn(128, Checkpoints(tmp_path, save_freq=64), reset_num_timesteps=False)
    assert steps_of(tmp_path) == [192, 128, 64]
    assert not recwarn.list
    with pytest.warns(UserWarning, match="earlier_1"):
        model.learn(128, Checkpoints(tmp_path, save_freq=64))
    assert steps_of(tmp_path) == [64, 0]


def test_training_continues_if_writing_fails(tmp_path, monkeypatch):
    folder = tmp_path / "a file, not a folder"
    folder.write_text("")
    model = model_of("discrete")
    with pytest.warns(UserWarning, match="no checkpoint after 0 timesteps: .*training continues"):
        model.learn(TOTAL, Checkpoints(folder, save_freq=1))
    assert model.num_timesteps == 448


def test_what_cannot_be_kept_is_said_before_training(tmp_path):
    numbers = itertools.count()
    model = model_of("discrete", ent_coef=lambda progress: 1e-6 * next(numbers))
    with pytest.raises(Undescribable, match="ent_coef"):
        model.learn(TOTAL, Checkpoints(tmp_path))
    assert model.num_timesteps == 0


def test_what_a_file_cannot_have_is_named(tmp_path):
    model = model_of("discrete")
    model.own = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="checkpoints lack own: set it again after resume .own"):
        model.learn(TOTAL, Checkpoints(tmp_path))


def unregistered(observations, actions, next_observations):
    return observations[:, 0]


def test_what_resume_would_refuse_is_said_with_the_first_file(tmp_path):
    model = model_of("discrete", streams=[Stream(unregistered)])
    with pytest.warns(UserWarning, match="resume would raise an error: it asks for .*unregistered.*ppo_plus.register"):
        model.learn(TOTAL, Checkpoints(tmp_path))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"save_freq": 0}, ValueError, "^save_freq=0 must be at least 1, or None$"),
        ({"minutes": 0}, ValueError, r"^minutes=0 must be a number in \(0, 1e\+09\], or None$"),
        ({"keep": 0}, ValueError, "keep=0"),
        # Read letter by letter, it would be `*`, and every file of the folder would be cut.
        ({"logs": "*.csv"}, TypeError, r"^logs='\*.csv' must be a list of patterns, such as \["),
    ],
)
def test_bad_arguments(kwargs, error, message, tmp_path):
    with pytest.raises(error, match=message):
        Checkpoints(tmp_path, **kwargs)


def test_taking_states_costs_a_small_part_of_the_time(tmp_path, monkeypatch):
    now, taken = [0.0], []

    def take(model, folder, logs):
        now[0] += 1.0
        taken.append(model.num_timesteps)
        return {"num_timesteps": model.num_timesteps, "env": {"reason": None}}

    class Clock(BaseCallback):
        def _on_step(self):
            now[0] += 1.0  # 32 s a rollout
            return True

    monkeypatch.setattr(checkpoint, "SHARE", 0.01)
    monkeypatch.setattr(checkpoint, "take", take)
    monkeypatch.setattr(checkpoint, "write", lambda *_: None)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    model_of("discrete").learn(20 * 64, [Checkpoints(tmp_path, minutes=None), Clock()])
    # Of 100 s without, 1 s.
    assert taken == [0, 4 * 64, 8 * 64, 12 * 64, 16 * 64]


@pytest.mark.parametrize("part", "env generators policy call log_files model".split())
def test_a_checkpoint_without_a_part_is_passed_over_or_named(tmp_path, part):
    with pytest.raises(Stop):
        model_of("discrete").learn(TOTAL, [Checkpoints(tmp_path, save_freq=64), Interrupt(70)])
    (newest, before, *_) = checkpoint.files(tmp_path)
    whole = container.read(newest, "checkpoint")
    container.write(newest, "checkpoint", {name: value for name, value in whole.items() if name != part})
    if part == "log_files":  # which the callback reads
        with pytest.raises(Damaged, match="is not a valid checkpoint .*KeyError: 'log_files'"):
            PPO_Plus.resume(newest, envs()).learn(TOTAL, [Checkpoints(tmp_path), Interrupt(-1)])
    else:
        with pytest.warns(UserWarning, match=f"{newest.name} is not a valid checkpoint.*resuming from the one before"):
            assert PPO_Plus.resume(tmp_path, envs()).num_timesteps == checkpoint.steps_of(before)


def test_processes_read_their_parts_of_one_file(tmp_path, monkeypatch):
    path = model_of("discrete").learn(64).save_checkpoint(tmp_path)
    first, second = (container.read(path, "checkpoint") for _ in range(2))
    second["generators"]["torch"] = th.Generator().manual_seed(5).get_state()
    container.write(path, "checkpoint", first | {"others": [second | {"rank": 1}]})
    found = checkpoint.read(path)
    assert [each["rank"] for each in found] == [0, 1]
    assert all(each["folder"] == tmp_path for each in found)
    with pytest.raises(ValueError, match="is of 2 processes, and there are 1 now: start 2 .*--processes 2"):
        PPO_Plus.resume(tmp_path, envs())


def test_the_latest_state_can_be_written_after_an_error_and_counts_for_keep(tmp_path):
    model = model_of("discrete")
    _, checkpoints = learn(model, tmp_path, after=150, save_freq=None)
    assert [path.name for path in checkpoint.files(tmp_path)] == ["checkpoint_000000000000.zip"]
    for steps in (64, 128, 192):
        shutil.copy(tmp_path / f"checkpoint_{0:012d}.zip", tmp_path / f"checkpoint_{steps:012d}.zip")
    assert checkpoints.write() == tmp_path / "checkpoint_000000000256.zip"
    assert steps_of(tmp_path) == [256, 192, 128]
    assert PPO_Plus.resume(tmp_path, envs()).num_timesteps == 256
