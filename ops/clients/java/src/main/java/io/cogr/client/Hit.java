package io.cogr.client;

import jakarta.json.JsonObject;
import java.util.List;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch._types.FieldValue;

/**
 * One item.
 *
 * @param id the item's id
 * @param tier "set", or "more" for one that only the text finds
 * @param score its score
 * @param source the document's {@code item_id}, {@code text} and the fields that were asked for
 * @param matched the keywords that it was found by
 * @param sort continues a search ({@link SearchOptions#searchAfter})
 */
public record Hit(
        String id,
        String tier,
        double score,
        JsonObject source,
        List<String> matched,
        List<FieldValue> sort) {
    /** The score that the template adds to every item of the set. */
    private static final int TIER = 1024;

    /** From OpenSearch's words. */
    static Hit read(org.opensearch.client.opensearch.core.search.Hit<JsonData> hit) {
        JsonObject source = hit.source().toJson().asJsonObject();
        // Every order ends with score and id, whatever comes before.
        double score = hit.sort().get(hit.sort().size() - 2).doubleValue();
        boolean above = score >= TIER;
        return new Hit(
                source.getString("item_id"),
                above ? "set" : "more",
                above ? score - TIER : score,
                source,
                hit.matchedQueries(),
                hit.sort());
    }
}
