package io.cogr.client;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * Expansions that were asked for lately, so that a shop's frequent queries are searched without
 * asking the expander each time; all of one pair of snapshots. Only what has keywords is kept: the
 * query alone may have keywords by the next time.
 */
final class Memory {
    /** Queries that are remembered. */
    private static final int SIZE = 1000;

    private final Cache<String, Expansion> known;
    private Map<String, String> pair = Map.of();

    Memory(Duration lifetime) {
        known = Caffeine.newBuilder().maximumSize(SIZE).expireAfterWrite(lifetime).build();
    }

    /** What is remembered of a query. */
    Optional<Expansion> get(String query) {
        return Optional.ofNullable(known.getIfPresent(query));
    }

    /**
     * Remember an answer of the expander. One of another pair says that something was published:
     * all else is forgotten.
     */
    synchronized void put(String query, Expansion expansion) {
        if (!expansion.snapshots().equals(pair)) {
            known.invalidateAll();
            pair = expansion.snapshots();
        }
        if (!expansion.source().equals("none")) {
            known.put(query, expansion);
        }
    }

    /** Forget all. */
    void forget() {
        known.invalidateAll();
    }
}
