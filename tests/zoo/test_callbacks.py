"""Saved models, progress."""

from ppo_plus.callbacks import EvalAfterUpdates
from ppo_plus.zoo.callbacks import ProgressDisplay, SavedModels
from ppo_plus.zoo.experiment import load_experiment, make_envs, make_model

#: A rollout is 64 timesteps.
EXPERIMENT = load_experiment("CartPole-v1", overrides={"n_envs": 2, "normalize": True, "compile": False, "n_epochs": 2})


def test_saved_models_have_statistics_next_to_them(tmp_path):
    callback = EvalAfterUpdates(make_envs(EXPERIMENT, evaluation=True), 100, n_eval_episodes=1)
    make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(300, [callback, SavedModels(100, tmp_path)])
    # The models that were evaluated.
    names = {
        f"rl_model_{n}_steps{end}" for n in callback.evaluations_timesteps for end in (".zip", "_vecnormalize.zip")
    }
    assert {path.name for path in tmp_path.iterdir()} == names


def test_progress_as_bar(capsys):
    progress = ProgressDisplay(bar=True)
    make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(640, progress)
    progress.on_training_end()
    shown = capsys.readouterr().err
    assert "100%" in shown and "mean return" in shown and "steps/s" in shown
