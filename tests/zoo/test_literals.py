"""Python values as text."""

import importlib.util
from pathlib import Path

import pytest
import torch as th
import yaml
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from ppo_plus.formulas.exploration import ColoredNoise, StateDependentNoise, WhiteNoise
from ppo_plus.formulas.kl_control import AdaptiveLearningRate, AdaptivePenalty
from ppo_plus.zoo.literals import format_literal, parse_literal

#: What rl_zoo3's files may name.
NAMESPACE = {"nn": nn, "th": th, "RMSpropTFLike": RMSpropTFLike}
#: What ours may name besides.
OWN = {"ColoredNoise": ColoredNoise, "StateDependentNoise": StateDependentNoise, "AdaptivePenalty": AdaptivePenalty}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5e-3", -2.5e-3),
        ("'text'", "text"),
        ("[1, (2, 3), None, True]", [1, (2, 3), None, True]),
        ("{'norm_obs': True, 'clip_obs': 5.0}", {"norm_obs": True, "clip_obs": 5.0}),
        ("dict(log_std_init=-3.29, ortho_init=False)", {"log_std_init": -3.29, "ortho_init": False}),
        ("  dict(net_arch=dict(pi=[64], vf=[]),\n activation_fn=nn.ReLU) ", None),
        ("nn.Tanh", nn.Tanh),
        ("th.nn.Tanh", nn.Tanh),
        ("torch.nn.Tanh", nn.Tanh),
        ("th.optim.AdamW", th.optim.AdamW),
        ("dict(optimizer_class=RMSpropTFLike)", {"optimizer_class": RMSpropTFLike}),
        ("dict()", {}),
        ("ColoredNoise(beta=0.5)", ColoredNoise(0.5)),
        ("AdaptiveLearningRate()", AdaptiveLearningRate()),
        ("dict(a=[WhiteNoise()])", {"a": [WhiteNoise()]}),
    ],
)
def test_reads(text, value):
    expected = {"net_arch": {"pi": [64], "vf": []}, "activation_fn": nn.ReLU} if value is None else value
    assert parse_literal(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "dict(x=__import__('os'))",
        "dict(**{'x': 1})",
        "{**{}}",
        "dict([('x', 1)])",
        "dict.fromkeys('x')",
        "().__class__.__bases__[0].__subclasses__()",
        "nn.ReLU()",
        "nn.ReLU.__init__.__globals__",
        "nn.Module.__subclasses__()",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "f'{1}'",
        "9**9**9",
        "'a' * 10**9",
        "open",
        "x := 1",
        "{[]: 1}",
        "{print: 1}",
        "-'a'",
        "dict(activation_fn=th.load)",
        "th.optim.lr_scheduler.StepLR",
        "nn.modules.activation.ReLU",
        "torch.hub.load('x')",
        "th.optim.AdamW.__init__",
        "sb3.common.base_class.BaseAlgorithm",
        "RMSpropTFLike()",
        "ColoredNoise",
        "ColoredNoise(0.5)",
        "ColoredNoise(**{'beta': 0.5})",
        "ColoredNoise(beta=open('x'))",
        "exploration.ColoredNoise(beta=0.5)",
        "getattr(nn, 'ReLU')",
        "globals()",
        "dict(a=(yield))",
        "await x",
        "[*[1]]",
        "nn['ReLU']",
        "1 if True else 2",
        "{1, 2}",
    ],
)
def test_code_is_an_error(text):
    with pytest.raises(ValueError, match="not allowed|not a Python expression"):
        parse_literal(text)


@pytest.mark.parametrize("name", ["nope", "functional", "init", "Parameter", "__builtins__", "__name__"])
def test_not_a_module_class_is_an_error(name):
    with pytest.raises(ValueError, match=f"nn.{name} is not a torch module class"):
        parse_literal(f"nn.{name}")


@pytest.mark.parametrize("name", ["Optimizer2", "ReLU", "lr_scheduler", "os"])
def test_not_an_optimizer_class_is_an_error(name):
    with pytest.raises(ValueError, match=f"th.optim.{name} is not a torch optimizer class"):
        parse_literal(f"th.optim.{name}")


@pytest.mark.parametrize("text", ["", "dict(", "1; 2", "import os", "\0", "9" * 5000])
def test_not_an_expression_is_an_error(text):
    with pytest.raises(ValueError, match="not a Python expression"):
        parse_literal(text)


@pytest.mark.parametrize("text", ["[" * 10_000 + "]" * 10_000, "-" * 100_000 + "1", "1" + "+1" * 5000])
def test_deep_nesting_is_an_error(text):
    with pytest.raises(ValueError):
        parse_literal(text)


def test_message_is_short_and_says_what_is_allowed():
    with pytest.raises(ValueError) as error:
        parse_literal("f(" + "1, " * 1000 + ")")
    assert len(str(error.value)) < 200
    assert "dict(...)" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("ColoredNoise(gamma=1)", "ColoredNoise: .*gamma"), ("ColoredNoise(beta=-1)", "beta=-1 must be")],
)
def test_wrong_arguments_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_literal(text)


def zoo_texts():
    """What rl_zoo3's files write as Python. The package is only looked up: importing it changes Gymnasium."""
    found = importlib.util.find_spec("rl_zoo3")
    if found is None:
        pytest.skip("rl_zoo3 is not installed")
    for path in sorted(Path(found.origin).with_name("hyperparams").glob("*.yml")):
        for name, entry in yaml.safe_load(path.read_bytes()).items():
            for key, value in entry.items():
                if isinstance(value, str) and any(bracket in value for bracket in "({["):
                    yield f"{path.stem}, {name}, {key}", value


def test_reads_all_of_rl_zoo3_as_python_does():
    texts = dict(zoo_texts())
    assert sum(name.startswith("ppo,") for name in texts) >= 10
    assert any("RMSpropTFLike" in text for text in texts.values())
    for name, text in texts.items():
        expected = eval(text, dict(NAMESPACE))
        assert parse_literal(text) == expected, name
        assert eval(format_literal(expected), dict(NAMESPACE)) == expected, name


constants = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
classes = st.sampled_from([nn.ReLU, nn.Module, th.optim.Adam, RMSpropTFLike])
strategies = (
    st.floats(0, 2).map(ColoredNoise)
    | st.booleans().map(lambda full_std: StateDependentNoise(full_std=full_std))
    | st.just(AdaptivePenalty())
)
values = st.recursive(
    constants | classes | strategies,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "net_arch", "class", "1x"]) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_written_values_read_back_and_are_python(value):
    text = format_literal(value)
    assert eval(text, NAMESPACE | OWN) == value
    try:
        assert parse_literal(text) == value
    except ValueError as error:
        assert "nested too deeply" in str(error)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, float("nan"), float("inf"), int, print, {"a": object()}])
def test_values_that_cannot_be_written(value):
    with pytest.raises(ValueError, match="cannot be written"):
        format_literal(value)
