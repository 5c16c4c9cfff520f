"""The public names of the package, which files of models have, too."""

#: The public names of each module. A module is imported when a name of it is first used: torch takes seconds to load,
#: and `ppo-plus --help` does without it. Type checkers read the imports in ``__init__.py``; a test checks that both say
#: the same.
PUBLIC = {
    "compiling.compiled": "CompileError",
    "distributed.ranks": "RanksError",
    "envs.make_vec": "as_vec_env make_vec",
    "envs.normalization": "VecNormalizeTransitions",
    "envs.resumable.state": "Resumable",
    "envs.supervised.vec_env": "EnvFault SupervisedVecEnv",
    "envs.tensors.env": "TensorEnv Transition",
    "formulas.exploration": "ColoredNoise NoiseProcess StateDependentNoise WhiteNoise",
    "formulas.kl_control": "AdaptiveLearningRate AdaptivePenalty EarlyStop KLControl KLState",
    "formulas.losses": "Coefficients Losses PPOLoss",
    "formulas.schedules": "constant cosine linear",
    "policy.memory": "WithMemory",
    "policy.policies": "ActorCriticPolicy Carry CnnPolicy Features Heads MlpPolicy MultiInputPolicy",
    "policy.recurrent": (
        "CnnGruPolicy CnnLstmPolicy GRUMemory LSTMMemory "
        "MlpGruPolicy MlpLstmPolicy MultiInputGruPolicy MultiInputLstmPolicy"
    ),
    "ppo": "PPO_Plus",
    "rollout.buffer": "RolloutBuffer",
    "saving.checkpoint.checkpoint": "Checkpoints",
    "saving.format.names": "Refused register",
    "saving.statistics": "load_statistics",
    "update.minibatch": "Batch",
    "zoo.callbacks": "EvalAfterUpdates",
}
MODULES = {name: f"ppo_plus.{module}" for module, names in PUBLIC.items() for name in names.split()}


def version_of(package: str) -> str:
    """The version of an installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # imported from a checkout that is not installed
        return "unknown"
