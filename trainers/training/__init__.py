"""The training loop (paper, section 2): SFT, then rounds of GRPO on the two sides in turn, each
against the other's frozen snapshot. A run is a folder of the store with a state of rounds; TRL
trains, with the rewards of `cogr.rewards`.
"""
