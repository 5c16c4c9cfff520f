"""The same as ``ppo-plus enjoy``, for a checkout."""

import sys

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main(["enjoy", *sys.argv[1:]])
