"""Experiments around the algorithm: settings from YAML files, training runs, learning curves, the command line."""
