"""The devices of a run: a stage's processes, one a GPU (`ranks`), and the check of a configuration
against this machine (`check`).
"""
