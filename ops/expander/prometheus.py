"""The expander's metrics for Prometheus. No label ever holds a query, a token or an address."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queries = Counter(
            "cogr_expander_queries",
            "Queries answered, by where the keywords came from and, for none, why",
            ("source", "reason"),
            registry=self.registry,
        )
        self.modes = Counter(
            "cogr_expander_modes",
            "Queries answered, by what is to be searched: keywords, both, or text",
            ("mode",),
            registry=self.registry,
        )
        self.remembered = Counter(
            "cogr_expander_remembered",
            "Queries answered by what the process itself remembers; among those of the source "
            "cache",
            registry=self.registry,
        )
        self.seconds = Histogram(
            "cogr_expander_request_seconds",
            "Time of a POST /expand after its body was read",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.rejected = Counter(
            "cogr_expander_refused",
            "Requests rejected, by HTTP status",
            ("status",),
            registry=self.registry,
        )
        self.failures = Counter(
            "cogr_expander_upstream_failures",
            "Failed calls of redis, opensearch, store or model, by kind of error",
            ("upstream", "error"),
            registry=self.registry,
        )
        self.open = Gauge(
            "cogr_expander_upstream_open",
            "1 while the upstream's circuit breaker is open",
            ("upstream",),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "cogr_expander_in_flight", "Unknown queries being looked up now", registry=self.registry
        )
        self.asked = Counter(
            "cogr_expander_model_asked", "Queries that the model was asked", registry=self.registry
        )
        self.backlog_added = Counter(
            "cogr_expander_backlog_added",
            "Unanswered queries put into the backlog",
            registry=self.registry,
        )
        self.round = Gauge(
            "cogr_expander_round",
            "Round of the pair that is followed; -1 for none",
            registry=self.registry,
        )
        self.followed = Gauge(
            "cogr_expander_pair_seen_timestamp_seconds",
            "When the serving pair was last seen",
            registry=self.registry,
        )
        self.unread = Counter(
            "cogr_expander_pair_unread",
            "Looks at the serving pair that failed, by kind of error; the pair before stayed",
            ("error",),
            registry=self.registry,
        )
        self.bugs = Counter(
            "cogr_expander_bugs",
            "Errors that nobody expected; the log has their tracebacks",
            registry=self.registry,
        )

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
