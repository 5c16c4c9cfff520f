"""What a file may build: the classes and functions that it may name, as ``module:qualname``, and how many numbers.

A file may be untrusted, and a model is built with the classes that it names. So a name stands only for a class
of a few packages that is of a kind a model is built from, for one of :data:`OBJECTS`, for what the user has
registered, or for a class of such a kind in a module of the user's program. No other module is imported, and
no dotted path is followed. The names are public ones (``ppo_plus:WhiteNoise``, ``torch.nn:Tanh``): files stay readable
if modules move. A few bytes can name a network of any size, so numbers are counted before they are made.
"""

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode

from ppo_plus.public import MODULES as PUBLIC_MODULES
from ppo_plus.trees import tree_leaves, tree_map


class Refused(ValueError):
    """A file that is not read: it asks for what it may not have, is of another kind, or of another version."""


class Damaged(Refused):
    """A file that is not as it was written."""


@contextmanager
def decoding(passing: tuple[type[Exception], ...] = (Refused,)) -> Iterator[None]:
    """Raise :class:`Damaged` for every other error in the block: what reads damaged data raises many kinds."""
    try:
        yield
    except (*passing, th.OutOfMemoryError):  # type: ignore[misc]
        raise
    except Exception as error:
        raise Damaged(f"{type(error).__name__}: {str(error)[:200]}") from error


#: Classes of ppo_plus that files may contain objects of and that are not public, and their modules.
ALIASES = dict.fromkeys(("Constant", "Cosine", "Linear", "Sampled"), "ppo_plus.formulas.schedules")
#: Every name of ppo_plus that files have, and its module, which is imported only when a file asks for it.
OURS = PUBLIC_MODULES | ALIASES
_NAMES = {f"{module}:{name}": f"ppo_plus:{name}" for name, module in OURS.items()}
#: Packages that are named by a public module, which has the classes of the modules within them.
_PUBLIC = {"gymnasium.spaces": "gymnasium.spaces", "torch.nn.modules": "torch.nn", "torch.optim": "torch.optim"}
#: Modules whose classes may be named.
MODULES = frozenset(
    "gymnasium.spaces ppo_plus torch.nn torch.optim "
    "sb3_contrib.common.maskable.buffers sb3_contrib.common.maskable.policies "
    "sb3_contrib.common.recurrent.buffers sb3_contrib.common.recurrent.policies "
    "stable_baselines3.common.buffers stable_baselines3.common.policies "
    "stable_baselines3.common.sb2_compat.rmsprop_tf_like stable_baselines3.common.torch_layers".split()
)
#: What these classes must be subclasses of: what models are built from.
BASES = (
    "gymnasium.spaces:Space ppo_plus:KLControl ppo_plus:NoiseProcess ppo_plus:RolloutBuffer "
    "stable_baselines3.common.buffers:RolloutBuffer torch.nn:Module torch.optim:Optimizer".split()
)
#: Classes whose objects may be in a file: plain values, whose creation has no effect.
OBJECTS = frozenset(
    [f"ppo_plus:{name}" for name in ALIASES]
    + [f"ppo_plus:{name}" for name in "AdaptiveLearningRate AdaptivePenalty Carry Coefficients ColoredNoise".split()]
    + [f"ppo_plus:{name}" for name in "EarlyStop KLControl KLState NoiseProcess StateDependentNoise WhiteNoise".split()]
    + [f"ppo_plus:{name}" for name in ("Cost", "RandomNetworkDistillation", "Stream")]
    + [f"stable_baselines3.common.utils:{name}" for name in ("ConstantSchedule", "FloatSchedule", "LinearSchedule")]
    + ["stable_baselines3.common.running_mean_std:RunningMeanStd"]
)
#: What files name: a class or a function.
Named = type | Callable[..., Any]
_registered: dict[str, Named] = {}
#: Of the standard library and installed packages. Their classes have to be registered: constructors may download.
_STANDARD_LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_PACKAGES = frozenset({"site-packages", "dist-packages"})


def register(*objects: Named) -> Named | None:
    """Let files ask for these classes and functions by name, and for objects of these classes; also as a decorator.

    What is registered is run when a model is built with it, so register what may be given any arguments.

    :param objects: classes, and functions such as schedules
    :return: the first of them
    :raises TypeError: neither a class nor a function, or a lambda
    """
    for named in objects:
        if not hasattr(named, "__qualname__") or not callable(named) or "<lambda>" in named.__qualname__:
            raise TypeError(f"{named!r} must be a class or a function that has a name: register(MyPolicy, my_schedule)")
        _registered[name_of(named)] = named
    return objects[0] if objects else None


def is_registered(named: Named) -> bool:
    """Whether this very class or function has been registered."""
    return _registered.get(name_of(named)) is named


def name_of(named: Named) -> str:
    """The name of a class or a function in files."""
    return public_name(f"{named.__module__}:{named.__qualname__}")


def public_name(name: str) -> str:
    """The name in files of what a module defines: ``"torch.nn.modules.activation:Tanh"`` is ``"torch.nn:Tanh"``."""
    module, _, title = name.partition(":")
    for package, public in _PUBLIC.items():
        if module.startswith(f"{package}."):
            member = vars(import_module(public)).get(title)
            if (getattr(member, "__module__", None), getattr(member, "__qualname__", None)) == (module, title):
                return f"{public}:{title}"
    return _NAMES.get(name, name)


def find(name: str) -> Any:
    """The class or function that a file asks for; raises :class:`Refused` if files may not ask for it."""
    if name in _registered:
        return _registered[name]
    module, _, title = name.partition(":")
    if module in MODULES:
        member = _look_up(name)
        # A module's imports from elsewhere are not allowed with it.
        candidates = {name: member} if is_part(member) and name_of(member) == name else {}
    else:
        known = [named for named in _registered.values() if named.__qualname__ == title]
        known = known or [*_classes_of_the_program(title)]
        # A class of the main module (`__mp_main__` in started processes) may be in another module now.
        main = {"__main__", "__mp_main__"}
        candidates = {name_of(named): named for named in known if module in main | {named.__module__}}
    if name in candidates:
        return candidates[name]
    if len(candidates) != 1:
        raise _not_allowed(name, [*candidates])
    return next(iter(candidates.values()))


def is_part(member: object) -> bool:
    """Whether it is a class that models are built from."""
    return isinstance(member, type) and issubclass(member, tuple(map(_look_up, BASES)))


def _classes_of_the_program(title: str) -> Iterator[type]:
    """The classes that models are built from and that the user's modules define under a name: ``__main__``, and the
    imported modules outside the standard library, the installed packages and ppo_plus."""
    for module in [*sys.modules.values()]:
        # Not `getattr`: a module may import what it is asked for.
        cls: Any = vars(module).get(title) if isinstance(module, ModuleType) else None
        if not is_part(cls) or (cls.__module__, cls.__qualname__) != (module.__name__, title):
            continue
        file = vars(module).get("__file__")
        folders = Path(file if isinstance(file, str) else "site-packages/built-in").parents
        in_library = any(folder in _STANDARD_LIBRARY or folder.name in _PACKAGES for folder in folders)
        in_library |= module.__name__.partition(".")[0] == "ppo_plus"
        if module.__name__ == "__main__" or not in_library:
            yield cls


def find_class_of_objects(name: str) -> type:
    """The class of an object in a file; raises :class:`Refused` if files may not contain such objects."""
    if name in _registered or name.startswith("torch.nn:"):
        cls = find(name)
    else:
        cls = _look_up(name) if name in OBJECTS else None
    if not isinstance(cls, type):
        raise _not_allowed(name)
    return cls


def require_attributes(cls: type, names: Iterable[str]) -> None:
    """:raises Refused: a file gives an object of a class an attribute that would replace a method or a property"""
    for name in names:
        defined = inspect.getattr_static(cls, name, None)
        if not name.isidentifier() or name.startswith("__") or callable(defined) or hasattr(defined, "__get__"):
            raise Refused(f"it sets {name[:100]!r}, which is not a plain attribute of {cls.__name__}")


def own(value: Any) -> dict[str, Any]:
    """The attributes of an object without the values of cached properties, which are computed again."""
    static = {name: inspect.getattr_static(type(value), name, None) for name in vars(value)}
    return {name: part for name, part in vars(value).items() if not isinstance(static[name], functools.cached_property)}


def constructor_arguments(cls: type) -> dict[str, Any]:
    """The arguments of a class's constructors, with their defaults."""
    constructors = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    parameters = (inspect.signature(constructor).parameters for constructor in reversed(constructors))
    return {name: parameter.default for each in parameters for name, parameter in each.items()}


def _not_allowed(name: str, candidates: Iterable[str] = ()) -> Refused:
    which = f"may be {' or '.join(candidates)}" if candidates else "this program does not have or allow"
    remedy = f"call ppo_plus.register({name.rpartition(':')[2][:100]}) if it is a function or of an installed package"
    return Refused(f"it asks for {name!r}, which {which}: define or import it before loading, and {remedy}")


def _look_up(name: str) -> Any:
    """What a module that files may name has under a name; ``None``: nothing."""
    module, _, title = name.partition(":")
    module = OURS.get(title, "") if module == "ppo_plus" else module
    try:
        return vars(import_module(module)).get(title) if module else None
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise Refused(f"it needs {title} of {package} ({error}): pip install {package}") from None


# --- how much is built ------------------------------------------------------------------------------------------------

#: How many numbers may be made while a model is built, and how many times more than its file has weights: networks may
#: replace others, initial weights are computed in steps, and feature extractors try an observation (SB3's do).
MOST_NUMBERS, MOST_TIMES = 2**25, 16
#: How many numbers each tensor counts for at least, since it takes time, too.
LEAST = 256


class Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise :class:`MemoryError` before torch makes many more numbers in this thread than a file has in its weights."""

    def __init__(self, weights: dict[str, th.Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = MOST_NUMBERS + MOST_TIMES * sum(tensor.numel() for tensor in weights.values())

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        in_place = operation.name().partition(".")[0].endswith("_")
        if not in_place and not operation.is_view:
            self.left -= LEAST + _numbers_made(operation, args, kwargs)
            if self.left < 0:
                remedy = "if they are yours, pass policy_kwargs= to load or resume"
                raise MemoryError(f"its networks are larger than its weights, or compute with larger arrays: {remedy}")
        return operation(*args, **kwargs)


def _numbers_made(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of elements that an operation of torch returns, without running it."""
    # The device ``meta`` computes shapes alone.
    args, kwargs = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, th.Tensor) else leaf, (args, kwargs))
    try:
        made = operation(*args, **{**kwargs, **({"device": "meta"} if "device" in kwargs else {})})
    except RuntimeError:
        return 0  # what depends on numbers, such as ``item``, is no larger than these
    return sum(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, th.Tensor))


def counted(function: Named) -> Named:
    """What a file may bind arguments to: what torch counts while it builds, and what the user has allowed."""
    is_counted = isinstance(function, type) and issubclass(function, (th.nn.Module, th.optim.Optimizer))
    if not is_counted and function not in _registered.values():
        title = function.__qualname__[:100]
        raise Refused(f"it binds arguments to {title}, which is not a network: register it to allow it")
    return function


def require_activation(policy_kwargs: Any) -> None:
    """:raises Refused: the activation that a file asks for is neither one of torch's nor the program's"""
    function: Any = policy_kwargs.get("activation_fn") if isinstance(policy_kwargs, dict) else None
    while isinstance(function, functools.partial):
        function = function.func
    module, _, title = name_of(function).partition(":") if hasattr(function, "__qualname__") else ("", "", "")
    is_torchs = function is th.nn.Identity or getattr(function, "__module__", "") == th.nn.Tanh.__module__
    if module in MODULES and not is_torchs and not is_registered(function):
        raise Refused(f"its activation_fn, {title}, is not one of torch's activations: register it to allow it")
