"""A rebuild spread over workers: a coordinator plans shards, Celery carries their names, workers
write answers to the store.

All state lies in files (`records`), so that it survives the broker; a task message holds no data.
What a shard's answers are made of is the generation cache; assembling and publishing are those of a
local rebuild.
"""
