"""The same as ``ppo-plus record``, for a checkout."""

import sys

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main(["record", *sys.argv[1:]])
