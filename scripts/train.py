"""Train a model: the same as ``ppo-plus train``, for a checkout."""

import sys

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
