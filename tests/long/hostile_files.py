"""Hostile files: well-formed files of each format with the values that an attacker would choose, read under an audit.

    python tests/long/hostile_files.py                            # 1,000 files of each format, some minutes
    python tests/long/hostile_files.py --files 5000 --seed 3
    python tests/long/hostile_files.py --only checkpoint settings

Hypothesis takes a valid file apart, replaces what stands for a name, a path, a size, a type or a reference, and puts it
together again, so that archives and checksums are right. Each file is read as a user would read it: a model is loaded
and trained, a checkpoint is resumed and trained, statistics are put around environments, settings are parsed. It may be
refused with an error that a user can read. What it may never do is listed in :data:`NEVER`. The exit status is 1 if a
file did one of these, and the file is kept.
"""

import argparse
import base64
import copy
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import Checkpoints, MlpPolicy, PPO_Plus, Resumable, load_statistics
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.format import names, values
from ppo_plus.saving.format.values import describe
from ppo_plus.saving.model import state_of
from ppo_plus.saving.statistics import STATISTICS, write_statistics
from ppo_plus.zoo.experiment import load_experiment

#: Every tag that the files of a program without registered classes may have: the kinds of values, but for networks.
TAGS = (*values._BY_TAG, *values.SPACES, *sorted(names.OBJECTS))
#: What no file may do, and how that is noticed.
NEVER = {
    "write": "open, create, cut, move or delete a file outside the folder of the run: audit events, and files compared",
    "run": "start a process, connect to a network, or import what reading a valid file does not: audit events",
    "change": "change classes, the environment or settings of the process: compared before and after",
    "memory": "take more than 200 MB: the largest resident size",
    "time": "take more than 10 seconds",
    "differ": "load, and be something else than it says: written again and compared",
    "bare": "end in an error that is neither a ValueError nor names its argument",
}
MOST_MEMORY, MOST_SECONDS = 200 * 2**20, 10.0
#: Errors that a user can read: of a value, of an argument's kind, and of numbers that are not finite.
READABLE = (ValueError, TypeError, FloatingPointError)
#: Classes that files could change.
WATCHED = (th.nn.Module, th.nn.Parameter, th.nn.Linear, th.optim.Adam, MlpPolicy, PPO_Plus, EvalCallback, VecNormalize)

# --- what an attacker would write -------------------------------------------------------------------------------------

NAMES = """
    os:system builtins:eval builtins:exec subprocess:Popen pickle:loads torch:load importlib:import_module canary
    canary:Evil __main__:NEVER torch.hub:load numpy:load ppo_plus.saving.format.container:write torch.nn:Transformer
    torch.nn:Linear torch.nn:Module torch.nn:modules torch.nn:Upsample torch.optim:LBFGS ppo_plus:PPO_Plus
    ppo_plus:Checkpoints ppo_plus:MlpPolicy gymnasium.spaces:Graph gymnasium.spaces:Box
    stable_baselines3.common.policies:np stable_baselines3.common.policies:ActorCriticPolicy a.b.c:d :
""".split()
KEYS = (
    """
    __class__ __dict__ __init__ learn save_path policy.action_net.weight.__class__ policy env call tensorboard_log
    folder patterns name_prefix _logger device ../x !name !tuple
""".split()
    + ["", "a" * 5000]
)
SIZES = [0, -1, 1, 2, 10**6, 10**9, 2**31, 2**62, 2**64, -(2**62), 1e300, -1.5, 0.5, True, None]
TEXTS = [
    "lin_1e9",
    "cos_0",
    "MlpPolicy",
    "cuda:99",
    "meta",
    "<U999999",
    "O",
    "nan",
    "x" * 10_000,
    "\0",
    "\ud7ff",
    "%s%n",
]


def paths_below(folder: Path) -> list[str]:
    """Paths of files that a file may not touch, in all the ways that one may be written."""
    victim = folder / "victims" / "precious.csv"
    inside = [str(victim), str(victim.parent), f"{victim.parent}/*"]
    relative = "../../victims/precious.csv ../victims/* linked/precious.csv .. ../..".split()
    return inside + relative + "/proc/x /etc/passwd ~/.bashrc file:///etc/passwd / C:\\x //host/share/x".split()


#: Descriptions (of ppo_plus's format) that are small and ask for much, or for something else.
BOMBS: list[Any] = [
    {"!partial": [{"!name": "torch.nn:BatchNorm1d"}, [600_000_000], {"affine": False}]},
    {"!partial": [{"!name": "torch.nn:Transformer"}, [512, 8, 150], {}]},
    {"!partial": [{"!name": "torch.nn:Linear"}, [10**5, 10**6], {}]},
    {"!partial": [{"!name": "torch.optim:SGD"}, [], {"lr": 1e300}]},
    {"!partial": [{"!name": "gymnasium.spaces:Box"}, [0.0], {"high": 1.0, "shape": [2**28]}]},
    {"!partial": [{"!name": "gymnasium.spaces:MultiBinary"}, [], {"n": [2**29]}]},
    {"!partial": [{"!name": "ppo_plus:RolloutBuffer"}, [10**9], {}]},
    {"!ppo_plus:ColoredNoise": {"beta": 0.5, "horizon": 400_000_000}},
    {"!gymnasium.spaces:MultiBinary": {"n": 10**9}},
    {"!gymnasium.spaces:MultiBinary": {"n": {"!tuple": [10**6, 10**6]}}},
    {"!gymnasium.spaces:Discrete": {"n": 10**12, "start": 0}},
    {"!deque": {"maxlen": 2**62, "items": []}},
    {"!set": [{"!tuple": [-1 - (i >> j & 1) for j in range(12)]} for i in range(4096)]},
    {"!dict": [[{"!int": hex(i * (2**61 - 1))}, 0] for i in range(3000)]},
    {"!int": "f" * 100_000},
    {"!bytes": "AAAA" * 10_000},
    {"!dtype": "<U999999"},
    {"!scalar": ["float64", {"!float": "nan"}]},
    {
        "!torch.nn:Linear": {
            "training": True,
            "_parameters": {},
            "_buffers": {},
            "_modules": {},
            "_non_persistent_buffers_set": [],
        }
    },
    {"!ppo_plus:Linear": {"start": 1e300, "end": {"!float": "inf"}}},
    {"!stable_baselines3.common.utils:ConstantSchedule": {"val": {"!name": "torch.nn:Transformer"}}},
    {"!device": "cuda:99"},
    json.loads("[" * 60 + "]" * 60),
]
#: Pickles, for SB3's files: what runs code, what only names something, and what is large.
PICKLES = [
    b"cos\nsystem\n(S'touch ../victims/ran'\ntR.",
    b"cbuiltins\nexec\n(S'import canary'\ntR.",
    b"ccanary\nEvil\n.",
    b"ctorch\nload\n(S'../victims/precious.csv'\ntR.",
    b"ctorch.nn.modules.transformer\nTransformer\n.",
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I100000000000\ntS'b'\ntR.",
    b"c__builtin__\nbytearray\n(L10000000000L\ntR.",
    b"(dS'__class__'\nS'x'\ns.",
    b"]" * 5000 + b".",
    b"I" + b"9" * 3000 + b"\n.",
]
#: Texts of settings: Python that is not run, tags that would be, and anchors that grow.
YAML_TEXTS = [
    "open('../victims/precious.csv', 'w')",
    "__import__('os').system('touch ../victims/ran')",
    "nn.Module.__init_subclass__",
    "dict(activation_fn=nn.BatchNorm1d)",
    "(" * 150 + ")" * 150,
    "9" * 5000,
    "1:" * 300 + "1",
    *"dict(net_arch=[10**9]) canary.Evil os.system gymnasium.wrappers.TimeLimit lin_1e300 1e400".split(),
    "stable_baselines3.common.callbacks.os",
]
YAML_DOCUMENTS = [
    "CartPole-v1: !!python/object/apply:os.system ['touch ../victims/ran']",
    "CartPole-v1: !!python/module:canary\n",
    "CartPole-v1: !!python/name:os.system\n",
    "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)) + "CartPole-v1: *a59\n",
    "a0: &a0 {k0: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], k{i}: 1}}\n" for i in range(1, 40))
    + "CartPole-v1: *a39\n",
    "CartPole-v1: &a {n_timesteps: *a}\n",
    "CartPole-v1: &a [*a]\n",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in nested dicts and lists."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(each, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutations(original: Any, values: list[Any]) -> st.SearchStrategy[Any]:
    """Copies of a nested value in which up to three places are replaced, renamed, removed, repeated or added to."""
    spots = list(places(original))
    # Short paths first: most of a file is the generators' numbers.
    weighted = sorted(spots, key=len)
    index = st.integers(0, 10**6).map(lambda i: weighted[int(len(weighted) * (i / 10**6) ** 3) % len(weighted)])

    @st.composite
    def mutated(draw: Any) -> Any:
        value = copy.deepcopy(original)
        for _ in range(draw(st.integers(1, 3))):
            path = draw(index)
            try:
                owner, present = at(value, path[:-1]), at(value, path)
            except (LookupError, TypeError):
                continue  # replaced before
            kind = draw(st.sampled_from(["replace", "replace", "replace", "rename", "remove", "add", "twice", "swap"]))
            if kind == "replace":
                like = [each for each in values if type(each) is type(present)]
                owner[path[-1]] = copy.deepcopy(draw(st.sampled_from(like or values) | st.sampled_from(values)))
            elif kind == "rename" and isinstance(owner, dict):
                tags = [f"!{name}" for name in (*NAMES, *TAGS)] if str(path[-1]).startswith("!") else KEYS
                owner[draw(st.sampled_from(tags))] = owner.pop(path[-1])
            elif kind == "remove":
                del owner[path[-1]]
            elif kind == "add" and isinstance(present, dict):
                present[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(st.sampled_from(values)))
            elif kind == "twice" and isinstance(present, list):
                present.extend(copy.deepcopy(present))
            elif kind == "swap":
                owner[path[-1]] = copy.deepcopy(at(value, draw(index.filter(lambda p: _exists(value, p)))))
        return value

    return mutated()


def _exists(value: Any, path: tuple[Any, ...]) -> bool:
    try:
        at(value, path)
    except (LookupError, TypeError):
        return False
    return True


# --- the audit --------------------------------------------------------------------------------------------------------

RUNS = set("os.system subprocess.Popen os.exec os.posix_spawn os.fork os.forkpty socket.connect ctypes.dlopen".split())
#: What a torch for NVIDIA loads to count GPUs.
NVML = "libnvidia-ml.so.1"
MOVES = set("os.truncate os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod shutil.rmtree".split())
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Audit:
    """Notes what the process does in a block. Python's hooks cannot be removed, so there is one for all blocks."""

    active: "Audit | None" = None
    installed = False

    def __init__(self, folder: Path):
        self.folder = os.path.realpath(folder)
        self.seen: list[str] = []
        self.modules: set[str] = set()
        if not Audit.installed:
            sys.addaudithook(Audit._hook)
            Audit.installed = True

    @staticmethod
    def _hook(event: str, args: tuple[Any, ...]) -> None:
        audit = Audit.active
        if audit is None:
            return
        if event == "open":
            path, mode, flags = args
            if (mode and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & WRITING):
                audit._path(event, path)
        elif event in ("os.remove", "os.rmdir") and args[1] != -1:
            pass  # relative to an open folder, as `shutil.rmtree` does
        elif event in MOVES:
            for path in args[:2] if event in ("os.rename", "os.link") else args[:1]:
                audit._path(event, path)
        elif event in RUNS and args[0] not in (None, NVML):  # the process itself, which has the allocator
            audit.seen.append(f"run: {event} {str(args)[:200]}")
        elif event == "import" and args[0] not in sys.modules:
            audit.modules.add(args[0])

    def _path(self, event: str, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            real = os.path.realpath(os.fsdecode(path))
            if not real.startswith(self.folder + os.sep) and real not in (self.folder, os.devnull):
                self.seen.append(f"write: {event} {real}")

    @contextmanager
    def __call__(self) -> Iterator[None]:
        Audit.active = self
        try:
            yield
        finally:
            Audit.active = None


def facts() -> dict[str, Any]:
    """What of the process no file may change."""
    return {
        "classes": {each: dict(vars(each)) for each in WATCHED},
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "type": th.get_default_dtype(),
        "threads": th.get_num_threads(),
        "gradients": th.is_grad_enabled(),
        "constructors": sorted(map(str, yaml.SafeLoader.yaml_constructors)),
        "filters": list(warnings.filters),
    }


def peak_memory() -> int:
    """The largest resident size so far, in bytes; :func:`forget_peak` begins again where the system can."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then only the first large file is seen


# --- formats ----------------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """A format of files.

    :param strategy: what is in a hostile file
    :param valid: what is in a valid one
    :param write: writes it
    :param play: reads a file as a user would, and returns how it differs from what it says; empty: not at all
    """

    strategy: st.SearchStrategy[Any]
    valid: Any
    write: Callable[[Any, Path], None]
    play: Callable[[Any, Path], str]


def env() -> Any:
    return make_vec_env("CartPole-v1", 1, seed=0, wrapper_class=Resumable)


def small(cls: Any = PPO_Plus, **arguments: Any) -> Any:
    own = {"compile": False} if cls is PPO_Plus else {}
    return cls(
        "MlpPolicy",
        env(),
        n_steps=16,
        batch_size=16,
        n_epochs=1,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": [4]},
        **own,
        **arguments,
    )


def taken_apart(path: Path) -> dict[str, Any]:
    """The description in a file of ppo_plus, and the names of its arrays."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def put_together(members: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name twice
        for name, content in members.items():
            archive.writestr(name, content)


def description_format(source: Path, values: list[Any], play: Callable[[Any, Path], str]) -> Format:
    """A format of ppo_plus, of which the description is changed."""
    members = taken_apart(source)
    head = json.loads(members["description.json"])

    def write(value: Any, path: Path) -> None:
        text = json.dumps({**head, "value": value}).encode("utf-8", "surrogatepass")
        put_together({**members, "description.json": text}, path)

    return Format(mutations(head["value"], values), head["value"], write, play)


#: Arguments that a loaded model has in another form or not at all: schedules, and where it writes.
OTHER_FORM = {"compile", "tensorboard_log", "learning_rate", "clip_range", "clip_range_vf", "policy_class"}


def difference(model: PPO_Plus, value: Any) -> str:
    """The first argument or attribute of a model that is not what a description says."""
    state = state_of(model)
    for part in ("arguments", "attributes"):
        for name, written in value[part].items():
            if name not in OTHER_FORM and name in state[part]:
                found = json.loads(json.dumps(describe(state[part][name])[0]))
                if not _same(found, written):
                    return f"{part}.{name} is {str(found)[:80]} and the file says {str(written)[:80]}"
    return ""


def _is_short(model: Any) -> bool:
    """Whether training takes a moment: long rollouts, many epochs and compiling are allowed, and take longer."""
    is_small = model.n_steps <= 64 and model.n_epochs <= 4 and model.n_threads == "auto"
    return is_small and not model.compilation.decision.compiles


def _same(found: Any, written: Any) -> bool:
    """Whether two descriptions are the same, apart from arrays and from ways to write a dict or an integer."""
    if isinstance(found, dict) and "!int" in found:
        found = int(found["!int"], 16)
    if isinstance(written, dict) and isinstance(found, dict):
        if any(f"!{tag}" in written for tag in "array tensor parameter dict OrderedDict set frozenset int".split()):
            return True
        return all(key in written and _same(found[key], written[key]) for key in found)
    if isinstance(written, dict) or isinstance(found, dict):
        return isinstance(written, dict) and any(key.startswith("!") for key in written)
    if isinstance(written, list):
        return isinstance(found, list) and len(found) == len(written) and all(map(_same, found, written))
    return bool(found == written)


def model_format(folder: Path, values: list[Any]) -> Format:
    small(tensorboard_log=str(folder / "run" / "tb")).learn(16).save(folder / "source.zip")

    def play(value: Any, path: Path) -> str:
        model = PPO_Plus.load(path, env(), device="cpu", compile=False)
        found = difference(model, value)
        if _is_short(model):
            model.learn(16)
        return found

    return description_format(folder / "source.zip", values, play)


def statistics_format(folder: Path, values: list[Any]) -> Format:
    normalize = VecNormalize(env())
    normalize.reset()
    write_statistics(normalize, folder / "source.zip")

    def play(value: Any, path: Path) -> str:
        normalize = load_statistics(path, env())
        written = value if "!dict" not in value else {}
        names = {name: each for name, each in STATISTICS.items() if name in written and hasattr(normalize, each)}
        differing = []
        for name, attribute in names.items():
            is_used = normalize.norm_obs or name not in ("observation_moments", "observation_space")
            found = json.loads(json.dumps(describe(getattr(normalize, attribute))[0]))
            if is_used and name != "observation_space" and not _same(found, written[name]):
                differing.append(f"{name} is {str(found)[:80]} and the file says {str(written[name])[:80]}")
        normalize.reset()
        normalize.step(np.zeros(1, int))
        return "; ".join(differing)

    return description_format(folder / "source.zip", values, play)


def checkpoint_format(folder: Path, values: list[Any]) -> Format:
    run = folder / "run"

    class Stop(Exception):
        pass

    def callbacks(where: Path, total: int = 10**9) -> list[Any]:
        def stop(locals_: Any, _: Any) -> bool:
            if locals_["self"].num_timesteps >= total:
                raise Stop
            return True

        from stable_baselines3.common.callbacks import ConvertCallback

        evaluation = EvalCallback(env(), eval_freq=20, n_eval_episodes=1, log_path=str(run), verbose=0)
        saved = CheckpointCallback(16, str(run / "models"))
        return [Checkpoints(where, save_freq=16, logs=["../*.monitor.csv"]), saved, evaluation, ConvertCallback(stop)]

    (run / "0.monitor.csv").write_text("r,l,t\n")
    try:
        small(tensorboard_log=str(run / "tb")).learn(64, callbacks(run / "checkpoints", 40), tb_log_name="a")
    except Stop:
        pass
    source = checkpoint.files(run / "checkpoints")[0]
    events = {path: path.read_bytes() for path in run.rglob("events*")}

    def play(value: Any, path: Path) -> str:
        for each, data in events.items():
            each.write_bytes(data + b"later")
        shutil.rmtree(run / "new", ignore_errors=True)
        (run / "new").mkdir()
        moved = run / "new" / f"checkpoint_{32:012d}.zip"
        shutil.copy(path, moved)
        model = PPO_Plus.resume(moved, env(), device="cpu", compile=False, tensorboard_log=str(run / "tb"))
        found = difference(model, {"attributes": {}, **value["model"]})
        if not _is_short(model):
            return found
        used = callbacks(run / "new")
        before = [{name: each for name, each in vars(one).items() if isinstance(each, (str, Path))} for one in used]
        model.learn(64, used, tb_log_name="a")
        after = [{name: vars(one)[name] for name in names} for one, names in zip(used, before, strict=True)]
        return found or ("" if after == before else f"callbacks are configured otherwise: {after}")

    return description_format(source, values, play)


def sb3_format(folder: Path, values: list[Any]) -> Format:
    """SB3's zips: JSON with pickles in it, and members of tensors."""
    small(PPO).learn(16).save(folder / "source.zip")
    members = taken_apart(folder / "source.zip")
    pickled = [{":type:": "<class 'x'>", ":serialized:": base64.b64encode(each).decode()} for each in PICKLES]
    buffer = io.BytesIO()
    th.save({"a": th.zeros(1).expand(10**9)}, buffer)
    large, evil = buffer.getvalue(), io.BytesIO()
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("archive/data.pkl", PICKLES[0])
        archive.writestr("archive/version", "3")
    names = [
        *members,
        "policy.action_net.weight.pth",
        "../../victims/precious.csv",
        "pytorch_variables.pth",
        "env.pth",
        "a.pth",
    ]
    extra = st.dictionaries(
        st.sampled_from(names), st.sampled_from([large, evil.getvalue(), b"", members["policy.pth"]]), max_size=1
    )
    data = json.loads(members["data"])

    def write(value: Any, path: Path) -> None:
        text = json.dumps(value[0]).encode("utf-8", "surrogatepass")
        put_together({**members, "data": text, **value[1]}, path)

    def play(value: Any, path: Path) -> str:
        model = PPO_Plus.load(path, env(), device="cpu", compile=False)
        names = "gamma gae_lambda n_steps batch_size n_epochs vf_coef max_grad_norm num_timesteps".split()
        said = {name: each for name, each in value[0].items() if name in names and not isinstance(each, dict)}
        differing = [name for name in said if getattr(model, name) != said[name]]
        if _is_short(model):
            model.learn(16)
        return f"{differing} are not what the file says" if differing else ""

    return Format(st.tuples(mutations(data, [*values, *pickled]), extra), (data, {}), write, play)


def settings_format(folder: Path, values: list[Any]) -> Format:
    """Settings, which are parsed and written again."""
    entry = {
        **{
            "n_timesteps": 1e4,
            "n_envs": 2,
            "policy": "MlpPolicy",
            "normalize": "dict(norm_obs=True)",
            "learning_rate": "lin_1e-3",
        },
        **{
            "policy_kwargs": "dict(net_arch=[64], activation_fn=nn.ReLU)",
            "env_wrapper": ["gymnasium.wrappers.ClipAction"],
        },
        **{
            "callback": [{"stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes": {"max_episodes": 3}}],
            "gamma": 0.9,
        },
    }
    plain = [each for each in [*values, *YAML_TEXTS] if not isinstance(each, (dict, list))]

    def write(value: Any, path: Path) -> None:
        path.write_text(value if isinstance(value, str) else yaml.safe_dump(value), "utf-8", errors="replace")

    def play(value: Any, path: Path) -> str:
        experiment = load_experiment("CartPole-v1", path)
        written = {"CartPole-v1": experiment.settings()}
        path.write_text(yaml.safe_dump(written))
        again = load_experiment("CartPole-v1", path).settings()
        return "" if str(again) == str(written["CartPole-v1"]) else f"{again} instead of {written}"

    original = {"CartPole-v1": entry}
    return Format(mutations(original, plain) | st.sampled_from(YAML_DOCUMENTS), original, write, play)


FORMATS: dict[str, Callable[[Path, list[Any]], Format]] = {
    "model": model_format,
    "statistics": statistics_format,
    "checkpoint": checkpoint_format,
    "sb3": sb3_format,
    "settings": settings_format,
}

# --- playing ----------------------------------------------------------------------------------------------------------


class Tally:
    """What the files of a format did."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self.memory, self.seconds = 0, 0.0


class _Slow(BaseException):
    """A file takes too long."""


def _ring(*_: Any) -> None:
    raise _Slow


def play(format: Format, value: Any, folder: Path, audit: Audit, tally: Tally, expected: dict[str, Any]) -> list[str]:
    """Write a file and read it; what it did that no file may do."""
    path = folder / "run" / "file.zip"
    for each in ("file.zip", "models"):
        target = folder / "run" / each
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    format.write(value, path)
    audit.seen, audit.modules, found = [], set(), []
    forget_peak()
    before, start = peak_memory(), time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 2 * MOST_SECONDS)
    random.seed(0), np.random.seed(0), th.manual_seed(0)
    try:
        with audit(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            differs = format.play(value, path)
        outcome = "loaded"
        if differs:
            found.append(f"differ: {differs}")
    except READABLE as error:
        outcome = "refused"
        if not str(error):
            found.append(f"bare: {type(error).__name__} without a message")
    except _Slow:
        outcome = "slow"
    except Exception as error:
        outcome = "refused"
        found.append(f"bare: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds, memory = time.perf_counter() - start, peak_memory() - before
    found += audit.seen
    found += [f"run: import {name}" for name in sorted(audit.modules) if name.partition(".")[0] not in IMPORTED]
    now = facts()
    found += [f"change: {name}" for name in expected if now[name] != expected[name]]
    expected.update({name: now[name] for name in expected})  # each change is one finding
    victims = {each.name: each.read_text() for each in (folder / "victims").iterdir()}
    if victims != {"precious.csv": "precious"}:
        found.append("write: a file outside the folder of the run has changed")
    if memory > MOST_MEMORY:
        found.append(f"memory: {memory / 2**20:.0f} MB")
    if seconds > MOST_SECONDS:
        found.append(f"time: {seconds:.1f} s")
    tally.outcomes[outcome] += 1
    tally.memory, tally.seconds = max(tally.memory, memory), max(tally.seconds, seconds)
    return found


#: Packages whose modules may be imported late: those that files may name, and what these use.
IMPORTED = set("ppo_plus torch gymnasium stable_baselines3 sb3_contrib numpy encodings tensorboard google".split())


def run(name: str, n_files: int, first_seed: int = 0, kept: Path | None = None) -> Tally:
    """Play hostile files of one format."""
    tally, here, old = Tally(), os.getcwd(), (tempfile.tempdir, signal.signal(signal.SIGALRM, _ring))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.path.realpath(temporary))
        (folder / "run").mkdir()
        (folder / "victims").mkdir()
        (folder / "victims" / "precious.csv").write_text("precious")
        (folder / "run" / "linked").symlink_to(folder / "victims")
        (folder / "canary.py").write_text("open('../victims/ran', 'w').close()\n\n\nclass Evil:\n    pass\n")
        sys.path.append(str(folder))
        os.chdir(folder / "run")  # logs may be written below it
        tempfile.tempdir = str(folder / "run")  # SB3's loggers
        try:
            values = [*SIZES, *TEXTS, *NAMES, *paths_below(folder), *({"!name": each} for each in NAMES), *BOMBS]
            format = FORMATS[name](folder, values)
            audit, check = Audit(folder / "run"), Tally()
            play(format, format.valid, folder, audit, check, {})  # imports what valid files import
            expected = facts()
            problems = play(format, format.valid, folder, audit, check, expected)
            if problems or check.outcomes["loaded"] != 2:
                raise RuntimeError(f"a valid {name} is not read: {problems} {check.outcomes}")

            @seed(first_seed)
            @settings(
                max_examples=n_files,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(format.strategy)
            def each(value: Any) -> None:
                for problem in play(format, value, folder, audit, tally, expected):
                    tally.violations.append(problem)
                    if kept is not None:
                        kept.mkdir(parents=True, exist_ok=True)
                        number = len(tally.violations)
                        format.write(value, kept / f"{name}_{first_seed}_{number}.zip")
                        print(f"{name}, file {number}: {problem}", flush=True)

            each()
        finally:
            tempfile.tempdir, _ = old
            signal.signal(signal.SIGALRM, old[1])
            os.chdir(here)
            sys.path.remove(str(folder))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--keep", type=Path, default=Path("logs/hostile_files"), help="where files with findings go")
    args = parser.parse_args()
    logging.disable()
    th.set_num_threads(1)
    titles = ["format", "files", "loaded", "refused", "largest memory, MB", "longest, s", "findings"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    failed = False
    for name in args.only:
        tally = run(name, args.files, args.seed, args.keep.absolute())
        counts = [sum(tally.outcomes.values()), tally.outcomes["loaded"], tally.outcomes["refused"]]
        row = [name, *(f"{each:,}" for each in counts), f"{tally.memory / 2**20:.0f}", f"{tally.seconds:.1f}"]
        print(f"| {' | '.join(row)} | {len(tally.violations)} |", flush=True)
        failed |= bool(tally.violations)
    sys.exit(failed)


if __name__ == "__main__":
    main()
