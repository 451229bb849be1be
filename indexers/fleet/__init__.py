"""A rebuild spread over workers: a coordinator plans shards, Celery carries their names, workers
write answers to the generation cache. All state lies in files (`run_files`): it survives the
broker.
"""
