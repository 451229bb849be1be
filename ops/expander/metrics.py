"""The expander's Prometheus metrics; no label holds a query, token or address."""

from __future__ import annotations

import math
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="cogr_expander", registry=self.registry)
        gauge = partial(Gauge, namespace="cogr_expander", registry=self.registry)
        self.queries = counter(
            "queries",
            "Queries answered, by where the keywords came from and, for none, why",
            ("source", "reason"),
        )
        self.seconds = Histogram(
            "request_seconds",
            "Time of a POST /expand after its body was read",
            namespace="cogr_expander",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.rejected = counter("refused", "Requests rejected, by HTTP status", ("status",))
        self.failures = counter(
            "upstream_failures",
            "Failed calls of redis, opensearch, store or model, by kind of error",
            ("upstream", "error"),
        )
        self.open = gauge(
            "upstream_open", "1 while the upstream's circuit breaker is open", ("upstream",)
        )
        self.in_flight = gauge("in_flight", "Unknown queries being looked up now")
        self.asked = counter("model_asked", "Queries that the model was asked")
        self.round = gauge("round", "Round of the pair that is followed; -1 for none")
        self.followed = gauge("pair_seen_timestamp_seconds", "When the serving pair was last seen")
        self.coverage = gauge(
            "coverage",
            "Share of the documents of serving.into.index with keywords; 0 without the field",
        )
        self.coverage.set(math.nan)
        self.flaws = gauge("flaws", "What is missing or wrong in the pair that serves; see /readyz")
        self.bugs = counter("bugs", "Unexpected errors; the log has their tracebacks")

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
