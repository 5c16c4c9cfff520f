"""The results as tables and pictures, for the documentation and for the scripts that measure.

Nothing here imports a script that measures, or needs more than the extra ``docs``.
"""
