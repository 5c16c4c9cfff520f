"""What the entries of the settings file reached: ``benchmarks/report/zoo.py``."""

from report import zoo

from ppo_plus.zoo.hyperparams import builtin_file


def test_what_is_shipped_is_current():
    """After new results: ``python docs/tables.py``."""
    assert builtin_file().with_name("returns.yml").read_text(encoding="utf-8") == zoo.shipped()


def test_runs_are_of_unchanged_settings():
    runs = zoo.runs()
    # The entry with the settings that MuJoCo's tasks share, which are another entry of Humanoid.
    assert {run["arm"] for run in runs["Humanoid-v5"]} == {"mujoco"}
    assert {run["arm"] for run in runs["Humanoid-v5/v1"]} == {"mujoco-shared"}
    # Those by which settings were chosen do not count.
    assert {run["seed"] for run in runs["LunarLander-v3"]} == set(range(20, 30))
    assert len({run["seed"] for run in runs["Acrobot-v1/rl_zoo3"]}) == len(runs["Acrobot-v1/rl_zoo3"]) == 14


def test_runs_of_an_entry_that_has_changed_do_not_count(monkeypatch):
    changed = zoo.entries()
    changed["Pendulum-v1"] = {**changed["Pendulum-v1"], "gamma": 0.5}
    changed["Acrobot-v1"] = {**changed["Acrobot-v1"], "n_timesteps": 7}
    monkeypatch.setattr(zoo, "entries", lambda: changed)
    assert not zoo.runs()["Pendulum-v1"] and zoo.runs()["Acrobot-v1"]
    # Schedules depend on the number of timesteps.
    assert not {"Pendulum-v1", "Acrobot-v1"} & zoo.lines().keys()


def test_the_table_has_what_was_run_and_a_sentence_lists_the_rest():
    rows = {row.split(" | ")[0].removeprefix("| ") for row in zoo.table()[2:]}
    (sentence,) = zoo.not_run()
    others = set(sentence.removesuffix(".").partition(": ")[2].split(", "))
    assert rows | others == {name for name in zoo.entries() if not name.endswith("/rl_zoo3")} and not rows & others
    assert "Ant-v4" not in rows and "MountainCar-v0/gSDE" in rows
    # The settings file says so, too, beside each but Atari's, which share an entry.
    lines = builtin_file().read_text(encoding="utf-8").splitlines()
    marked = {line.partition(":")[0] for line in lines if line.endswith("# not run here")}
    assert marked == {name for name in others if name not in zoo.ATARI}


def test_few_runs_are_shown_each_and_samples_on_minigrid():
    runs = [{"deterministic": {"mean": 0.0}, "stochastic": {"mean": score}} for score in (0.5, 0.75)]
    assert zoo.returned("MiniGrid-Unlock-v0", runs) == "0.50, 0.75"
    assert zoo.returned("CartPole-v1", runs * 3) == "0.0 [0.0, 0.0]"
