"""The entries of Dict observations that the actor sees, and those that the critic sees: an asymmetric actor-critic.

The critic is needed in training only, so it may see entries that the actor will not have: in a simulation the exact
state, while the robot has a camera (Pinto et al. 2017, "Asymmetric Actor Critic for Image-Based Robot Learning",
arXiv:1710.06542).
"""

from typing import Any, NamedTuple

from gymnasium import spaces

from ppo_plus.require import nearest


class Views(NamedTuple):
    """The spaces of the parts of the observations that actor and critic see."""

    actor: spaces.Space
    critic: spaces.Space

    @property
    def differ(self) -> bool:
        """Whether they see different entries."""
        return self.actor is not self.critic

    def optional_entries(self, observation_space: spaces.Space, mask_key: str | None) -> frozenset[str]:
        """The entries of the observations that actions do not depend on."""
        if not isinstance(observation_space, spaces.Dict) or not isinstance(self.actor, spaces.Dict):
            return frozenset()
        return frozenset(observation_space.spaces.keys() - self.actor.spaces.keys() - {mask_key})

    def lacks_critic_entries(self, observations: Any) -> bool:
        """Whether an entry that the critic sees is missing from observations."""
        return isinstance(self.critic, spaces.Dict) and not all(key in observations for key in self.critic.spaces)


def make_views(space: spaces.Space, actor_keys: Any, critic_keys: Any, mask_key: str | None = None) -> Views:
    """The parts that actor and critic see, in the order of the space, from lists of names; ``None``: everything.

    :raises TypeError: not a list of names
    :raises ValueError: the names do not fit the observations, or ``critic_keys`` without ``actor_keys``
    """
    if actor_keys is None:
        if critic_keys is not None:
            raise ValueError(
                f"policy_kwargs: critic_keys={critic_keys!r} needs actor_keys: without, the "
                "actor would see everything: name what it sees, actor_keys=[...]"
            )
        return Views(space, space)
    actor = _part("actor_keys", actor_keys, space, mask_key)
    critic = space if critic_keys is None else _part("critic_keys", critic_keys, space, mask_key)
    return Views(actor, actor if actor == critic else critic)


def _part(name: str, keys: Any, space: spaces.Space, mask_key: str | None) -> spaces.Dict:
    """The part of a Dict space that an argument names, checked."""
    given = f"policy_kwargs: {name}={keys!r}"
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"{given} names entries of Dict observations, but these are {space}: leave it out")
    if not isinstance(keys, (list, tuple)) or not keys or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"{given} must be a list of names, such as {list(space)[:1]}")
    for key in keys:
        if key == mask_key:
            raise ValueError(f"{given} names the action mask (action_mask_key), which is not a feature: leave it out")
        if key not in space.spaces:
            likely = nearest(key, space)
            remedy = f"use some of {list(space)}" if likely is None else f"did you mean {likely!r}?"
            raise ValueError(f"{given} names {key!r}, which is not an entry of the observations: {remedy}")
    # Pairs, not a dict: Gymnasium would sort its keys.
    return spaces.Dict([(key, sub) for key, sub in space.items() if key in keys])
