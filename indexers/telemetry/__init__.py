"""What a process says about itself: logs, metrics, traces, and the report of a run. Off or silent
unless the settings say so.

    logs      lines for people or JSON lines, with the ids of run, shard and snapshot
    metrics   every Prometheus metric of indexing, their registry, and the endpoint that is scraped
    traces    OpenTelemetry spans, exported by OTLP over HTTP
    stages    one step of a run: a span, a duration, a line of the run's report
    setup     switches all of it on by the settings

Text of items and queries is in no metric and no span, and in no line of a log above the level
debug.
"""
