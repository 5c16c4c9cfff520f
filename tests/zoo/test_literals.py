"""What settings files may write as Python, and what they may not."""

import pytest
from torch import nn

from ppo_plus.zoo.literals import parse_literal


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
        ("dict()", {}),
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
    ],
)
def test_refuses_code(text):
    with pytest.raises(ValueError, match="not allowed|no Python expression"):
        parse_literal(text)


@pytest.mark.parametrize("name", ["nope", "functional", "init", "Parameter", "__builtins__", "__name__"])
def test_refuses_what_is_no_module_class(name):
    with pytest.raises(ValueError, match=f"nn.{name} is no torch module class"):
        parse_literal(f"nn.{name}")


@pytest.mark.parametrize("text", ["", "dict(", "1; 2", "import os", "\0", "9" * 5000])
def test_refuses_what_is_no_expression(text):
    with pytest.raises(ValueError, match="no Python expression"):
        parse_literal(text)


@pytest.mark.parametrize("text", ["[" * 10_000 + "]" * 10_000, "-" * 100_000 + "1", "1" + "+1" * 5000])
def test_refuses_deep_nesting(text):
    with pytest.raises(ValueError):
        parse_literal(text)


def test_message_is_short_and_says_what_is_allowed():
    with pytest.raises(ValueError) as error:
        parse_literal("f(" + "1, " * 1000 + ")")
    assert len(str(error.value)) < 200
    assert "dict(...)" in str(error.value)
