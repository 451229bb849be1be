"""A rebuild on many workers: a coordinator plans shards, Celery delivers their names, workers write
answers to the generation cache. All state is in files of the store (`run_files`), so losing the
broker loses nothing.
"""
