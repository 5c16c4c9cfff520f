"""Tune hyperparameters: the same as ``ppo-plus tune``, for a checkout."""

import sys

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main(["tune", *sys.argv[1:]])
