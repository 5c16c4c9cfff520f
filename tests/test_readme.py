"""Every Python example of the README runs."""

import re
from pathlib import Path

import pytest

from ppo_plus import PPO_Plus

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda code: code.strip().splitlines()[-1][:50])
def test_example_runs(example, monkeypatch, tmp_path):
    learn = PPO_Plus.learn

    def learn_shortly(self, total_timesteps, *args, **kwargs):
        self.n_epochs = 1
        return learn(self, min(total_timesteps, 1_000), *args, **kwargs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PPO_Plus, "learn", learn_shortly)
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})


def test_there_are_examples_to_run():
    assert len(EXAMPLES) >= 12
