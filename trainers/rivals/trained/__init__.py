"""Rivals that train a model of their own, by the libraries that their fields use.

Each starts from the weights that `compare.models` names (`fits`), within the time of one fit.
"""
