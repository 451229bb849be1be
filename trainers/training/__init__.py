"""The training loop (paper, section 2): SFT, then rounds of GRPO on the two sides in turn, each
against the other's frozen snapshot.

A run is a folder of the store with a state of rounds (`rounds`). `driver` starts the processes of
the stages (`stage`), which read and write only files and snapshots. TRL trains the models (`sft`,
`grpo`) with the rewards of `cogr.rewards`. `contest` chooses the pair of snapshots that is to
serve.
"""
