"""The rollout in preallocated tensors, and its minibatches.

``T`` steps of ``N`` environments, stored time-major in NumPy's arrays. Adding a step copies it into them; tensors are
views of them. They have the names of SB3's ``RolloutBuffer`` (``rewards``, ``values``, ``advantages``, …), so code that
reads or overrides those keeps working. For environments in tensors, the storage may be on another device
(:meth:`~ppo_plus.RolloutBuffer.store_on`); under these names are then tensors.
"""

import copy
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3

from ppo_plus.formulas.losses import gae, normalize
from ppo_plus.policy.policies import ActorCriticPolicy, Carry, Memory
from ppo_plus.trees import mapped, to_device, tree_flatten, tree_map
from ppo_plus.update.minibatch import Batch, pick, steps_per_sequence

#: A row for each environment.
Rows = np.ndarray | th.Tensor
ObsRows = Rows | dict[str, np.ndarray] | dict[str, th.Tensor]

#: Attributes of the buffer that are the first fields of a :class:`Batch`, in order.
STORED = ("observations", "actions", "values", "log_probs", "advantages", "returns", "params", "masks")
#: Observations whose values are computed at once: many, which costs less, but images of so many still fit into memory.
AT_ONCE = 1024
#: Arrays with one number per transition.
NUMBERS = ("rewards", "episode_starts", "values", "log_probs", "advantages", "returns")
#: Arrays that an estimate of advantages reads or writes.
ESTIMATED = ("rewards", "values", "advantages", "returns")


def _stored(name: str) -> property:
    """A property that reads a stored array, and writes into it when it is assigned, as in ``self.returns = ...``."""

    def read(buffer: "RolloutBuffer") -> Any:
        return buffer._stored.get(name)

    def write(buffer: "RolloutBuffer", value: ObsRows) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                buffer._stored[name][key][...] = part
        else:
            buffer._stored[name][...] = value

    return property(read, write, doc=f"``{name}`` of the rollout, shape ``(T, N, ...)``; ``None`` before it is stored.")


class RolloutBuffer:
    """The transitions of one rollout.

    Subclass it and override :meth:`compute_returns_and_advantage` to estimate advantages in another way.

    :param buffer_size: steps per environment, ``T``
    :param observation_space: the environment's
    :param action_space: the environment's
    :param device: device of the minibatches
    :param gae_lambda: λ of GAE, in ``[0, 1]``
    :param gamma: discount, in ``[0, 1]``
    :param n_envs: number of environments, ``N``
    """

    observations = _stored("observations")
    actions = _stored("actions")
    rewards = _stored("rewards")
    episode_starts = _stored("episode_starts")
    values = _stored("values")
    log_probs = _stored("log_probs")
    advantages = _stored("advantages")
    returns = _stored("returns")
    params = _stored("params")
    masks = _stored("masks")

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "cpu",
        gae_lambda: float = 1.0,
        gamma: float = 0.99,
        n_envs: int = 1,
    ):
        self.buffer_size = buffer_size
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = th.device(device)
        self.gae_lambda = gae_lambda
        self.gamma = gamma
        self.n_envs = n_envs
        self.store_on(th.device("cpu"))
        self.reset()

    def store_on(self, device: th.device) -> None:
        """Keep rollouts on a device from now on; what was kept is dropped."""
        self.storage = device
        #: NumPy arrays, or tensors on another device than the CPU; dicts of them for Dict observations.
        self._stored: dict[str, Any] = {}
        for name in NUMBERS:
            self._make_room(name, th.zeros(self.n_envs, dtype=th.float32, device=device))

    def reset(self) -> None:
        """Start a new rollout in the memory of the last one."""
        self.pos = 0
        self.full = False
        #: Which rows are transitions (:meth:`add`), booleans ``(T, N)``; ``None``: all.
        self.valid: np.ndarray | None = None
        #: The values of final observations that rewards contain; ``None``: none.
        self._gain: th.Tensor | None = None
        #: The rollout with the rewards of each stream (:class:`ppo_plus.Stream`) in place of the environment's.
        self.stream_buffers: list[RolloutBuffer] = []
        #: Whether returns end with episodes.
        self.episodic = True
        #: Whether advantages include those of the streams.
        self.is_combined = False
        #: The policy's memory before the first step of each sequence, in order; empty without memory.
        self.memories: list[Memory] = []
        # The next rollout may have no masks.
        self._stored.pop("masks", None)

    def size(self) -> int:
        """Steps per environment stored so far."""
        return self.pos

    def add(
        self,
        obs: ObsRows,
        action: Rows,
        reward: Rows,
        episode_start: Rows,
        value: Rows,
        log_prob: Rows,
        params: Rows | None = None,
        masks: Rows | None = None,
        final_obs: ObsRows | None = None,
        streams: Rows | None = None,
        valid: np.ndarray | None = None,
    ) -> None:
        """Store one step of all environments: NumPy's arrays, or tensors on the device of the storage.

        :param obs: observations before the step, shape ``(N, ...)``. Floats become float32, and integers stay
            integers unless the space has floats
        :param action: internal actions, shape ``(N, action_dim)``
        :param reward: shape ``(N,)``
        :param episode_start: whether ``obs`` begins an episode, shape ``(N,)``
        :param value: shape ``(N,)``; in a loop written for SB3, tensors ``(N, 1)``
        :param log_prob: shape ``(N,)``
        :param params: parameters of the action distribution, shape ``(N, param_dim)``; ``None``: not known, and so no
            exact KL
        :param masks: action masks, booleans ``(N, M)``; ``None`` throughout the rollout where there are none
        :param final_obs: the last observations of episodes that the step has ended, like ``obs``; ``None``: not known
        :param streams: rewards of ``K - 1`` streams, ``(N, K - 1)``, 0 for those that are computed; ``None``: none
        :param valid: which rows are transitions, booleans ``(N,)``; ``None``: all. The others, such as steps that only
            reset an environment, count nowhere: advantages, sums and moments are those of the rollout without them
            (:meth:`estimate`). What follows them begins an episode, so that memory does not lead through them
        """
        pos = self.pos
        if params is None:
            self._stored.pop("params", None)
        if params is None or value.ndim > 1:
            value, log_prob = (th.as_tensor(numbers).reshape(-1).to(self.storage) for numbers in (value, log_prob))
        stored: Callable[[str], Any] = self._stored.__getitem__
        if isinstance(action, th.Tensor):
            action, stored = action.float(), self.stored
        else:
            action = np.asarray(action, dtype=np.float32)
        for name, row in (
            ("observations", obs),
            ("actions", action.reshape(self.n_envs, -1)),
            ("params", params),
            ("masks", masks),
            ("final_observations", final_obs),
            ("stream_rewards", streams),
        ):
            if row is not None:
                if pos == 0 or name not in self._stored:
                    self._make_room(name, row)
                _put(stored(name), pos, row)
        # Numbers have their room, of one dtype.
        stored("rewards")[pos] = reward
        stored("episode_starts")[pos] = episode_start
        stored("values")[pos] = value
        stored("log_probs")[pos] = log_prob
        if valid is not None:
            if self.valid is None:
                self.valid = np.ones((self.buffer_size, self.n_envs), dtype=bool)
            self.valid[pos] = valid
        self.pos, self.full = self.pos + 1, self.pos + 1 == self.buffer_size

    def stored(self, name: str) -> Any:
        """What is stored under a name, as a tensor ``(T, N, ...)`` or a dict of them; ``None``: nothing."""
        return mapped(as_tensor, self._stored.get(name))

    def begin_sequences(self, memory: Memory) -> None:
        """Begin a training sequence in each environment with the next step, before which the policy has this memory.
        All sequences of a rollout have the same length."""
        self.memories.append(memory)

    def bootstrap_timeouts(
        self, steps: list[int] | th.Tensor, envs: list[int] | th.Tensor, final_values: th.Tensor
    ) -> None:
        r"""Add discounted values :math:`\gamma V(s_{final})` of final observations, ``(K,)``, to rewards at ``K`` time
        limits (rows, columns): they estimate the rest of the return of an episode that was truncated, not terminated
        (Pardo et al. 2018, arXiv:1712.00378). Calling it again replaces the earlier values."""
        rewards = self.stored("rewards")
        rows, columns = (th.as_tensor(indices, dtype=th.long, device=self.storage) for indices in (steps, envs))
        gain = self.gamma * final_values.reshape(-1).to(self.storage)
        rewards.index_put_((rows, columns), gain if self._gain is None else gain - self._gain, accumulate=True)
        self._gain = gain

    def estimate(self, last_values: th.Tensor, starts: th.Tensor) -> None:
        """Estimate the advantages of the transitions by :meth:`compute_returns_and_advantage`, as if the rows that are
        not ``valid`` were not there: moved before all others, they change no estimate but their own.

        :param last_values: as of that method
        :param starts: which of the observations after the last step begin an episode, booleans ``(N,)``
        """
        starts = starts if self.episodic else th.zeros_like(starts)
        # Overridden methods may be SB3's, which works in NumPy.
        dones = starts.numpy() if starts.device.type == "cpu" else starts
        if self.valid is None:
            self.compute_returns_and_advantage(last_values=last_values, dones=dones)
            return
        rows = th.from_numpy(self.valid.argsort(axis=0, kind="stable")).to(self.storage)
        order = rows, th.arange(self.n_envs, device=self.storage)
        moved = copy.copy(self)
        is_own = type(self).compute_returns_and_advantage is RolloutBuffer.compute_returns_and_advantage
        names = NUMBERS if is_own else self._stored
        moved._stored = {name: tree_map(lambda part: _held(part[order]), self.stored(name)) for name in names}
        moved.valid = np.sort(self.valid, axis=0)
        moved.compute_returns_and_advantage(last_values=last_values, dones=dones)
        for name in ("advantages", "returns"):
            self.stored(name)[order] = moved.stored(name)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray | th.Tensor) -> None:
        """Fill ``advantages`` (GAE) and ``returns`` (TD(λ)).

        :param last_values: value of the observation after the last step, shape ``(N,)``, or the first of ``(N, K)``
        :param dones: whether the last step ended an episode, shape ``(N,)``
        """
        values = self.stored("values")
        advantages = gae(
            self.stored("rewards"),
            values,
            last_values.reshape(len(dones), -1)[:, 0].to(self.storage),
            self.stored("episode_starts"),
            th.as_tensor(dones, device=self.storage),
            self.gamma,
            self.gae_lambda,
        )
        self.stored("advantages").copy_(advantages)
        th.add(advantages, values, out=self.stored("returns"))

    def combine_advantages(self, combined: Callable[[th.Tensor, list[th.Tensor]], th.Tensor]) -> None:
        """Replace the advantages by what ``combined`` makes of them and of the streams', unless that is done."""
        if not self.is_combined:
            counted = ... if self.valid is None else th.from_numpy(self.valid)
            own, *streams = (part.stored("advantages") for part in (self, *self.stream_buffers))
            own[counted] = combined(own[counted], [advantages[counted] for advantages in streams])
        self.is_combined = True

    def normalize_advantages(self, normalized: Callable[[th.Tensor], th.Tensor] = normalize) -> None:
        """Replace the advantages of the rollout by what ``normalized`` returns for them."""
        advantages, counted = self.stored("advantages"), ... if self.valid is None else th.from_numpy(self.valid)
        advantages[counted] = normalized(advantages[counted])

    def twin(self, **others: th.Tensor) -> "RolloutBuffer":
        """The same rollout with copies of :data:`ESTIMATED`, so that new estimates leave this one unchanged; ``others``
        are stored in place of what has their names."""
        twin = copy.copy(self)
        twin.stream_buffers = [stream.twin() for stream in self.stream_buffers]
        own = {name: self.stored(name).clone() for name in ESTIMATED}
        twin._stored = self._stored | {name: _held(tensor) for name, tensor in (own | others).items()}
        return twin

    def put_values(self, values: th.Tensor) -> None:
        """Replace ``values`` by others in the order of :meth:`on_device`, ``(T * N,)``, with streams ``(T * N, K)``."""
        columns = values.reshape(len(values), -1).unbind(1)
        for part, column in zip((self, *self.stream_buffers), columns, strict=True):
            stored = part.stored("values")
            stored = stored.T if self.memories else stored
            stored.copy_(column.view(stored.shape))

    def all_of(self, name: str) -> Any:
        """:meth:`stored`, but ``values`` and ``returns`` with streams as ``(T, N, K)``."""
        if not self.stream_buffers or name not in ("values", "returns"):
            return self.stored(name)
        return th.stack([part.stored(name) for part in (self, *self.stream_buffers)], dim=-1)

    def transitions(self, name: str) -> Any:
        """One of the stored tensors, or a dict of them, with a row for each transition to learn from.

        :raises RuntimeError: the rollout is not complete
        """
        self._require_full()
        rows = None if self.valid is None else th.from_numpy(self.valid)
        return tree_map(lambda tensor: tensor.flatten(0, 1) if rows is None else tensor[rows], self.all_of(name))

    def column(self, name: str) -> Any:
        """One of the stored tensors, or a dict of them, as :meth:`on_device` has it; ``None``: it is not stored."""
        first = 1 if self.memories else 0
        return tree_map(lambda rows: to_device(rows.transpose(0, first).flatten(0, 1), self.device), self.all_of(name))

    def minibatches(
        self, batch_size: int | None = None, rollout: Batch | None = None
    ) -> Iterator[tuple[Batch, th.Tensor]]:
        """One epoch: every transition once, in an order drawn from NumPy's global generator, as in SB3; of a rollout
        that is kept on another device, from that device's.

        With memory, whole sequences that have transitions are shuffled instead.

        :param batch_size: transitions per minibatch (the last one may be smaller); ``None`` for all in one
        :param rollout: the result of :meth:`on_device`, to use in several epochs
        :return: pairs of the whole rollout on the device and the row indices of the minibatch
        :raises RuntimeError: the rollout is not complete
        """
        n_transitions = self.buffer_size * self.n_envs
        length = self.buffer_size // len(self.memories) if self.memories else 1
        # SB3 numbers transitions environment by environment.
        n, on_cpu = n_transitions // length, self.storage.type == "cpu"
        order = th.from_numpy(np.random.permutation(n)) if on_cpu else th.randperm(n, device=self.storage)
        if self.valid is not None:
            order = order[th.from_numpy(self.valid.T.reshape(-1, length).any(axis=1))[order]]
        if not self.memories:  # the storage is step by step
            order = order % self.buffer_size * self.n_envs + order // self.buffer_size
        data = rollout or self.on_device()
        steps = th.arange(length, device=self.device)
        for part in th.split(to_device(order, self.device), max(int(batch_size or n_transitions) // length, 1)):
            indices = part if length == 1 else (part[:, None] * length + steps).reshape(-1)
            yield data, indices

    def epochs(
        self,
        policy: ActorCriticPolicy,
        n_epochs: int,
        batch_size: int | None = None,
        estimate: "Callable[[RolloutBuffer], None] | None" = None,
    ) -> Iterator[Iterator[tuple[Batch, th.Tensor]]]:
        """The passes of an update over the rollout, each like :meth:`minibatches`. With ``estimate``, advantages are
        recomputed before each but the first, from what the critic has learned (Andrychowicz et al. 2021, *What Matters
        for On-Policy Deep Actor-Critic Methods?*, arXiv:2006.05990; Tianshou's ``recompute_advantage``).

        What describes the policy that collected the rollout stays: its log-probabilities, and the old values that
        ``clip_range_vf`` refers to, which bound how far one *update* moves the policy and the critic. So does the
        buffer.

        :param policy: the policy that learns
        :param estimate: fills advantages and returns of a buffer that has the values; ``None``: they stay
        """
        rollout = policy.prepare_rollout(self.on_device())
        if policy.streams is not None and policy.streams.need_next_observations:
            rollout = rollout._replace(next_observations=self.column("final_observations"))
        if estimate is not None:
            # Copies, since they may be the buffer's.
            rollout = rollout._replace(advantages=rollout.advantages.clone(), returns=rollout.returns.clone())
        for number in range(n_epochs):
            if number and estimate is not None:
                twin = self.twin()
                # As in the rollout: without dropout, and with unchanged statistics of batch normalization.
                policy.set_training_mode(False)
                twin.put_values(values_of(policy, rollout))
                estimate(twin)
                policy.set_training_mode(True)
                rollout.advantages.copy_(twin.column("advantages"))
                rollout.returns.copy_(twin.column("returns"))
            yield self.minibatches(batch_size, rollout)

    def _require_full(self) -> None:
        if not self.full:
            done = f"{self.pos} of {self.buffer_size}"
            raise RuntimeError(f"the rollout has {done} steps: call collect_rollouts before train")

    def get(self, batch_size: int | None = None) -> Iterator[Batch]:
        """:meth:`minibatches`, each as a batch of its rows."""
        for data, indices in self.minibatches(batch_size):
            yield pick(data, indices)

    def on_device(self) -> Batch:
        """The whole rollout on the device, with steps and environments in one dimension: step by step, or with memory
        environment by environment, so that sequences are contiguous.

        :raises RuntimeError: the rollout is not complete
        """
        self._require_full()
        batch = Batch(*map(self.column, STORED))
        if batch.old_params is not None and not batch.old_params.shape[1]:
            # The policy does not return them.
            batch = batch._replace(old_params=None)
        if not self.memories:
            return batch
        return batch._replace(
            carry=Carry(tree_map(lambda *parts: th.stack(parts, dim=1).flatten(0, 1), *self.memories)),
            episode_starts=self.column("episode_starts").bool(),
            valid=None if self.valid is None else th.from_numpy(self.valid.T.reshape(-1)).to(self.device),
        )

    def _make_room(self, name: str, rows: ObsRows) -> None:
        """Allocate what is stored under a name, shaped like these rows of a first step, unless it fits already."""
        rows = _as_stored(rows, self.observation_space if "observations" in name else None)
        if _kinds(rows) != _kinds(mapped(itemgetter(0), self.stored(name))):
            self._stored[name] = tree_map(lambda row: _held(row.new_zeros((self.buffer_size, *row.shape))), rows)


def as_tensor(part: Rows) -> th.Tensor:
    """A tensor with the memory of an array; ``torch.as_tensor`` would copy it to torch's default device."""
    return th.from_numpy(part) if isinstance(part, np.ndarray) else part


def _held(tensor: th.Tensor) -> Rows:
    """A NumPy array with the memory of a tensor; on another device than the CPU, the tensor."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def values_of(policy: ActorCriticPolicy, rollout: Batch) -> th.Tensor:
    """What the critic predicts for every observation of a rollout; with memory, by sequences from the stored memory.

    :param rollout: ``B`` transitions
    :return: shape ``(B,)``, with streams ``(B, K)``
    """
    rows = th.arange(len(rollout.returns), device=rollout.returns.device)
    length = steps_per_sequence(rollout)
    parts = th.split(rows, max(AT_ONCE // length, 1) * length)
    with th.no_grad():
        return th.cat([policy.evaluate_batch(pick(rollout, part))[0] for part in parts])


def own_buffer_class(buffer_class: type | None) -> type[RolloutBuffer]:
    """The class that stores rollouts; ``None`` and SB3's own classes mean :class:`RolloutBuffer`.

    :raises TypeError: it is not derived from :class:`RolloutBuffer`
    """
    if buffer_class in (None, sb3.RolloutBuffer, sb3.DictRolloutBuffer):
        return RolloutBuffer
    if not (isinstance(buffer_class, type) and issubclass(buffer_class, RolloutBuffer)):
        remedy = "override its compute_returns_and_advantage as in SB3's"
        raise TypeError(f"rollout_buffer_class={buffer_class!r} must be derived from ppo_plus.RolloutBuffer: {remedy}")
    return buffer_class


def _as_stored(rows: ObsRows, space: Any) -> Any:
    """Tensors of the shapes and dtypes that rows are stored in: networks compute in float32. Integers stay integers,
    unless the space has floats, which later rows may be."""
    if isinstance(rows, dict):
        return {key: _as_stored(part, space[key]) for key, part in rows.items()}
    like = rows if isinstance(rows, th.Tensor) else th.from_numpy(np.empty(rows.shape, rows.dtype))
    is_float = like.is_floating_point() or (space is not None and np.issubdtype(space.dtype, np.floating))
    return like.float() if is_float else like


def _kinds(rows: ObsRows | None) -> tuple[Any, ...]:
    """The structure of a nesting of tensors, with their shapes, dtypes and devices."""
    leaves, structure = tree_flatten(rows)
    return structure, [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]


def _put(stored: Any, pos: int, rows: ObsRows) -> None:
    """Write rows into a step of stored arrays, or tensors."""
    if isinstance(rows, dict):
        for key, row in rows.items():
            _put(stored[key], pos, row)
    elif isinstance(rows, th.Tensor) or rows.dtype.kind == stored.dtype.kind:
        stored[pos] = rows
    else:
        # Three times slower, but truncating floats to integers is an error.
        np.copyto(stored[pos], rows, casting="same_kind")
