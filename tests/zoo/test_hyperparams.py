"""Settings files: entries and YAML."""

import pytest

from ppo_plus.zoo.hyperparams import positive_int, read_entry, read_mapping


def test_an_exact_id_comes_first_then_atari_then_default(settings):
    path = settings("default: {a: 1}\natari: {a: 2}\nFoo-v0: {a: 3}\nALE/Foo-v5: {a: 4}")
    assert read_entry("Foo-v0", path) == ("Foo-v0", {"a": 3})
    assert read_entry("ALE/Foo-v5", path) == ("ALE/Foo-v5", {"a": 4})
    assert read_entry("ALE/Pong-v5", path) == ("atari", {"a": 2})
    assert read_entry("Bar-v0", path) == ("default", {"a": 1})


def test_an_atari_game_without_atari_entry_takes_the_default(settings):
    assert read_entry("ALE/Pong-v5", settings("default: {a: 1}"))[0] == "default"


def test_a_variant_is_that_entry_or_none(settings):
    path = settings("default: {a: 1}\nFoo-v0: {a: 2}\nFoo-v0/wide: {a: 3}")
    assert read_entry("Foo-v0", path, "wide") == ("Foo-v0/wide", {"a": 3})
    with pytest.raises(ValueError, match="no entry Foo-v0/deep; variants of Foo-v0: Foo-v0/wide"):
        read_entry("Foo-v0", path, "deep")


def test_merges_and_anchors(settings):
    path = settings("A: &a {x: 1, y: 2}\nB: {<<: *a, y: 3}")
    assert read_entry("B", path) == ("B", {"x": 1, "y": 3})


def test_no_entry(settings):
    with pytest.raises(ValueError, match="no entry Foo-v0 or default"):
        read_entry("Foo-v0", settings("Bar-v0: {}"))


def test_entry_that_is_not_a_mapping(settings):
    with pytest.raises(ValueError, match="settings.yml, Foo-v0: the entry must be a mapping"):
        read_entry("Foo-v0", settings("Foo-v0: 7"))


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t", "a: !!float x", "a: !!python/name:os.system", "a: \x01"])
def test_broken_yaml(settings, text):
    with pytest.raises(ValueError, match="settings.yml is not valid YAML"):
        read_entry("Foo-v0", settings(text))


@pytest.mark.parametrize("text", ["", "just words", "[1, 2]"])
def test_yaml_that_is_not_a_mapping(settings, text):
    with pytest.raises(ValueError, match="settings.yml must be a mapping"):
        read_entry("Foo-v0", settings(text))


def test_yaml_cannot_run_code(settings, tmp_path):
    target = tmp_path / "ran"
    for tag in ("apply", "new"):
        with pytest.raises(ValueError, match="not valid YAML"):
            read_entry("Foo-v0", settings(f"Foo-v0: !!python/object/{tag}:os.mkdir ['{target}']"))
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 10_000, "recursion"),
        ("a: " + "{b: " * 10_000, "recursion"),
        ("\n".join(" " * i + "a:" for i in range(1_000)), "recursion"),
        ("a: " + "9" * 50_000, "not valid YAML: Exceeds the limit"),
        ("a: !!float ''", "not valid YAML"),
        ("a: !!int ''", "not valid YAML"),
        ("a: !!bool maybe", "not valid YAML"),
        ("a: !!timestamp now", "not valid YAML"),
        ("a: 2023-99-99", "not valid YAML"),
        ("? [1]\n: 2", "unhashable"),
        ("x" * 2**12, "settings.yml must be a mapping"),
    ],
    ids=lambda text: text[:30],
)
def test_damaged_yaml_is_one_short_line(settings, text, message):
    with pytest.raises(ValueError, match=message) as error:
        read_mapping(settings(text))
    assert "\n" not in str(error.value) and len(str(error.value)) < 2_000


def test_ordinary_merges_of_all_kinds(settings):
    """One mapping, several (the first one counts), merged ones merged, an alias of plain data, numbers of all kinds."""
    path = settings(
        "A: &a {x: 1, y: 2}\nB: &b {<<: *a, y: 3}\nC: {<<: [*b, {y: 4, z: 0x10}], w: &w [1e3, 1.5e+3, 1_000]}\n"
        "D: {<<: *b, w: *w, n: 123456789012345678901234567890}"
    )
    assert read_mapping(path) == {
        "A": {"x": 1, "y": 2},
        "B": {"x": 1, "y": 3},
        "C": {"x": 1, "y": 3, "z": 16, "w": ["1e3", 1500.0, 1000]},
        "D": {"x": 1, "y": 3, "w": ["1e3", 1500.0, 1000], "n": 123456789012345678901234567890},
    }


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_entry("Foo-v0", tmp_path / "nope.yml")


@pytest.mark.parametrize("value", [3, 3.0, "3", "3e0", " 3 "])
def test_positive_int(value):
    assert positive_int("n", value) == 3


@pytest.mark.parametrize("value", [0, -1, 2.5, "x", None, True, [3], float("nan"), float("inf"), "inf", ""])
def test_not_a_positive_int(value):
    with pytest.raises(ValueError, match="n must be a positive whole number"):
        positive_int("n", value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A: {x: 1}\nB:\n  gamma: 0.9\n  n_steps: 8\n  gamma: 1", "the key 'gamma' in line 5 is already in line 3"),
        ("A: {x: 1}\nB: {x: 1}\nA: {x: 2}", "the key 'A' in line 3 is already in line 1"),
        ("A: {x: 1, 'x': 2}", "the key 'x' in line 1 is already in line 1"),
        ("A: &a {x: 1, x: 2}\nB: {<<: *a}", "the key 'x' in line"),
        ("A:\n  - b: {x: 1, y: 2, x: 3}", "the key 'x' in line"),
    ],
)
def test_a_key_that_is_written_twice_is_an_error(settings, text, message):
    with pytest.raises(ValueError, match=f"settings.yml is not valid YAML: {message}"):
        read_mapping(settings(text))


LISTS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
MERGES = "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))


@pytest.mark.parametrize("text", [LISTS, MERGES, "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_do_not_multiply(tmp_path, text):
    (tmp_path / "settings.yml").write_text(text)
    with pytest.raises(
        ValueError, match="settings.yml is not valid YAML: its aliases stand for more than 100000 values"
    ):
        read_mapping(tmp_path / "settings.yml")


def test_aliases_are_read(tmp_path):
    (tmp_path / "settings.yml").write_text("a: &a {b: 1}\nc: {<<: *a, d: 2}\ne: [*a, *a]\n")
    assert read_mapping(tmp_path / "settings.yml") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}, "e": [{"b": 1}] * 2}
