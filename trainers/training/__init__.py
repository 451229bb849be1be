"""The training loop: SFT, then rounds of GRPO on the two sides in turn, each against the other's
frozen snapshot.

A run is a folder of the store (`runs`). A round is a list of stages, each a process of its own
(`driver`, `stage`) that reads and writes only files and snapshots (`work`). What trains is TRL
(`sft`, `grpo`); what is learned from is `cogr.rewards`.
"""
