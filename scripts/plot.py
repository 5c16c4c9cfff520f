"""The same as ``ppo-plus plot``, for a checkout."""

import sys

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main(["plot", *sys.argv[1:]])
