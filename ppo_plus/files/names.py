"""Classes and functions by name, ``module:qualname``: which of them a file may ask for.

A file may come from a stranger, and a model is built with the classes that it names. So a name stands only for a class
of a few packages that is of a kind a model is built from, for one of :data:`OBJECTS`, or for what the user has
registered. No other module is imported, no dotted path is followed, and no function is handed out that the user has
not registered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


class Refused(ValueError):
    """A file that is not read: it asks for what it may not have, is of another kind, or of a newer version."""


class Damaged(Refused):
    """A file that is not as it was written."""


@contextmanager
def reading_a_value() -> Iterator[None]:
    """Whatever is raised while a value is made of a file says that the file is damaged, unless it says more itself.

    :raises Refused: see there
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Damaged(f"it holds what is no value ({type(error).__name__}: {str(error)[:200]})") from error


#: Packages and modules whose classes may be named, if they are of one of :data:`KINDS`.
PACKAGES = (
    "gymnasium.spaces",
    "ppo_plus.formulas",
    "ppo_plus.policy",
    "ppo_plus.rollout.buffer",
    "sb3_contrib.common",
    "stable_baselines3.common.buffers",
    "stable_baselines3.common.policies",
    "stable_baselines3.common.sb2_compat",
    "stable_baselines3.common.torch_layers",
    "torch.nn.modules",
    "torch.optim",
)
#: What models are built from.
KINDS = (
    "gymnasium.spaces.space:Space",
    "ppo_plus.formulas.exploration:NoiseProcess",
    "ppo_plus.formulas.kl_control:KLControl",
    "stable_baselines3.common.buffers:RolloutBuffer",
    "torch.nn.modules.module:Module",
    "torch.optim.optimizer:Optimizer",
)
#: Classes whose objects may be in a file: plain values, which nothing happens by.
OBJECTS = frozenset(
    {
        "ppo_plus.compiling.compilation:CompileStatus",
        "ppo_plus.formulas.exploration:ColoredNoise",
        "ppo_plus.formulas.exploration:NoiseProcess",
        "ppo_plus.formulas.exploration:StateDependentNoise",
        "ppo_plus.formulas.exploration:WhiteNoise",
        "ppo_plus.formulas.kl_control:AdaptiveLearningRate",
        "ppo_plus.formulas.kl_control:AdaptivePenalty",
        "ppo_plus.formulas.kl_control:EarlyStop",
        "ppo_plus.formulas.kl_control:KLControl",
        "ppo_plus.formulas.kl_control:KLState",
        "ppo_plus.formulas.losses:Coefficients",
        "ppo_plus.formulas.schedules:Bounded",
        "ppo_plus.formulas.schedules:Constant",
        "ppo_plus.formulas.schedules:Cosine",
        "ppo_plus.formulas.schedules:Current",
        "ppo_plus.formulas.schedules:Linear",
        "ppo_plus.policy.carry:Carry",
        "ppo_plus.update.update:Skipped",
        "stable_baselines3.common.running_mean_std:RunningMeanStd",
        "stable_baselines3.common.utils:ConstantSchedule",
        "stable_baselines3.common.utils:FloatSchedule",
        "stable_baselines3.common.utils:LinearSchedule",
    }
)

_registered: dict[str, Any] = {}


def register(*objects: Any) -> Any:
    """Let files ask for these classes and functions by name, and for objects of these classes.

    What is registered is run when a model is built with it, so register what may be given any arguments. It can be used
    as a decorator.

    :param objects: classes, and functions such as schedules
    :return: the first of them
    :raises TypeError: neither a class nor a function, or a lambda
    """
    for each in objects:
        if not hasattr(each, "__qualname__") or not callable(each) or "<lambda>" in each.__qualname__:
            raise TypeError(f"{each!r} must be a class or a function that has a name: register(MyPolicy, my_schedule)")
        _registered[name_of(each)] = each
    return objects[0] if objects else None


def is_registered(named: Any) -> bool:
    """Whether this very class or function has been registered."""
    return _registered.get(name_of(named)) is named


def name_of(named: Any) -> str:
    """The name of a class or a function."""
    return f"{named.__module__}:{named.__qualname__}"


def find(name: str) -> Any:
    """The class or function that a file asks for.

    :param name: as :func:`name_of` makes it
    :raises Refused: files may not ask for it, or it is not there
    """
    if name in _registered:
        return _registered[name]
    module, _, attribute = name.partition(":")
    if any(module == package or module.startswith(f"{package}.") for package in PACKAGES):
        found = _look_up(module, attribute)
        # What a module has imported from elsewhere is not allowed with it.
        if isinstance(found, type) and name_of(found) == name and issubclass(found, tuple(map(_known, KINDS))):
            return found
    raise _not_allowed(name)


def find_class_of_objects(name: str) -> type:
    """The class of an object that is in a file.

    :param name: as :func:`name_of` makes it
    :raises Refused: files may not hold such objects
    """
    found = _registered.get(name)
    if found is None and name in OBJECTS:
        found = _known(name)
    if found is None and name.startswith("torch.nn.modules."):
        found = find(name)
    if not isinstance(found, type):
        raise _not_allowed(name)
    return found


def _not_allowed(name: str) -> Refused:
    title = name.rpartition(":")[2]
    return Refused(
        f"it asks for {name!r}, which is not among what files may ask for: if you trust it, call "
        f"ppo_plus.register({title[:100]}) before loading, or pass what it is needed for in custom_objects="
    )


def _known(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _look_up(module: str, attribute: str) -> Any:
    """What a module of an allowed package has under a name; ``None``: nothing."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    try:
        # Not `getattr`: a module may import what it is asked for.
        return vars(import_module(module)).get(attribute)
    except ImportError as error:
        raise Refused(f"it asks for {module}:{attribute}, which cannot be imported ({error})") from None
