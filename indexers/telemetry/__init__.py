"""Logs and metrics of a process, off or silent by default, and progress for people.

    logs        lines for people or JSON lines, with the ids of run, shard and snapshot
    prometheus  every Prometheus metric of indexing, their registry, the endpoint for scrapes and
                the push to a gateway; the stages of a run
    terminal    progress as a bar or as lines, durations, and a console that shows text as it is

Text of items and queries is in no metric and no log line.
"""
