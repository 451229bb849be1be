"""The expander's metrics for Prometheus. No label ever holds a query, a token or an address."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        self.queries = counter(
            "cogr_expander_queries",
            "Queries answered, by where the keywords came from and, for none, why",
            ("source", "reason"),
        )
        self.modes = counter(
            "cogr_expander_modes",
            "Queries answered, by what is to be searched: keywords, both, or text",
            ("mode",),
        )
        self.remembered = counter(
            "cogr_expander_remembered",
            "Queries answered by what the process itself remembers; among those of the source "
            "cache",
        )
        self.seconds = histogram(
            "cogr_expander_request_seconds", "Time of a POST /expand after its body was read"
        )
        self.rejected = counter(
            "cogr_expander_refused", "Requests rejected, by HTTP status", ("status",)
        )
        self.failures = counter(
            "cogr_expander_upstream_failures",
            "Failed calls of redis, opensearch, store or model, by kind of error",
            ("upstream", "error"),
        )
        self.open = gauge(
            "cogr_expander_upstream_open",
            "1 while the upstream's circuit breaker is open",
            ("upstream",),
        )
        self.in_flight = gauge("cogr_expander_in_flight", "Unknown queries being looked up now")
        self.asked = counter("cogr_expander_model_asked", "Queries that the model was asked")
        self.backlog_added = counter(
            "cogr_expander_backlog_added", "Unanswered queries put into the backlog"
        )
        self.round = gauge("cogr_expander_round", "Round of the pair that is followed; -1 for none")
        self.followed = gauge(
            "cogr_expander_pair_seen_timestamp_seconds", "When the serving pair was last seen"
        )
        self.unread = counter(
            "cogr_expander_pair_unread",
            "Looks at the serving pair that failed, by kind of error; the pair before stayed",
            ("error",),
        )
        self.bugs = counter(
            "cogr_expander_bugs", "Errors that nobody expected; the log has their tracebacks"
        )

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
