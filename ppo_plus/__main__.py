"""``python -m ppo_plus`` is ``ppo-plus``."""

from ppo_plus.zoo.cli import main

if __name__ == "__main__":
    main()
