"""The devices of a run: a stage's processes, one a GPU (`ranks`), the check of a configuration
against this machine (`check`), and an override of TRL where there is no GPU (`trl_on_cpu`).
"""
